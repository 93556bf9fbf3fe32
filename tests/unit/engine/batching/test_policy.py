"""When a batch closes, deadlines, bounds."""

from __future__ import annotations

import pytest

from engine.batching.policy import ACTIVITY_HORIZON_S
from engine.errors import Overloaded
from engine.types import Policy, Priority
from tests.fakes.policy_bench import WINDOW_S, PolicyBench

pytestmark = pytest.mark.unit


# --- when a batch closes


def test_nothing_queued_is_no_batch_and_no_wakeup() -> None:
    bench = PolicyBench()
    bench.lane()
    assert bench.policy.next_batch(0.0) is None
    assert bench.policy.next_wakeup(0.0) is None


def test_a_single_stream_never_waits() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.0) == [lane]


def test_a_batch_waits_for_the_other_live_lanes_until_the_window_is_over() -> None:
    bench = PolicyBench()
    first, second = bench.lane(), bench.lane()
    bench.offer(second, now=0.0)
    bench.batch_lanes(now=0.0)

    bench.offer(first, now=1.0)
    assert bench.batch_lanes(now=1.0) is None
    assert bench.policy.next_wakeup(1.0) == 1.0 + WINDOW_S
    assert bench.batch_lanes(now=1.0 + WINDOW_S) == [first]


def test_a_batch_with_every_live_lane_goes_at_once() -> None:
    bench = PolicyBench()
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.0) == lanes


def test_a_lane_that_went_quiet_is_not_waited_for() -> None:
    bench = PolicyBench()
    quiet, active = bench.lane(), bench.lane()
    bench.offer(quiet, now=0.0)
    bench.batch_lanes(now=0.0)
    now = ACTIVITY_HORIZON_S + 0.1
    bench.offer(active, now=now)
    assert bench.batch_lanes(now=now) == [active]


def test_an_old_item_goes_although_no_lane_is_live() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    bench.offer(lane, now=0.0)
    assert bench.batch_lanes(now=ACTIVITY_HORIZON_S + 0.1) == [lane]


def test_a_closed_lane_is_not_waited_for() -> None:
    bench = PolicyBench()
    closed, active = bench.lane(), bench.lane()
    bench.offer(closed, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(active, now=1.0)
    assert bench.batch_lanes(now=1.0) is None
    bench.policy.remove_lane(closed)
    assert bench.batch_lanes(now=1.0) == [active]


def test_a_full_batch_goes_at_once() -> None:
    bench = PolicyBench(max_batch_size=2)
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(lanes[0], now=0.001)  # lanes[2] still waits
    assert bench.batch_lanes(now=0.001) == [lanes[2], lanes[0]]


def test_the_window_opens_at_the_first_item_and_a_trickle_does_not_move_it() -> None:
    bench = PolicyBench(max_batch_size=100)
    trickle, other = bench.lane(Policy.LATEST, capacity=1), bench.lane()
    bench.offer(other, now=0.0)
    bench.batch_lanes(now=0.0)
    for step in range(4):
        bench.offer(trickle, now=1.0 + step * 0.001)  # replaces itself
    assert bench.policy.next_wakeup(1.004) == 1.0 + WINDOW_S


def test_items_that_waited_for_a_worker_go_as_soon_as_there_is_one() -> None:
    bench = PolicyBench()
    first, second = bench.lane(), bench.lane()
    bench.offer(second, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(first, now=1.0)
    assert bench.batch_lanes(now=1.2) == [first]


def test_a_batch_closes_early_enough_for_its_nearest_deadline() -> None:
    bench = PolicyBench(max_batch_size=8, run_s=0.002)
    first, second = bench.lane(), bench.lane()
    bench.offer(second, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(first, now=1.0, deadline=1.005)
    closes_at = bench.policy.next_wakeup(1.0) or 0.0
    assert closes_at == pytest.approx(1.003)
    assert bench.batch_lanes(now=1.0) is None
    assert bench.batch_lanes(now=closes_at) == [first]


def test_the_measured_curve_limits_the_batch() -> None:
    bench = PolicyBench(max_batch_size=8)
    bench.cost.seed({1: 0.042, 2: 0.095, 4: 0.211, 8: 0.470})
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane)
    assert [bench.batch_lanes() for _ in range(4)] == [[lanes[0]], [lanes[1]], [lanes[2]], None]


# --- deadlines


def test_an_item_for_which_it_is_too_late_does_not_take_a_viable_ones_place() -> None:
    bench = PolicyBench(max_batch_size=1, run_s=0.030)
    lane, other = bench.lane(), bench.lane()
    late = bench.offer(lane, now=0.0, deadline=1.010)
    viable = bench.offer(lane, now=0.0, deadline=2.0)
    bench.offer(other, now=0.0, deadline=2.0)
    assert bench.policy.next_batch(1.0) == [viable]
    assert bench.batch_lanes(now=1.0) == [other]
    assert bench.policy.next_batch(1.0) == [late]  # better than to do nothing


def test_a_lane_with_nothing_viable_keeps_its_place_in_the_queue() -> None:
    bench = PolicyBench(max_batch_size=1, run_s=0.030)
    lane, other = bench.lane(), bench.lane()
    bench.offer(lane, now=0.0, deadline=1.010)
    for _ in range(3):
        bench.offer(other, now=0.0, deadline=2.0)
    assert bench.batch_lanes(now=1.0) == [other]
    bench.offer(lane, now=1.0, deadline=2.0)
    assert bench.batch_lanes(now=1.0) == [lane]


# --- bounds


def test_a_full_model_refuses_and_says_when_to_come_back() -> None:
    bench = PolicyBench(max_queued=2, run_s=0.1, max_batch_size=1)
    lane = bench.lane()
    bench.offer(lane)
    bench.offer(lane)
    with pytest.raises(Overloaded) as caught:
        bench.offer(lane)
    assert caught.value.retry_after_s == pytest.approx(0.2)
    assert bench.policy.num_queued == 2


def test_a_full_model_still_lets_a_stream_replace_its_frame() -> None:
    bench = PolicyBench(max_queued=1)
    lane = bench.lane(Policy.LATEST, capacity=1)
    old = bench.offer(lane)
    assert bench.policy.offer(bench.entry(lane)) is old
    assert bench.policy.num_queued == 1


def test_cancel_finds_what_is_queued_and_nothing_else() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    entry = bench.offer(lane)
    assert bench.policy.cancel(entry)
    assert not bench.policy.cancel(entry)
    assert bench.policy.num_queued == 0
    bench.policy.remove_lane(lane)
    assert not bench.policy.cancel(entry)


def test_a_removed_lane_takes_what_it_held_with_it() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    for _ in range(3):
        bench.offer(lane)
    bench.policy.remove_lane(lane)
    assert bench.policy.num_queued == bench.policy.num_lanes == 0
    assert bench.policy.next_batch(9.0) is None


def test_abandoned_lanes_leave_nothing_behind() -> None:
    bench = PolicyBench()
    blocker = bench.lane()
    bench.offer(blocker)
    for _ in range(1000):
        lane = bench.lane()
        bench.offer(lane)
        bench.policy.remove_lane(lane)
    assert bench.policy.num_lanes == bench.policy.num_queued == 1
    share = bench.policy._shares[Priority.STANDARD]
    assert len(share._heap) == len(bench.policy._recent) == 1
