"""A worker process: ``python -m engine.workers.process``, started by ``engine.workers.child``.

It dies with its host; ``engine.workers.lifeline`` says how, and lists the exit codes.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from contextlib import nullcontext

import msgspec

from engine.errors import EngineError
from engine.heap import settle_heap
from engine.workers.channel import (
    UP_OVERHEAD_BYTES,
    ChannelError,
    WorkerChannel,
    encode_message,
)
from engine.workers.lifeline import (
    EXIT_FAULT,
    EXIT_START_FAILED,
    configure_logging,
    guarded,
    settle_in,
)
from engine.workers.loading import WorkerResources, import_factory, prepare_sizes, warm_up
from engine.workers.messages import (
    Down,
    Finish,
    Ready,
    RunBatch,
    Start,
    StartFailed,
    Withdraw,
)
from engine.workers.quota import Cores
from engine.workers.ranges import MarkedPipeline, find_mark
from engine.workers.slab import SlabReader
from engine.workers.stages import Stages

logger = logging.getLogger(__name__)


def main() -> None:
    arguments = parse_arguments()
    settle_in(arguments.parent, arguments.control_fd, arguments.slab_fd)
    channel = WorkerChannel[Down](arguments.control_fd, msgspec.msgpack.Decoder(Down))
    start = channel.receive()
    if not isinstance(start, Start):
        sys.exit(0)  # the host left before it said anything
    configure_logging(start.manifest.name, arguments.worker, start.log_level, start.log_format)
    stages = load(start, channel, SlabReader(arguments.slab_fd))
    settle_heap()
    reader = threading.Thread(target=read_forever, args=(channel, stages), daemon=True)
    reader.start()
    guarded(stages.run)()
    # Not sys.exit: native libraries that are torn down at exit have been seen to hang and crash.
    os._exit(0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="for people who look at the process list")
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--slab-fd", type=int, required=True)
    return parser.parse_args()


def load(start: Start, channel: WorkerChannel[Down], slab: SlabReader) -> Stages:
    """Build and warm the pipeline and say so; a failure is told, then ends the process."""
    mark = find_mark(os.environ)
    resources = WorkerResources(
        start.execution_providers,
        start.threads,
        gpu=start.gpu,
        max_batch_size=start.max_batch_size,
        mark=mark or nullcontext,
    )
    try:
        factory = import_factory(start.manifest.pipeline)
        pipelines = [factory(start.manifest, resources) for _ in range(start.cuda_streams)]
        if resources.is_accelerated:
            for each in pipelines:
                prepare_sizes(each, start.max_batch_size)
        warmup_run_s = warm_up(pipelines[0], start.max_batch_size, start.measured_run_s)
    except Exception as error:
        if isinstance(error, EngineError):
            detail = error.detail
        else:
            logger.exception("the model could not be loaded")
            detail = f"{type(error).__name__}: {error}"
        channel.send(encode_message(StartFailed(detail[:4096]), UP_OVERHEAD_BYTES))
        os._exit(EXIT_START_FAILED)
    stages = Stages(
        [MarkedPipeline(each, mark) for each in pipelines] if mark else pipelines,
        slab,
        channel.send,
        # An accelerator runs while the one core prepares.
        overlaps=_always if resources.is_accelerated else Cores().are_several,
        max_batch_size=start.max_batch_size,
        prefetch_count=start.prefetch_count,
        prepare_threads=start.prepare_threads,
        max_output_bytes=start.max_output_bytes,
    )
    channel.send(encode_message(Ready(resources.providers, warmup_run_s), UP_OVERHEAD_BYTES))
    return stages


def _always() -> bool:
    return True


def read_forever(channel: WorkerChannel[Down], stages: Stages) -> None:
    """The reader thread: batches in; the end of the socket ends the process at once."""
    try:
        while (message := channel.receive()) is not None:
            if isinstance(message, RunBatch):
                stages.submit(message)
            elif isinstance(message, Withdraw):
                stages.withdraw(message.key)
            elif isinstance(message, Finish):
                stages.finish()
    except (ChannelError, msgspec.MsgspecError):
        logger.critical("the host sent a malformed message", exc_info=True)
        os._exit(EXIT_FAULT)
    os._exit(0)


if __name__ == "__main__":
    main()
