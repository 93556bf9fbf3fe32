"""What the language-model client and its worker say to each other (msgpack, length-prefixed).

Down: ``StartLlm`` once, then ``Submit``, ``CancelKeys``, ``ReleaseTable`` and ``UseCheaper``, at
last ``FinishLlm``. Up: ``LlmReady`` or ``LlmStartFailed`` once, then one ``Step`` per step that has
news, ``Refused`` for a prompt that never ran, and ``Gauges`` a few times a second.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.log_format import LogFormat
from engine.manifest import Manifest

MAX_UP_BYTES = 4 * 1024 * 1024  # of one message; a step of 32 answers has a few kB


class StartLlm(msgspec.Struct, frozen=True, tag=0, array_like=True, kw_only=True):
    """Everything a worker needs; ``config`` is ``engine.config.LlmConfig`` as a mapping."""

    manifest: Manifest
    config: dict[str, Any]
    epoch: int
    log_level: int
    log_format: LogFormat


class Submit(msgspec.Struct, frozen=True, tag=1, array_like=True, kw_only=True):
    """One prompt. ``payload`` is JSON of ``PromptPayload``. ``deadline_us`` is on the monotonic
    clock, which all processes of a machine share; 0 means none."""

    key: int
    payload: bytes
    tenant: str
    rank: int  # Priority.rank
    weight: float
    arrived_us: int
    deadline_us: int


class CancelKeys(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Stop these; nothing is answered for them any more."""

    keys: tuple[int, ...]


class Release(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream's pacer is: tokens released to the reader, and its rate."""

    key: int
    released: int
    tokens_per_s: float
    at_us: int


class ReleaseTable(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """Sent at 20 Hz for streams with a pacer; the worker extrapolates in between."""

    releases: tuple[Release, ...]


class FinishLlm(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """Answer what runs, then exit with code 0."""


class LlmReady(msgspec.Struct, frozen=True, tag=5, array_like=True, kw_only=True):
    """Loaded and warm."""

    device: str
    weights: str  # precision in use
    num_blocks: int
    block_size: int
    max_seq_length: int
    vocabulary: int
    cheaper_weights: str = ""  # in memory too, for steps under pressure; empty: none


class LlmStartFailed(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """``detail`` says what is missing and how to fix it."""

    detail: str


class Finish(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The end of one answer."""

    reason: str  # stop | length | content_filter | deadline | error
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    detail: str = ""  # with error: for the caller, or a log reference
    is_cheaper: bool = False  # some of it was computed with the cheaper weights


class StepItem(msgspec.Struct, frozen=True, array_like=True):
    """News of one sequence: ``texts[i]`` is what token ``i`` of this step made visible (it may be
    empty while bytes or a possible stop string are held back)."""

    key: int
    texts: tuple[str, ...]
    finish: Finish | None = None


class Step(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """Everything new after one step."""

    epoch: int
    step: int
    items: tuple[StepItem, ...]


class Refused(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """The prompt never ran, or its upstream server gave it up. ``code`` is that of an
    ``engine.errors`` class; ``retry_after_s`` 0 leaves the choice to the client's side."""

    key: int
    code: str
    detail: str
    retry_after_s: float = 0.0


class Gauges(msgspec.Struct, frozen=True, tag=9, array_like=True, kw_only=True):
    """Snapshot of the worker; counters only grow within an epoch. Times in seconds."""

    running: int
    waiting: int
    blocks_total: int
    blocks_owned: int
    blocks_cached: int
    fragmentation: float  # share of owned block slots that hold no token
    steps: int
    tokens: int
    prompt_tokens: int
    cached_prompt_tokens: int
    preemptions: int
    starvations: int
    swap_s: float  # time spent on preemption copies and recomputation bookkeeping
    queue_p99_s: float
    batch_mean: float
    step_p50_s: float
    step_p99_s: float
    drafted: int = 0
    accepted: int = 0
    histograms: dict[str, tuple[int, ...]] = {}  # name -> cumulative bucket counts
    histogram_sums: dict[str, float] = {}
    is_cheaper: bool = False  # steps run with the cheaper weights


class UseCheaper(msgspec.Struct, frozen=True, tag=10, array_like=True):
    """Run with the cheaper weights from the next step on, or with the usual ones again."""

    is_on: bool


Down = StartLlm | Submit | CancelKeys | ReleaseTable | FinishLlm | UseCheaper
Up = LlmReady | LlmStartFailed | Step | Refused | Gauges
