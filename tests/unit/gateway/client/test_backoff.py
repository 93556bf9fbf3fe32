"""Backoff and the close codes that allow it."""

from __future__ import annotations

import random

import pytest

from gateway.client.backoff import Backoff, may_reconnect

pytestmark = pytest.mark.unit


class Highest(random.Random):
    """Draws the end of every range."""

    def uniform(self, a: float, b: float) -> float:
        return b


def test_delays_double_up_to_the_cap_and_start_again_after_a_reset() -> None:
    backoff = Backoff(base_s=0.5, cap_s=3.0, source=Highest())
    assert [backoff.next_delay_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.attempt == 5
    backoff.reset()
    assert backoff.next_delay_s() == 0.5


def test_quick_attempts_under_a_tight_cap_do_not_lengthen_the_waits_after_it() -> None:
    backoff = Backoff(base_s=0.5, cap_s=30.0, source=Highest())
    assert [backoff.next_delay_s(0.025) for _ in range(40)] == [0.025] * 40
    assert [backoff.next_delay_s() for _ in range(2)] == [0.5, 1.0]
    assert backoff.attempt == 42


def test_jitter_is_full() -> None:
    draws = []
    for seed in range(200):
        backoff = Backoff(base_s=1.0, source=random.Random(seed))
        draws.append(backoff.next_delay_s())
    assert min(draws) < 0.1
    assert max(draws) > 0.9


def test_long_outage_does_not_overflow() -> None:
    backoff = Backoff(cap_s=30.0, source=Highest())
    assert [backoff.next_delay_s() for _ in range(2000)][-1] == 30.0


@pytest.mark.parametrize("code", [1001, 1006, 1011, 1012, 1013, 4000, 4008, 4499])
def test_client_comes_back_after(code: int) -> None:
    assert may_reconnect(code)


@pytest.mark.parametrize("code", [1000, 1002, 1005, 1007, 1009, 3999, 4500, 4510, 4999])
def test_client_stays_away_after(code: int) -> None:
    assert not may_reconnect(code)
