"""A language model's worker without a model, whose first text says when it was made.

It speaks ``engine.llm.messages`` over the product's own channel and queue, from a process of its
own. While prompts run, a step every ``STEP_S`` gives each of them a token, as a batch does; the
text is the monotonic clock in nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from dataclasses import dataclass

import msgspec

from engine.llm.messages import (
    CancelKeys,
    Down,
    Finish,
    FinishLlm,
    LlmReady,
    StartLlm,
    Step,
    StepItem,
    Submit,
)
from engine.llm.request import PromptPayload
from engine.llm.worker.__main__ import parse_arguments
from engine.llm.worker.outgoing import Outgoing
from engine.workers.channel import WorkerChannel
from engine.workers.lifeline import guarded, settle_in

STEP_S = 0.03
IDLE_WAIT_S = 1.0
MAX_UNREAD = 4096
READY = LlmReady(
    device="cpu",
    weights="none",
    num_blocks=1,
    block_size=16,
    max_seq_length=4096,
    vocabulary=0,
)


@dataclass(slots=True)
class _Running:
    num_asked: int
    num_told: int = 0


class StampingModel:
    """What runs; pure but for the clock."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._running: dict[int, _Running] = {}
        self._num_steps = 0

    @property
    def is_idle(self) -> bool:
        return not self._running

    def submit(self, message: Submit) -> None:
        prompt = msgspec.json.decode(message.payload, type=PromptPayload)
        self._running[message.key] = _Running(prompt.sampling.max_tokens or 1)

    def cancel(self, message: CancelKeys) -> None:
        for key in message.keys:
            self._running.pop(key, None)

    def step(self) -> Step:
        """One token for each prompt."""
        self._num_steps += 1
        items = [self._grow(key, running) for key, running in list(self._running.items())]
        return Step(self._epoch, self._num_steps, tuple(items))

    def _grow(self, key: int, running: _Running) -> StepItem:
        running.num_told += 1
        finish = None
        if running.num_told == running.num_asked:
            del self._running[key]
            finish = Finish(
                reason="length",
                prompt_tokens=1,
                completion_tokens=running.num_told,
                cached_tokens=0,
            )
        return StepItem(key, (str(time.monotonic_ns()),), finish)


def main() -> None:
    arguments = parse_arguments()
    settle_in(arguments.parent, arguments.control_fd)
    channel = WorkerChannel[Down](arguments.control_fd, msgspec.msgpack.Decoder(Down))
    start = channel.receive()
    if not isinstance(start, StartLlm):
        sys.exit(0)
    outgoing = Outgoing(channel.send)
    outgoing.put(READY)
    inbox: queue.Queue[Down] = queue.Queue(MAX_UNREAD)

    def read_forever() -> None:
        while (message := channel.receive()) is not None:
            inbox.put(message)
        os._exit(0)

    for stage in (outgoing.send_forever, read_forever):
        threading.Thread(target=guarded(stage), name=stage.__name__, daemon=True).start()
    run(StampingModel(start.epoch), inbox, outgoing)


def run(model: StampingModel, inbox: queue.Queue[Down], outgoing: Outgoing) -> None:
    """Step after step on an absolute schedule, until told to finish."""
    next_at, is_finishing = 0.0, False
    while not (is_finishing and model.is_idle):
        wait_s = IDLE_WAIT_S if model.is_idle else max(0.0, next_at - time.monotonic())
        try:
            match inbox.get(timeout=wait_s):
                case Submit() as submit:
                    model.submit(submit)
                case CancelKeys() as cancel:
                    model.cancel(cancel)
                case FinishLlm():
                    is_finishing = True
        except queue.Empty:
            pass
        if not model.is_idle and time.monotonic() >= next_at:
            outgoing.put(model.step())
            next_at = max(next_at + STEP_S, time.monotonic())
    outgoing.flush()


if __name__ == "__main__":
    main()
