"""What every worker process does to live and die with its host, whatever model it runs.

The kernel kills it when the host's thread ends (``PR_SET_PDEATHSIG``), and the end of the control
socket ends it too. Exit codes: 0 asked to finish or without a host, 3 the model could not be
loaded (the reason went up the socket), 70 a fault in a stage.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Callable

from engine.log_format import LogFormat, make_formatter

logger = logging.getLogger(__name__)

EXIT_START_FAILED = 3
EXIT_FAULT = 70  # a stage itself failed, not an item
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# The interpreter's default of 5 ms lets a thread in pure Python hold up the run stage for as long.
SWITCH_INTERVAL_S = 0.0005
# Below the gateway's own priority: when cores are scarce, sockets and pacing come first. A model
# that is alone on its core is as fast as before.
NICENESS = 5


def settle_in(parent: int, *descriptors: int) -> None:
    """Make this process a worker of ``parent``; ``descriptors`` are not for its own children."""
    die_with(parent)
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the host's; it decides
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for fd in descriptors:
        os.set_inheritable(fd, False)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; exit if it is dead already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def configure_logging(model: str, worker: int, level: int, log_format: LogFormat) -> None:
    """Log to standard error as the host does, saying which worker of which model it is."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(make_formatter(log_format, f"{model}/{worker} pid {os.getpid()}"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def guarded(stage: Callable[[], None]) -> Callable[[], None]:
    """``stage``; if it raises, the process ends, and the host answers, retries and restarts."""

    def run() -> None:
        try:
            stage()
        except OSError:
            os._exit(0)  # the host is gone
        except BaseException:
            logger.critical("a stage failed", exc_info=True)
            os._exit(EXIT_FAULT)

    return run
