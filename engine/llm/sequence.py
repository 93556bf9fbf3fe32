"""One prompt and its answer: tokens, how many of them are computed, and the blocks that hold them.

A sequence has no phases. ``num_computed`` of its ``num_tokens`` tokens have their keys and values
in the cache; a step computes some of the rest. A chunked prefill, a prefix-cache hit, a decode
step, accepted drafts and the recomputation after a preemption are all that one case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto

RELEASE_VALID_S = 1.0  # a pacer's record older than this says nothing (they come at 20 Hz)


class SequenceState(Enum):
    WAITING = auto()  # never ran; holds nothing
    RUNNING = auto()  # has a slot and blocks
    PREEMPTED = auto()  # gave slot and blocks back; keeps its tokens and its place
    ABORTING = auto()  # ended during a step; that step's commit or rollback frees its blocks
    FINISHED = auto()


class SequenceEvent(Enum):
    ADMIT = auto()
    PREEMPT = auto()
    END = auto()  # finished, cancelled or expired between steps
    ABORT = auto()  # the same, while a step runs it
    RELEASE = auto()  # that step is over


_NEXT = {
    (SequenceState.WAITING, SequenceEvent.ADMIT): SequenceState.RUNNING,
    (SequenceState.WAITING, SequenceEvent.END): SequenceState.FINISHED,
    (SequenceState.WAITING, SequenceEvent.ABORT): SequenceState.ABORTING,
    (SequenceState.RUNNING, SequenceEvent.PREEMPT): SequenceState.PREEMPTED,
    (SequenceState.RUNNING, SequenceEvent.END): SequenceState.FINISHED,
    (SequenceState.RUNNING, SequenceEvent.ABORT): SequenceState.ABORTING,
    (SequenceState.PREEMPTED, SequenceEvent.ADMIT): SequenceState.RUNNING,
    (SequenceState.PREEMPTED, SequenceEvent.END): SequenceState.FINISHED,
    (SequenceState.PREEMPTED, SequenceEvent.ABORT): SequenceState.ABORTING,
    (SequenceState.ABORTING, SequenceEvent.RELEASE): SequenceState.FINISHED,
}


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Sequence:
    """Created by the runner, then changed by the scheduler and its block pool only; the runner
    writes ``drafts``. Times are seconds on one monotonic clock.

    ``max_tokens`` None becomes what fits when the scheduler accepts the sequence. ``rank`` is
    ``Priority.rank``; ``weight`` is the tenant's share.
    """

    key: int
    prompt_ids: list[int]
    max_tokens: int | None = None
    rank: int = 1
    weight: float = 1.0
    tenant: str = ""
    arrived_at: float = 0.0
    deadline: float | None = None

    output_ids: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)  # guesses for the next step to verify
    state: SequenceState = SequenceState.WAITING
    blocks: list[int] = field(default_factory=list)  # block i holds tokens i*size..(i+1)*size-1
    block_hashes: list[bytes] = field(default_factory=list)  # of full blocks; BlockPool's memo
    salt: bytes | None = b""  # of the pool while its blocks were filled; None: it has changed
    num_computed: int = 0  # tokens whose keys and values are in ``blocks``
    num_cached: int = 0  # prompt tokens that the prefix cache spared at first admission
    num_expected_hits: int = 0  # the prefix cache's, estimated when it was accepted
    num_swapped: int = 0  # tokens whose keys and values wait in host memory
    num_preemptions: int = 0
    admitted_at: float | None = None  # first time
    is_starved: bool = False  # waited beyond its class's bound for its first start
    laxity_s: float = 0.0  # how long the reader can do without new tokens

    _released: int = 0
    _release_rate: float = 0.0
    _release_at: float = -math.inf

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("a prompt has at least one token")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {self.max_tokens}")
        if not 0.0 < self.weight < math.inf:
            raise ValueError(f"weight must be a positive finite number, got {self.weight}")

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        assert self.max_tokens is not None, "set when the scheduler accepts the sequence"
        return self.max_tokens - len(self.output_ids)

    @property
    def num_to_compute(self) -> int:
        """Known tokens that a step has yet to compute; 1 while decoding, 0 at ``max_tokens``."""
        return self.num_tokens - self.num_computed if self.num_left > 0 else 0

    @property
    def max_slots(self) -> int:
        """Cache slots it can ever fill: the last generated token is never computed."""
        assert self.max_tokens is not None, "set when the scheduler accepts the sequence"
        return len(self.prompt_ids) + self.max_tokens - 1

    def __repr__(self) -> str:
        """Short: prompts are long, and private."""
        return (
            f"<Sequence {self.key} {self.state.name} rank {self.rank}: "
            f"{self.num_computed}/{self.num_tokens} computed, {len(self.blocks)} blocks>"
        )

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Tokens ``start`` to ``stop - 1`` of prompt and output."""
        num_prompt = len(self.prompt_ids)
        if start >= num_prompt:
            return tuple(self.output_ids[start - num_prompt : stop - num_prompt])
        if stop <= num_prompt:
            return tuple(self.prompt_ids[start:stop])
        return (*self.prompt_ids[start:], *self.output_ids[: stop - num_prompt])

    def apply(self, event: SequenceEvent) -> None:
        """Raises ``ValueError`` for an event that the state does not allow; nothing changes."""
        state = _NEXT.get((self.state, event))
        if state is None:
            raise ValueError(f"sequence {self.key} is {self.state.name}: no {event.name} there")
        self.state = state

    def set_release(self, released: int, tokens_per_s: float, at: float) -> None:
        """The reader's pacer had released so many tokens at ``at`` and goes on at that rate."""
        self._released = released
        self._release_rate = tokens_per_s
        self._release_at = at

    def update_laxity(self, now: float) -> None:
        """Extrapolate the pacer's record. Without a fresh one the reader waits for every token."""
        elapsed_s = now - self._release_at
        if elapsed_s > RELEASE_VALID_S:
            self.laxity_s = 0.0
            return
        unreleased = len(self.output_ids) - self._released - self._release_rate * elapsed_s
        if unreleased <= 0.0:
            self.laxity_s = 0.0
        elif self._release_rate <= 0.0:
            self.laxity_s = math.inf  # a stalled reader
        else:
            self.laxity_s = unreleased / self._release_rate
