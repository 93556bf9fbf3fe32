"""The constants of the token pacer; docs/decisions/009-token-pacer.md shows what each was tuned on.

Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of a stream whose engine has not been seen yet.
GAP_PRIOR_S = 0.030
LATENESS_PRIOR_S = 0.42  # a stall that comes once in 100 tokens cannot be learnt in time


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerSettings:
    """``fastest_s`` and ``slowest_s`` are the paces to keep between; a source that is slower than
    ``slowest_s`` is followed. ``lag_cap_s`` bounds how long a token is held."""

    fastest_s: float = 0.020
    slowest_s: float = 0.050
    lag_cap_s: float = 0.600
    slew: float = 0.03  # largest relative change of the pace from one gap to the next
    catch_up: float = 0.10  # a gap may be this much shorter than its pace after a late timer
    start_ratio: float = 1.35  # first pace / expected gap of the source
    least_reserve_s: float = 0.04
    # A full reserve, stretched by slewing while it drains, must stay under the cap.
    most_reserve_share: float = 0.7  # of the cap
    lateness_gain: float = 1.2  # wanted reserve / lateness seen
    fill_tokens: float = 8.0  # a missing reserve is filled over about this many tokens ...
    drain_tokens: float = 40.0  # ... and a surplus is given back more gently
    yield_ratio: float = 0.8  # pace / source's gap when the source ignores its credit
    follow_ratio: float = 1.15  # slowest pace / gap of a source that is slower than the range
    congested_texts: int = 4  # pieces per event while the network is congested

    def __post_init__(self) -> None:
        if not 0.0 < self.fastest_s <= self.slowest_s < self.lag_cap_s:
            raise ValueError(
                f"paces {self.fastest_s} and {self.slowest_s} and cap {self.lag_cap_s} must rise"
            )
