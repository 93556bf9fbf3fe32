"""Engines as a reader sees them: gaps between the tokens of one answer, in virtual time.

Each makes ``num_tokens`` gaps in seconds; the first one is not used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def steady(rng: np.random.Generator, num_tokens: int) -> Array:
    return rng.uniform(0.020, 0.030, num_tokens)


def stalls(rng: np.random.Generator, num_tokens: int) -> Array:
    """25 ms, and before one token in a hundred somebody's prefill of 150 to 400 ms."""
    gaps = 0.0245 * rng.lognormal(0, 0.2, num_tokens)
    is_stalled = rng.random(num_tokens) < 0.01
    return gaps + is_stalled * rng.uniform(0.150, 0.400, num_tokens)


def bursts(rng: np.random.Generator, num_tokens: int) -> Array:
    """Speculation: one to four tokens at once about every 62 ms."""
    gaps: list[float] = []
    while len(gaps) < num_tokens:
        gaps += [0.062 * rng.lognormal(0, 0.15)] + [0.0] * int(rng.integers(0, 4))
    return np.array(gaps[:num_tokens])


def surge(rng: np.random.Generator, num_tokens: int) -> Array:
    """20, 40 and again 20 ms, by thirds of the answer."""
    index = np.arange(num_tokens)
    in_middle = (index > num_tokens // 3) & (index <= 2 * num_tokens // 3)
    return np.where(in_middle, 0.040, 0.020) * rng.lognormal(0, 0.25, num_tokens)


def slow(rng: np.random.Generator, num_tokens: int) -> Array:
    return rng.normal(0.060, 0.005, num_tokens).clip(0.030)


def fast(rng: np.random.Generator, num_tokens: int) -> Array:
    return rng.uniform(0.004, 0.006, num_tokens)


def mixed(rng: np.random.Generator, num_tokens: int) -> Array:
    """Steps of 20 to 45 ms with a batch that wanders; one in fifty carries 80 ms of prefill."""
    load, gaps = rng.uniform(), np.empty(num_tokens)
    for index in range(num_tokens):
        if rng.random() < 0.05:
            load = min(1.0, max(0.0, load + rng.normal(0, 0.25)))
        chunk_s = (rng.random() < 0.02) * 0.080
        gaps[index] = 0.020 + 0.025 * load + rng.exponential(0.001) + chunk_s
    return gaps


SOURCES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    source.__name__: source for source in (steady, stalls, bursts, surge, slow, fast, mixed)
}
