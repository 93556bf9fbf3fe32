"""A sequence together with what it takes to choose its tokens and to tell them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from torch import Tensor

from engine.llm.answer import Answer
from engine.llm.request import Sampling
from engine.llm.sequence import Sequence
from engine.llm.speculation import LookAhead


@dataclass(slots=True, eq=False, kw_only=True)
class Generation:
    """Made where the prompt is tokenised, then the runner's alone; ``answer`` is the text
    thread's. Times are seconds on the monotonic clock, None until they come."""

    sequence: Sequence
    sampling: Sampling
    answer: Answer
    look_ahead: LookAhead | None = None
    seen: Tensor | None = None  # words of prompt and output, for a repetition penalty
    seed: int = field(init=False)
    started_at: float | None = None  # first in a step
    first_token_at: float | None = None
    last_token_at: float | None = None
    is_cheaper: bool = False  # a step computed some of it with the cheaper weights

    def __post_init__(self) -> None:
        seed = self.sampling.seed
        self.seed = secrets.randbits(63) if seed is None else seed

    @property
    def key(self) -> int:
        return self.sequence.key
