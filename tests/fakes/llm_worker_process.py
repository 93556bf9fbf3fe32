"""A real language-model worker process, seen from the host's end of its socket."""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from engine.config import LlmConfig
from engine.llm.messages import (
    MAX_UP_BYTES,
    Down,
    Finish,
    Gauges,
    LlmReady,
    Refused,
    StartLlm,
    Step,
    StepItem,
    Submit,
    Up,
)
from engine.llm.request import PromptPayload, Sampling
from engine.manifest import Manifest
from engine.workers.channel import MAX_DOWN_BYTES, MessageBuffer, encode_message

START_S = 60.0
ANSWER_S = 30.0
EPOCH = 5


def manifest_of(folder: Path) -> Manifest:
    return Manifest(name="tiny", version="1", kind="llm", pipeline="", files={"model": str(folder)})


class LlmWorkerProcess:
    """Speaks the worker's protocol; every wait is bounded and fails the test."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.messages: list[Up] = []
        self._buffer = MessageBuffer(MAX_UP_BYTES)
        self._decoder = msgspec.msgpack.Decoder(Up)
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "engine.llm.worker", "--model", "tiny", "--worker", "0"]
        command += ["--parent", str(os.getpid()), "--control-fd", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        options = dataclasses.asdict(LlmConfig(**{"threads": 1, "weights": "fp32", **config}))
        self.send(
            StartLlm(
                manifest=manifest_of(folder),
                config=options,
                epoch=EPOCH,
                log_level=logging.WARNING,
                log_format="human",
            )
        )

    def send(self, message: Down) -> None:
        self.socket.sendall(encode_message(message, MAX_DOWN_BYTES))

    def submit(self, key: int, prompt: str, sampling: Sampling, deadline_s: float = 0.0) -> None:
        self.submit_payload(key, PromptPayload(prompt=prompt, sampling=sampling), deadline_s)

    def submit_payload(self, key: int, payload: PromptPayload, deadline_s: float = 0.0) -> None:
        now_us = time.monotonic_ns() // 1000
        self.send(
            Submit(
                key=key,
                payload=msgspec.json.encode(payload),
                tenant="",
                rank=1,
                weight=1.0,
                arrived_us=now_us,
                deadline_us=now_us + round(deadline_s * 1e6) if deadline_s else 0,
            )
        )

    def wait_ready(self) -> LlmReady:
        ready: LlmReady = self.wait_for(LlmReady, START_S)
        return ready

    def wait_for(self, kind: type[Any], timeout_s: float = ANSWER_S) -> Any:
        """The first message of that kind, past or future."""
        self.wait_until(lambda: any(isinstance(m, kind) for m in self.messages), timeout_s)
        return next(message for message in self.messages if isinstance(message, kind))

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = ANSWER_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"not within {timeout_s} s; exit code {self.process.poll()}"
            readable, _, _ = select.select([self.socket], [], [], left_s)
            if readable and not self.read():
                assert condition(), f"the worker left: {self.process.wait(ANSWER_S)}"

    def read(self) -> bool:
        """Take in what is there; False at the end of the socket."""
        data = self.socket.recv(1 << 16)
        self.messages += [self._decoder.decode(body) for body in self._buffer.feed(data)]
        return bool(data)

    def items_of(self, key: int) -> list[StepItem]:
        steps = [message for message in self.messages if isinstance(message, Step)]
        assert all(step.epoch == EPOCH for step in steps)
        return [item for step in steps for item in step.items if item.key == key]

    def text_of(self, key: int) -> str:
        return "".join(text for item in self.items_of(key) for text in item.texts)

    def end_of(self, key: int) -> Finish | None:
        """The end of an answer, if it has one; asserts that it has no second one."""
        ends = [item.finish for item in self.items_of(key) if item.finish is not None]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def wait_end(self, key: int) -> Finish:
        self.wait_until(lambda: self.end_of(key) is not None)
        end = self.end_of(key)
        assert end is not None
        return end

    def wait_refused(self, key: int) -> Refused:
        self.wait_until(lambda: any(refused.key == key for refused in self.refused()))
        return next(refused for refused in self.refused() if refused.key == key)

    def refused(self) -> list[Refused]:
        return [message for message in self.messages if isinstance(message, Refused)]

    def last_gauges(self) -> Gauges | None:
        gauges = [message for message in self.messages if isinstance(message, Gauges)]
        return gauges[-1] if gauges else None

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait(ANSWER_S)


@contextmanager
def llm_worker(folder: Path, **config: Any) -> Iterator[LlmWorkerProcess]:
    """A ready worker; gone afterwards."""
    worker = LlmWorkerProcess(folder, **config)
    try:
        worker.wait_ready()
        yield worker
    finally:
        worker.close()
