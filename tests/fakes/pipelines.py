"""Pipelines for tests, imported in worker processes as ``tests.fakes.pipelines:build_…``.

``build_echo`` answers ``{"bytes": n, "sum": s}`` (s = sum of the payload's bytes).

``build_scripted`` answers the same plus ``worker`` (index), ``pid``, ``batch`` (size of the batch
that it ran in) and ``began``/``ended`` of each stage (seconds, monotonic clock), and misbehaves as
told. Per item, in ``Item.options`` (JSON, all keys optional)::

    {"stage": "prepare" | "run" | "interpret",   where the rest happens; default run
     "sleep_s": 0.2,                             sleep first
     "act": "invalid" | "raise" | "abort" | "exit" | "hang" | "keep" | "bloat",
     "bloat_mb": 64,                             memory that ``bloat`` takes and never gives back
     "once": "/path/that/does/not/exist",        act only if this file can be created
     "answer_bytes": 1000,                       pad the answer
     "annotate": "boxes"}                        attach an annotated frame of 16 bytes

Per model, in ``Manifest.options``::

    {"run_s": 0.01,                              every run sleeps so long
     "slow_worker": 1, "slow_run_s": 0.3,        but this worker so long
     "warm_up_s": 0.001,                         time of one made-up batch
     "start": "hang" | "raise" | "startup_error" | "abort",
     "start_worker": 0,                          only this worker misbehaves at start
     "start_once": "/path",                      only if this file can be created
     "bloat_mb": 64}                             take so much memory at each SIGUSR1
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, StartupError
from engine.manifest import Manifest
from engine.pipeline import Output, Resources
from engine.types import Attachment, AttachmentKind

HANG_S = 3600.0
KEPT: list[NDArray[np.uint8]] = []
BLOAT: list[bytes] = []


def worker_index() -> int:
    return int(os.environ.get("CLAWSTREAM_WORKER", "0"))


class Echo:
    """Says how many bytes came and their sum; used where the payload's integrity matters."""

    def warm_up(self, batch_size: int) -> None:
        self.run([{"bytes": 0, "sum": 0}] * batch_size)

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> dict[str, int]:
        return {"bytes": len(payload), "sum": sum(payload)}

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        return list(batch)

    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        return Output(data=json.dumps(raw).encode())


class Scripted:
    """Does what the item's options say, in the stage that they name."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._run_s = float(options.get("run_s", 0.0))
        if options.get("slow_worker") == worker_index():
            self._run_s = float(options["slow_run_s"])
        self._warm_up_s = float(options.get("warm_up_s", 0.0))
        if "bloat_mb" in options:
            size_mb = int(options["bloat_mb"])
            signal.signal(signal.SIGUSR1, lambda *_: bloat(size_mb))

    def warm_up(self, batch_size: int) -> None:
        time.sleep(self._warm_up_s)

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> dict[str, Any]:
        began = time.monotonic()
        script = json.loads(options) if options else {}
        act(script, "prepare", payload)
        answer = {
            "bytes": len(payload),
            "sum": sum(payload),
            "worker": worker_index(),
            "pid": os.getpid(),
            "prepare": [began, time.monotonic()],
        }
        return {"script": script, "answer": answer}

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        began = time.monotonic()
        time.sleep(self._run_s)
        for prepared in batch:
            act(prepared["script"], "run", None)
        return [{"batch": len(batch), "run": [began, time.monotonic()]} for _ in batch]

    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        script = prepared["script"]
        act(script, "interpret", None)
        answer = {**prepared["answer"], **raw, "pad": "x" * script.get("answer_bytes", 0)}
        attachments: tuple[Attachment, ...] = ()
        if script.get("annotate"):
            kind, meta = AttachmentKind.ANNOTATED_FRAME, b'{"width":4,"height":4,"codec":"jpeg"}'
            attachments = (Attachment(kind=kind, meta=meta, payload=bytes(range(16))),)
        return Output(data=json.dumps(answer).encode(), attachments=attachments)


def act(script: Mapping[str, Any], stage: str, payload: memoryview | None) -> None:
    """Misbehave if ``script`` names this stage."""
    if script.get("stage", "run") != stage:
        return
    time.sleep(float(script.get("sleep_s", 0.0)))
    if "once" in script and not created(script["once"]):
        return
    match script.get("act"):
        case "invalid":
            raise InvalidInput("the script says so")
        case "raise":
            raise RuntimeError("scripted failure")
        case "abort":
            os.abort()
        case "exit":
            os._exit(7)
        case "hang":
            time.sleep(HANG_S)
        case "keep" if payload is not None:
            KEPT.append(np.frombuffer(payload, np.uint8))
        case "bloat":
            bloat(int(script.get("bloat_mb", 64)))
        case None:
            pass
        case other:
            raise ValueError(f"unknown act {other!r}")


def bloat(size_mb: int) -> None:
    """Take memory, every page of it, and never give it back."""
    BLOAT.append(b"x" * (size_mb << 20))


def created(path: str) -> bool:
    """Create the file; False if it was there (processes race for it at most once)."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def build_echo(manifest: Manifest, resources: Resources) -> Echo:
    return Echo()


def build_scripted(manifest: Manifest, resources: Resources) -> Scripted:
    options = manifest.options
    here = options.get("start_worker", worker_index()) == worker_index()
    is_due = "start_once" not in options or created(options["start_once"])
    if "start" in options and here and is_due:
        misbehave_at_start(options["start"])
    return Scripted(options)


def misbehave_at_start(how: str) -> None:
    match how:
        case "hang":
            time.sleep(HANG_S)
        case "raise":
            raise RuntimeError("scripted failure at start")
        case "startup_error":
            raise StartupError("the scripted model needs a frobnicator: install frobnicator")
        case "abort":
            os.abort()
        case other:
            raise ValueError(f"unknown start {other!r}")
