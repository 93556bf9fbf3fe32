"""Policies side by side on synthetic engines, in virtual time: no sockets, no real clock.

Per source 120 answers of 300 tokens from each of three seeds; every timer fires uniformly within
±1 ms of its deadline; each answer cold, before an engine that honours credit. The same traces for
everybody. The optimum knows the future, and is computed for the first seed.

raw std, rel std   of gaps, and of gaps less the announced pace: median answer, ms
<5                 share of the answers where that is below 5 ms, %
±15 %              share of the gaps within 15 % of the announced pace
lag                release less arrival, ms: mean, p95 of each answer's worst, p95 of its last
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadtest.delivery.evenness import evenness
from loadtest.delivery.optimum import least_std_ms
from loadtest.delivery.policies import (
    Delivery,
    Policy,
    Warm,
    grid,
    ours,
    pass_through,
    smooth_stream,
    token_bucket,
)
from loadtest.delivery.sources import SOURCES, Array

NUM_ANSWERS = 120
NUM_TOKENS = 300
SEEDS = (7, 8, 9)
NOISE_S = 0.001
SMOOTH_MS = 5.0

_HEADER = (
    f"{'source':9}{'policy':14}{'raw std':>8}{'<5':>5}{'rel std':>9}{'<5':>5}{'±15 %':>8}"
    f"{'tok/s':>7}{'lag':>6}{'p95':>6}{'end':>6}"
)


class Summary(NamedTuple):
    """How one policy did on one source."""

    raw_std_ms: float
    raw_share: float
    relative_std_ms: float
    relative_share: float
    within_share: float
    tokens_per_s: float
    mean_lag_ms: float
    max_lag_p95_ms: float
    end_lag_p95_ms: float
    first_lag_ms: float

    def row(self) -> str:
        return (
            f"{self.raw_std_ms:8.1f}{100 * self.raw_share:5.0f}"
            f"{self.relative_std_ms:9.1f}{100 * self.relative_share:5.0f}"
            f"{100 * self.within_share:8.1f}{self.tokens_per_s:7.1f}"
            f"{self.mean_lag_ms:6.0f}{self.max_lag_p95_ms:6.0f}{self.end_lag_p95_ms:6.0f}"
        )


def run() -> dict[str, float]:
    """Print the table; the figures for the RESULT line."""
    figures: dict[str, float] = {}
    print(_HEADER)
    for index, name in enumerate(SOURCES):
        gaps, noise = make_traces(index)
        policies: dict[str, Policy] = {
            "pass-through": pass_through,
            "smoothStream": smooth_stream,
            "token bucket": token_bucket,
            "grid 30/s": grid,
            "ours": ours,
            "ours, warm": Warm(),
        }
        for policy_name, policy in policies.items():
            summary = summarise([policy(*trace) for trace in zip(gaps, noise, strict=True)])
            print(f"{name:9}{policy_name:14}{summary.row()}")
            if policy is ours:
                figures |= _figures(name, summary)
        if name != "fast":  # there the engine's own speed is what has to give
            least = least_std_ms(gaps[:NUM_ANSWERS])
            share = 100 * np.mean(least < SMOOTH_MS)
            print(f"{name:9}{'optimum':14}{'':13}{np.median(least):9.1f}{share:5.0f}")
        print(flush=True)
    return figures


def make_traces(index: int) -> tuple[Array, Array]:
    """Gaps of the source with that index, and what its timers miss; one answer per row."""
    source = list(SOURCES.values())[index]
    all_gaps, all_noise = [], []
    for seed in SEEDS:
        rng = np.random.default_rng([seed, index])
        gaps = np.array([source(rng, NUM_TOKENS) for _ in range(NUM_ANSWERS)])
        gaps[:, 0] = 0.0
        all_gaps.append(gaps)
        all_noise.append(rng.uniform(-NOISE_S, NOISE_S, gaps.shape))
    return np.concatenate(all_gaps), np.concatenate(all_noise)


def summarise(deliveries: list[Delivery]) -> Summary:
    gaps = np.array([np.diff(d.releases) for d in deliveries]) * 1e3
    paces = np.array([d.paces for d in deliveries]) * 1e3
    lags = np.array([d.releases - d.arrivals for d in deliveries]) * 1e3
    assert np.all(lags > -1e-6), "released before it was there"
    raw, relative, is_within = evenness(gaps, paces)
    return Summary(
        raw_std_ms=float(np.median(raw)),
        raw_share=float(np.mean(raw < SMOOTH_MS)),
        relative_std_ms=float(np.median(relative)),
        relative_share=float(np.mean(relative < SMOOTH_MS)),
        within_share=float(np.mean(is_within)),
        tokens_per_s=float(1e3 / gaps.mean()),
        mean_lag_ms=float(lags.mean()),
        max_lag_p95_ms=float(np.percentile(lags.max(axis=1), 95)),
        end_lag_p95_ms=float(np.percentile(lags[:, -1], 95)),
        first_lag_ms=float(lags[:, 0].max()),
    )


def _figures(source: str, summary: Summary) -> dict[str, float]:
    return {
        f"{source}_relative_std_below_5": summary.relative_share,
        f"{source}_within_15": summary.within_share,
        f"{source}_end_lag_p95_ms": summary.end_lag_p95_ms,
        f"{source}_first_lag_ms": summary.first_lag_ms,
    }
