"""A language model's worker process: ``python -m engine.llm.worker``, started by its host.

It dies with its host; ``engine.workers.lifeline`` says how, and lists the exit codes. A step that
fails is a fault (70), after everybody was answered.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from engine.config import LlmConfig
from engine.errors import EngineError, StartupError
from engine.heap import settle_heap
from engine.llm.messages import MAX_UP_BYTES, Down, LlmStartFailed, StartLlm
from engine.workers.channel import WorkerChannel, encode_message
from engine.workers.lifeline import EXIT_START_FAILED, configure_logging, guarded, settle_in

if TYPE_CHECKING:
    from engine.llm.worker.stages import Stages

logger = logging.getLogger(__name__)


def main() -> None:
    arguments = parse_arguments()
    settle_in(arguments.parent, arguments.control_fd)
    channel = WorkerChannel[Down](arguments.control_fd, msgspec.msgpack.Decoder(Down))
    start = channel.receive()
    if not isinstance(start, StartLlm):
        sys.exit(0)  # the host left before it said anything
    configure_logging(start.manifest.name, arguments.worker, start.log_level, start.log_format)
    stages = load_or_exit(start, channel)
    settle_heap()
    guarded(stages.run)()
    # Not sys.exit: native libraries that are torn down at exit have been seen to hang and crash.
    os._exit(0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="for people who look at the process list")
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    return parser.parse_args()


def load_or_exit(start: StartLlm, channel: WorkerChannel[Down]) -> Stages:
    """Load and warm the model; a failure is told, then ends the process."""
    try:
        return load(start, channel)
    except Exception as error:
        if isinstance(error, EngineError):
            detail = error.detail
        else:
            logger.exception("the model could not be loaded")
            detail = f"{type(error).__name__}: {error}"
        channel.send(encode_message(LlmStartFailed(detail[:4096]), MAX_UP_BYTES))
        os._exit(EXIT_START_FAILED)


def load(start: StartLlm, channel: WorkerChannel[Down]) -> Stages:
    try:
        # Not above: torch takes seconds to import, and this process must be tied to its host
        # before that, or a host that is killed meanwhile leaves it behind.
        from engine.llm.worker.loading import load_model
        from engine.llm.worker.stages import Stages
    except ModuleNotFoundError as error:
        raise StartupError(f"{error}: language models need clawstream[llm]") from error
    config = msgspec.convert(start.config, LlmConfig)
    return Stages(load_model(start.manifest, config), config, start.epoch, channel)


if __name__ == "__main__":
    main()
