"""Whose items make a batch: shares, weights, priority classes."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.batching.fair_share import AGEING_STEP_S
from engine.errors import Overloaded
from engine.types import Policy, Priority
from tests.fakes.policy_bench import PolicyBench

pytestmark = pytest.mark.unit


def test_lanes_of_equal_weight_take_turns() -> None:
    bench = PolicyBench(max_batch_size=1)
    greedy, modest = bench.lane(), bench.lane()
    for _ in range(10):
        bench.offer(greedy)
    for _ in range(4):
        bench.offer(modest)
    assert bench.served(8) == {greedy: 4, modest: 4}


def test_weights_share_in_proportion() -> None:
    bench = PolicyBench(max_batch_size=1)
    heavy, light = bench.lane(weight=3.0), bench.lane(weight=1.0)
    for _ in range(40):
        bench.offer(heavy)
        bench.offer(light)
    served = bench.served(40)
    assert abs(served[heavy] - 30) <= 1


def test_a_lane_may_fill_a_batch_when_the_others_are_empty() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    bench.lane()
    for _ in range(6):
        bench.offer(lane)
    assert bench.batch_lanes() == [lane] * 4


def test_a_batch_takes_from_every_lane_before_it_takes_twice() -> None:
    bench = PolicyBench()
    greedy, *others = [bench.lane() for _ in range(4)]
    for _ in range(6):
        bench.offer(greedy)
    for lane in others:
        bench.offer(lane)
    assert sorted(bench.batch_lanes() or ()) == [greedy, *others]


def test_a_fresh_lane_is_not_locked_out_by_old_virtual_times() -> None:
    bench = PolicyBench(max_batch_size=1)
    old = bench.lane()
    for _ in range(100):
        bench.offer(old)
        bench.batch_lanes()
    fresh = bench.lane()
    for _ in range(4):
        bench.offer(old)
        bench.offer(fresh)
    assert bench.served(4) == {old: 2, fresh: 2}


def test_an_idle_lane_saves_up_no_turns() -> None:
    bench = PolicyBench(max_batch_size=1)
    idle, busy = bench.lane(), bench.lane()
    bench.offer(idle)
    for _ in range(60):
        bench.offer(busy)
    bench.served(51)  # busy alone for a long time
    for _ in range(10):
        bench.offer(idle)
    served = bench.served(10)
    assert abs(served[idle] - served[busy]) <= 1


def test_a_lane_that_empties_and_fills_again_keeps_one_place() -> None:
    bench = PolicyBench(max_batch_size=1)
    flicker, steady = bench.lane(), bench.lane()
    for _ in range(20):
        bench.offer(steady)
    for _ in range(5):
        bench.policy.cancel(bench.offer(flicker))
    bench.offer(flicker)
    bench.offer(flicker)
    assert bench.served(4) == {flicker: 2, steady: 2}


def test_a_lane_that_was_emptied_is_passed_over() -> None:
    bench = PolicyBench(max_batch_size=1)
    emptied, other = bench.lane(), bench.lane()
    bench.policy.cancel(bench.offer(emptied))
    bench.offer(other)
    assert bench.batch_lanes() == [other]


def test_a_tiny_weight_pays_no_debt_after_everybody_was_idle() -> None:
    bench = PolicyBench(max_batch_size=1)
    tiny = bench.lane(weight=0.001)
    bench.offer(tiny)
    assert bench.batch_lanes() == [tiny]
    assert bench.batch_lanes() is None
    other = bench.lane()
    for _ in range(3):
        bench.offer(other)
    bench.offer(tiny)
    assert bench.served(2)[tiny] == 1


def test_the_urgent_class_goes_first() -> None:
    bench = PolicyBench(max_batch_size=1)
    background = bench.lane(priority=Priority.BACKGROUND)
    realtime = bench.lane(priority=Priority.REALTIME)
    bench.offer(background)
    bench.offer(realtime)
    assert bench.served(2) == {background: 1, realtime: 1}
    bench.offer(background)
    bench.offer(realtime)
    assert bench.batch_lanes() == [realtime]


@pytest.mark.parametrize("policy", [Policy.FIFO, Policy.LATEST])
def test_no_class_starves_although_a_more_urgent_one_is_never_idle(policy: Policy) -> None:
    bench = PolicyBench(max_batch_size=1)
    background = bench.lane(policy, capacity=1, priority=Priority.BACKGROUND)
    realtime = bench.lane(Policy.LATEST, capacity=1, priority=Priority.REALTIME)
    served: Counter[int] = Counter()
    for step in range(1000):  # 10 s, one batch each 10 ms
        now = step * 0.01
        bench.offer(realtime, now)
        if policy is Policy.LATEST or step == 0 or served[background]:
            try:
                bench.offer(background, now)
            except Overloaded:
                pass
        served.update(bench.batch_lanes(now))
    assert 10.0 / (3 * AGEING_STEP_S) <= served[background] <= 10.0 / AGEING_STEP_S


def test_frames_that_always_expire_do_not_make_their_class_start_its_wait_anew() -> None:
    bench = PolicyBench(max_batch_size=1)
    background = bench.lane(priority=Priority.BACKGROUND)
    realtime = bench.lane(priority=Priority.REALTIME)
    for step in range(200):
        now = step * 0.01
        bench.offer(realtime, now)
        entry = bench.offer(background, now)
        if bench.batch_lanes(now) == [background]:
            break
        bench.policy.cancel(entry)
    assert 2 * AGEING_STEP_S <= now <= 3 * AGEING_STEP_S
