"""What the live bench makes of answers and metrics. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gateway.commands.scrape import Change
from loadtest import machine
from loadtest.delivery.prompt_clients import Answer
from loadtest.delivery.timer_error import TimerError

FEWEST_GAPS = 50  # of an answer that counts: of a short beginning there is no std to speak of
QUANTILES = (0.05, 0.5, 0.95, 0.99)
NUM_SHARES = 400  # of a histogram, for its std
HEADER = (
    f"{'answers':>7}{'tok/s':>7}{'gap std':>9}{'within 15':>11}   {'raw':23}{'engine':23}"
    f"{'held':>5}{'late':>6}   client's timer error"
)


class Spread(NamedTuple):
    """Of gaps, milliseconds."""

    std: float
    quantiles: list[float]  # QUANTILES

    def __str__(self) -> str:
        low, middle, high, highest = self.quantiles
        return f"{self.std:6.1f} ({low:.0f} {middle:.0f} {high:.0f} {highest:.0f})"


class Run(NamedTuple):
    """Of one run; milliseconds, and tokens per second of one reader."""

    num_answers: int
    rate_hz: float
    gap_std: float
    within: float
    raw: Spread
    engine: Spread
    held: float
    late: float
    timer_error: TimerError

    def row(self) -> str:
        return (
            f"{self.num_answers:7}{self.rate_hz:7.1f}{self.gap_std:9.2f}{self.within:11.4f}   "
            f"{self.raw!s:23}{self.engine!s:23}{self.held:5.0f}{self.late:6.1f}   "
            f"{self.timer_error}"
        )


class Burst(NamedTuple):
    """What became of the requests: those of the burst and the readers' around it."""

    per_s: float
    num_extra: int
    num_sent: int
    num_whole: int
    num_refused: int
    num_in_flight: int  # in the gateway's books, at the end
    slowest_first_s: float
    within: float  # of the readers' gaps, as above

    @property
    def num_lost(self) -> int:
        return self.num_sent - self.num_whole - self.num_refused

    def __str__(self) -> str:
        return (
            f"burst of {self.num_extra} at {self.per_s:.2f}/s: with the readers' {self.num_sent} "
            f"sent, {self.num_whole} whole, {self.num_refused} refused, {self.num_lost} lost; "
            f"{self.num_in_flight} in the books\n"
            f"slowest first token {self.slowest_first_s:.1f} s; readers' gaps within 15 % of their "
            f"pace {self.within:.4f}"
        )


def run_of(
    answers: Sequence[Answer], change: Change, timer_error: TimerError, reader_s: float
) -> Run:
    """``answers`` may be whole or not; ``change`` is the metrics' meanwhile, and ``reader_s`` the
    seconds of all readers together."""
    long = [answer for answer in answers if len(answer.arrivals) > FEWEST_GAPS]
    read = [answer.evenness_ms for answer in long]
    gaps_ms = np.concatenate([answer.gaps_ms for answer in long])
    num_paced = change.rate("clawstream_text_paced_gaps_total")
    return Run(
        num_answers=len(long),
        rate_hz=sum(len(answer.arrivals) for answer in answers) / reader_s,
        gap_std=float(np.median([each.relative_std for each in read])),
        within=share_within(long),
        raw=Spread(
            std=float(np.median([each.raw_std for each in read])),
            quantiles=[machine.percentile(gaps_ms.tolist(), share) for share in QUANTILES],
        ),
        engine=engine_gaps(change),
        held=1e3 * mean_of(change, "clawstream_text_pacing_delay_seconds"),
        late=1e3 * change.rate("clawstream_text_underruns_total") / num_paced if num_paced else 0.0,
        timer_error=timer_error,
    )


def burst_of(
    steady: Sequence[Answer],
    extra: Sequence[Answer],
    *,
    per_s: float,
    has_hole: bool,
    num_in_flight: int,
) -> Burst:
    """With a hole in any stream nothing counts as whole."""
    every = [*steady, *extra]
    return Burst(
        per_s=per_s,
        num_extra=len(extra),
        num_sent=len(every),
        num_whole=0 if has_hole else sum(answer.is_whole for answer in every),
        num_refused=sum(bool(answer.refusal) for answer in every),
        num_in_flight=num_in_flight,
        slowest_first_s=max(
            (answer.arrivals[0] - answer.sent_at for answer in every if answer.arrivals),
            default=float("nan"),
        ),
        within=share_within([answer for answer in steady if len(answer.arrivals) > FEWEST_GAPS]),
    )


def share_within(answers: Sequence[Answer]) -> float:
    """Of all their gaps."""
    return float(np.concatenate([answer.evenness_ms.is_within for answer in answers]).mean())


def engine_gaps(change: Change) -> Spread:
    """Between visible tokens, as they came from the engine; as exact as its buckets."""

    def quantile_ms(share: float) -> float:
        return 1e3 * (change.quantile("clawstream_text_gap_seconds", share) or 0.0)

    evenly = [(index + 0.5) / NUM_SHARES for index in range(NUM_SHARES)]
    return Spread(
        std=statistics.pstdev(map(quantile_ms, evenly)),
        quantiles=list(map(quantile_ms, QUANTILES)),
    )


def mean_of(change: Change, histogram: str) -> float:
    """Of what it counted between the looks."""
    count = change.rate(f"{histogram}_count")
    return change.rate(f"{histogram}_sum") / count if count else 0.0
