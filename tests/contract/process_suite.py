"""The contract of the engine boundary for engines with worker processes, in real time."""

from __future__ import annotations

import asyncio

import psutil
import uvloop

from tests.contract.engine_suite import EngineContract
from tests.fakes.pools import child_pids

FAULTY = b'{"messages": 3}'  # a prompt that is none


class ProcessContract(EngineContract):
    loop_factory: type[asyncio.AbstractEventLoop] = uvloop.Loop  # as in the gateway
    late_s = 2.0
    early_s = 0.001


def stop_workers(seconds: float) -> None:
    """SIGSTOP: a worker that batches continuously is never too busy for another prompt."""
    for worker in map(psutil.Process, child_pids()):
        worker.suspend()
        asyncio.get_running_loop().call_later(seconds, _resume, worker)


def _resume(worker: psutil.Process) -> None:
    try:
        worker.resume()
    except psutil.NoSuchProcess:
        pass  # the engine was closed meanwhile
