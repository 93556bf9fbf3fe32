"""A worker process that speaks ``engine.llm.messages`` for an :class:`EchoLlm`: no torch, no model.

``Manifest.options``: ``step_s`` is the time of a step; ``start`` is ``fail``, ``crash`` or
``hang``; ``break_file``: while that file exists, the start crashes.
"""

from __future__ import annotations

import argparse
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from engine.llm.messages import (
    MAX_UP_BYTES,
    CancelKeys,
    Down,
    FinishLlm,
    LlmReady,
    LlmStartFailed,
    StartLlm,
    Submit,
    Up,
)
from engine.workers.channel import WorkerChannel, encode_message
from engine.workers.lifeline import EXIT_START_FAILED, settle_in
from tests.fakes.echo_llm import Crash, EchoLlm, Stall

GAUGES_INTERVAL_S = 0.1
EXIT_CRASHED = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    for name in ("--worker", "--parent", "--control-fd"):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args()
    settle_in(arguments.parent, arguments.control_fd)
    channel = WorkerChannel[Down](arguments.control_fd, msgspec.msgpack.Decoder(Down))

    def tell(message: Up) -> None:
        channel.send(encode_message(message, MAX_UP_BYTES))

    start = channel.receive()
    if not isinstance(start, StartLlm):
        sys.exit(0)
    load(start.manifest.options, tell)
    inbox: queue.Queue[Down | None] = queue.Queue(maxsize=4096)
    threading.Thread(target=read_forever, args=(channel, inbox), daemon=True).start()
    try:
        serve(EchoLlm(start.epoch, tell), inbox, tell, start.manifest.options.get("step_s", 0.001))
    except Crash:
        os._exit(EXIT_CRASHED)
    except Stall:
        time.sleep(3600.0)


def load(options: dict[str, Any], tell: Callable[[Up], None]) -> None:
    act = options.get("start")
    if act == "fail":
        tell(LlmStartFailed("no such file: model.safetensors"))
        sys.exit(EXIT_START_FAILED)
    if act == "crash" or os.path.exists(options.get("break_file", "")):
        os._exit(EXIT_CRASHED)
    if act == "hang":
        time.sleep(3600.0)
    tell(
        LlmReady(
            device="cpu",
            weights="none",
            num_blocks=100,
            block_size=16,
            max_seq_length=4096,
            vocabulary=0,
        )
    )


def read_forever(channel: WorkerChannel[Down], inbox: queue.Queue[Down | None]) -> None:
    while (message := channel.receive()) is not None:
        inbox.put(message)
    os._exit(0)


def serve(
    llm: EchoLlm, inbox: queue.Queue[Down | None], tell: Callable[[Up], None], step_s: float
) -> None:
    """Until told to finish; raises ``Crash`` and ``Stall``."""
    is_finishing = False
    gauges_at = 0.0
    while not (is_finishing and llm.is_idle and inbox.empty()):
        try:
            match inbox.get(timeout=GAUGES_INTERVAL_S if llm.is_idle else step_s):
                case Submit() as submit:
                    llm.submit(submit)
                case CancelKeys() as cancel:
                    llm.cancel(cancel)
                case FinishLlm():
                    is_finishing = True
        except queue.Empty:
            llm.step()
        if time.monotonic() >= gauges_at:
            gauges_at = time.monotonic() + GAUGES_INTERVAL_S
            tell(llm.gauges())


if __name__ == "__main__":
    main()
