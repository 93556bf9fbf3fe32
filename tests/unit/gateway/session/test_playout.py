from __future__ import annotations

from itertools import pairwise

import pytest

from engine.types import Result
from gateway.session.clock import Clock
from gateway.session.playout import Playout
from tests.fakes.scripted_engine import a_result
from tests.fakes.virtual_loop import VirtualLoop

pytestmark = pytest.mark.unit

PERIOD_S = 0.04


class Screen:
    """Notes when each result is shown. The camera's clock is the loop's."""

    def __init__(self, *, max_delay_s: float = 0.25) -> None:
        self.loop = VirtualLoop()
        self.clock = Clock(self.loop)
        self.shown: list[tuple[int, float]] = []
        self.playout = Playout(self.clock, max_delay_s=max_delay_s, release=self._show)

    def _show(self, seq: int, _: Result) -> None:
        self.shown.append((seq, self.loop.time()))


def run(screen: Screen, delays_s: list[float]) -> None:
    """Frames every ``PERIOD_S``, whose results take that long."""
    start = screen.loop.time()
    for seq, delay_s in enumerate(delays_s):
        captured_at = start + seq * PERIOD_S
        screen.loop.advance(max(0.0, captured_at + delay_s - screen.loop.time()))
        screen.playout.put(seq, int(captured_at * 1e6), None, a_result())
    screen.loop.advance(1.0)


def test_results_wait_for_their_turn_and_leave_evenly() -> None:
    screen = Screen()
    run(screen, [0.06, 0.02] * 40)
    assert [seq for seq, _ in screen.shown] == list(range(80))
    times = [at for _, at in screen.shown]
    gaps = [b - a for a, b in pairwise(times[2:])]
    assert all(gap == pytest.approx(PERIOD_S, abs=1e-6) for gap in gaps)


def test_nothing_waits_longer_than_its_deadline() -> None:
    screen = Screen()
    run(screen, [0.2] + [0.01] * 10)
    before = screen.loop.time()
    captured_at = before - 0.01
    screen.playout.put(99, int(captured_at * 1e6), before + 0.005, a_result())
    screen.loop.advance(1.0)
    assert screen.shown[-1] == (99, pytest.approx(before + 0.005))


def test_what_is_withdrawn_is_not_shown_and_the_rest_is_on_time() -> None:
    screen = Screen()
    run(screen, [0.2] * 10)
    now = screen.loop.time()
    for seq in (20, 21, 22):
        screen.playout.put(seq, int((now + (seq - 20) * 0.01 - 0.05) * 1e6), None, a_result())
    assert screen.playout.seqs == (20, 21, 22)
    screen.playout.withdraw(20)
    screen.playout.withdraw(77)
    screen.loop.advance(1.0)
    assert [seq for seq, _ in screen.shown[-2:]] == [21, 22]


def test_cleared_it_shows_nothing_and_leaves_no_timer() -> None:
    screen = Screen()
    run(screen, [0.2] * 10)
    screen.playout.put(20, int((screen.loop.time() - 0.01) * 1e6), None, a_result())
    screen.playout.clear()
    screen.playout.clear()
    assert len(screen.clock) == 0
    screen.loop.advance(1.0)
    assert screen.shown[-1][0] == 9
