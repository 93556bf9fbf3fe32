"""When a batch closes, deadlines, bounds."""

from __future__ import annotations

import itertools

import pytest

from engine.batching.arrivals import PEAK_SPAN_S
from engine.batching.policy import ACTIVITY_HORIZON_S, TURN_PERIOD_S
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


def test_a_batch_waits_for_callers_who_come_back_until_the_window_is_over() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    bench.policy.note_demand(2, 1.0)  # a moment ago, two items were unanswered
    bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.0) is None
    assert bench.policy.next_wakeup(1.0) == 1.0 + WINDOW_S
    assert bench.batch_lanes(now=1.0 + WINDOW_S) == [lane]


def test_a_batch_goes_as_soon_as_everybody_who_waits_for_answers_is_in() -> None:
    bench = PolicyBench(max_batch_size=64)
    lane = bench.lane()
    bench.policy.note_demand(3, 1.0)
    bench.offer(lane, now=1.0)
    bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.0) is None
    bench.offer(lane, now=1.001)
    assert bench.batch_lanes(now=1.001) == [lane] * 3


def test_callers_who_left_are_not_waited_for_long() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    bench.policy.note_demand(8, 1.0)
    bench.offer(lane, now=1.0 + 2 * PEAK_SPAN_S)
    assert bench.batch_lanes(now=1.0 + 2 * PEAK_SPAN_S) == [lane]


def test_a_batch_with_every_live_lane_full_goes_at_once() -> None:
    bench = PolicyBench()
    bench.policy.note_demand(9, 1.0)
    lanes = [bench.lane(Policy.LATEST, capacity=1) for _ in range(3)]
    for lane in lanes:
        bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.0) == lanes


def test_lanes_that_are_quiet_or_closed_are_not_waited_for() -> None:
    bench = PolicyBench()
    quiet, closed, active = [bench.lane(Policy.LATEST, capacity=1) for _ in range(3)]
    bench.offer(quiet, now=0.0)
    bench.batch_lanes(now=0.0)
    now = ACTIVITY_HORIZON_S + 0.1
    bench.offer(closed, now=now)
    bench.batch_lanes(now=now)
    bench.policy.note_demand(9, now)
    bench.offer(active, now=now)
    assert bench.batch_lanes(now=now) is None
    bench.policy.remove_lane(closed)
    assert bench.batch_lanes(now=now) == [active]


def test_an_old_item_goes_although_no_lane_is_live() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    bench.offer(lane, now=0.0)
    assert bench.batch_lanes(now=ACTIVITY_HORIZON_S + 0.1) == [lane]


def test_a_full_batch_goes_at_once() -> None:
    bench = PolicyBench(max_batch_size=2)
    lanes = [bench.lane(), bench.lane()]
    bench.policy.note_demand(9, 0.0)
    for lane in lanes:
        bench.offer(lane, now=0.0)
    assert bench.batch_lanes(now=0.0) == lanes


def test_the_window_opens_at_the_first_item_and_a_trickle_does_not_move_it() -> None:
    bench = PolicyBench(max_batch_size=100)
    trickle = bench.lane(Policy.LATEST, capacity=2)
    bench.policy.note_demand(9, 1.0)
    for step in range(4):
        bench.offer(trickle, now=1.0 + step * 0.001)  # replaces itself
    bench.lane()
    bench.offer(bench.lane(), now=1.003)
    assert bench.policy.next_wakeup(1.004) == 1.0 + WINDOW_S


def test_items_that_waited_for_a_worker_go_as_soon_as_there_is_one() -> None:
    bench = PolicyBench()
    lane = bench.lane()
    bench.policy.note_demand(9, 1.2)
    bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.2) == [lane]


def arrivals(bench: PolicyBench, per_second: float, until: float) -> None:
    """So many a second for a second, each answered at once."""
    lane = bench.lane(Policy.LATEST, capacity=9)
    for number in range(int(per_second)):
        now = until - 1.0 + number / per_second
        bench.offer(lane, now)
        while bench.batch_lanes(now + WINDOW_S):
            pass
    bench.policy.note_demand(99, until)


def test_where_no_company_is_to_be_expected_within_the_window_nobody_waits() -> None:
    bench = PolicyBench(max_batch_size=8)
    arrivals(bench, per_second=100.0, until=1.0)
    bench.offer(lane := bench.lane(), now=1.0)
    assert bench.batch_lanes(now=1.0) == [lane]


def test_the_window_is_no_longer_than_the_batch_takes_to_fill_up() -> None:
    bench = PolicyBench(max_batch_size=4)
    arrivals(bench, per_second=2000.0, until=1.0)
    bench.offer(bench.lane(), now=1.0)
    assert bench.policy.next_wakeup(1.0) == pytest.approx(1.0 + 3 / 2000.0, rel=0.05)


def test_the_windows_end_does_not_move_with_the_question() -> None:
    bench = PolicyBench(max_batch_size=4)
    arrivals(bench, per_second=2000.0, until=1.0)
    bench.offer(bench.lane(), now=1.0)
    assert len({bench.policy.next_wakeup(1.0 + number / 10_000) for number in range(10)}) == 1


def test_a_busy_worker_does_not_move_the_closing_with_the_question() -> None:
    bench = PolicyBench(max_batch_size=8, run_s=0.002)
    bench.policy.note_demand(9, 1.0)
    bench.offer(bench.lane(), now=1.0, deadline=1.005)
    times = [1.0 + number / 10_000 for number in range(10)]
    free_at = 1.003 - 1e-9
    assert len({bench.policy.next_wakeup(now, wait_s=free_at - now) for now in times}) == 1


def test_a_batch_closes_early_enough_for_its_nearest_deadline() -> None:
    bench = PolicyBench(max_batch_size=8, run_s=0.002)
    lane = bench.lane()
    bench.policy.note_demand(9, 1.0)
    bench.offer(lane, now=1.0, deadline=1.005)
    assert bench.policy.next_wakeup(1.0) == pytest.approx(1.003)
    assert bench.policy.next_wakeup(1.0, wait_s=0.002) == pytest.approx(1.003)
    assert bench.policy.next_wakeup(1.0, wait_s=0.004) == 1.0  # hardly in time if it goes now
    assert bench.batch_lanes(now=1.0) is None
    assert bench.batch_lanes(now=1.0031) == [lane]


def test_the_measured_curve_limits_the_batch() -> None:
    bench = PolicyBench(max_batch_size=8)
    bench.cost.seed({1: 0.042, 2: 0.095, 4: 0.211, 8: 0.470})
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane)
    assert [bench.batch_lanes() for _ in range(4)] == [[lanes[0]], [lanes[1]], [lanes[2]], None]


# --- shape buckets


def served_sizes(
    per_item_s: float,
    per_batch_s: float,
    num_queued: int,
    *,
    in_company: float = 1.0,
    really_in_company: float = 1.0,
    num_batches: int = 1000,
) -> list[int]:
    """Batches of a backlog that never ends, of a model whose warm-up saw no cost of a batch, and an
    item take ``in_company`` times as long when it is not alone."""
    bench = PolicyBench(max_batch_size=8)
    warm_up = {size: per_item_s * size * in_company for size in (2, 4, 8)}
    bench.cost.seed({1: per_item_s, **warm_up})
    lane, sizes = bench.lane(), []
    for _ in range(num_batches):
        while bench.policy.num_queued < num_queued:
            bench.offer(lane)
        size = len(bench.batch_lanes(now=0.0) or [])
        factor = really_in_company if size > 1 else 1.0
        bench.cost.observe_run(size, per_item_s * size * factor + per_batch_s)
        sizes.append(size)
    return sizes[-160:]


def test_a_backlog_finds_out_what_a_batch_costs_beside_its_items() -> None:
    sizes = served_sizes(0.012, 0.0012, num_queued=90)
    assert set(sizes) <= {4, 8}


def test_where_company_saves_nothing_a_backlog_keeps_to_one() -> None:
    sizes = served_sizes(0.020, 0.0, num_queued=90)
    assert set(sizes) == {1, 2}
    assert sum(size == 1 for size in sizes) == 150


def test_a_warm_up_that_was_wrong_about_company_is_corrected() -> None:
    sizes = served_sizes(0.012, 0.0012, num_queued=90, in_company=1.15, num_batches=8000)
    assert sizes.count(1) < 16


def test_the_dearer_a_trial_the_less_often_it_is_made() -> None:
    sizes = served_sizes(0.012, 0.0, 90, in_company=1.4, really_in_company=1.4)
    assert sizes.count(2) <= 1
    assert set(sizes) <= {1, 2}


def test_without_a_backlog_no_larger_size_is_tried() -> None:
    assert set(served_sizes(0.020, 0.0, num_queued=10)) == {1}


def test_a_batch_has_items_of_one_shape_and_alternating_shapes_do_not_split_it() -> None:
    bench = PolicyBench(max_batch_size=4)
    bench.learn(1, 2)
    lane = bench.lane()
    for number in range(8):
        bench.offer(lane, bucket=1 + number % 2)
    batches = [bench.policy.next_batch(0.0) or [] for _ in range(2)]
    assert [[entry.bucket for entry in batch] for batch in batches] == [[1] * 4, [2] * 4]


def test_streams_of_different_shapes_get_full_batches_in_turn() -> None:
    bench = PolicyBench(max_batch_size=4)
    bench.learn(1, 2)
    wide, high = bench.lane(), bench.lane()
    for _ in range(8):
        bench.offer(wide, bucket=1)
        bench.offer(high, bucket=2)
    batches = [bench.batch_lanes() for _ in range(4)]
    assert batches == [[wide] * 4, [high] * 4, [wide] * 4, [high] * 4]


def test_a_shape_that_the_warm_up_did_not_see_is_explored_from_one() -> None:
    bench = PolicyBench(max_batch_size=8, max_queued=1000)
    lane = bench.lane(capacity=1000)
    sizes = []
    for _ in range(200):
        bench.offer(lane, bucket=3)
    for _ in range(12):
        batch = bench.batch_lanes() or []
        bench.cost.observe_run(len(batch), 0.005 + 0.0005 * len(batch), bucket=3)
        sizes.append(len(batch))
    assert sizes == [1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8]
    assert bench.cost.best_batch_size(8, bucket=3) == 8


def test_a_rare_shape_waits_for_its_window_and_not_for_ever() -> None:
    bench = PolicyBench(max_batch_size=4)
    bench.learn(7)
    common, rare = bench.lane(), bench.lane()
    bench.policy.note_demand(99, 0.0)
    bench.offer(rare, now=0.0, bucket=7)
    served: list[int] = []
    for step in range(20):
        now = step * 0.001
        for _ in range(4):
            bench.offer(common, now)
        served += bench.batch_lanes(now) or []
        if rare in served:
            break
    assert rare in served
    assert now <= WINDOW_S


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


def test_an_item_given_up_by_a_prediction_that_was_too_high_still_makes_a_batch() -> None:
    bench = PolicyBench(max_batch_size=1, run_s=0.030)
    lane, other = bench.lane(), bench.lane()
    given_up = bench.offer(lane, now=0.0, deadline=1.020)
    bench.offer(other, now=0.0, deadline=2.0)
    assert bench.batch_lanes(now=1.0) == [other]
    for _ in range(15):
        bench.cost.observe_run(1, 0.001)  # now there would be time
    assert bench.policy.next_batch(1.0) == [given_up]


def test_a_lane_with_nothing_viable_keeps_its_place_in_the_queue() -> None:
    bench = PolicyBench(max_batch_size=1, run_s=0.030)
    lane, other = bench.lane(), bench.lane()
    bench.offer(lane, now=0.0, deadline=1.010)
    for _ in range(3):
        bench.offer(other, now=0.0, deadline=2.0)
    assert bench.batch_lanes(now=1.0) == [other]
    bench.offer(lane, now=1.0, deadline=2.0)
    assert bench.batch_lanes(now=1.0) == [lane]


def test_a_batch_is_no_larger_than_what_can_be_in_time_together() -> None:
    bench = PolicyBench(max_batch_size=64)
    bench.cost.seed({size: 0.005 + 0.0005 * size for size in (1, 2, 4, 8, 16, 32, 64)})
    lane = bench.lane()
    for _ in range(64):
        bench.offer(lane, deadline=0.025 + 1e-6)
    batch = bench.policy.next_batch(0.0)
    assert batch is not None
    assert len(batch) == 40  # 5 + 0.5 * 40 = 25 ms
    assert len(bench.policy.next_batch(0.0, wait_s=0.010) or ()) == 20


def test_the_few_whose_deadline_is_near_do_not_make_a_batch_small() -> None:
    bench = PolicyBench(max_batch_size=32)
    bench.cost.seed({size: 0.005 + 0.0005 * size for size in (1, 2, 4, 8, 16, 32)})
    near, far = bench.lane(), bench.lane()
    for _ in range(32):
        bench.offer(far, deadline=0.1)
    bench.policy.next_batch(0.0)  # this one was as small as the lane's turn wanted
    for _ in range(32):
        bench.offer(far, deadline=0.1)
    bench.offer(near, deadline=0.010)
    assert bench.batch_lanes(0.001) == [far] * 32


def test_a_stream_of_short_deadlines_among_long_batches_gets_its_turn() -> None:
    bench = PolicyBench(max_batch_size=32, max_queued=1000)
    bench.cost.seed({size: 0.005 + 0.0005 * size for size in (1, 2, 4, 8, 16, 32)})
    near = bench.lane(Policy.LATEST, capacity=1)
    far = bench.lane(Policy.LATEST, capacity=64)
    served_at: list[float] = []
    for step in range(100):
        now = step * 0.021
        bench.offer(near, now, deadline=now + 0.010)
        for _ in range(64):
            bench.offer(far, now, deadline=now + 2.0)
        if near in (bench.batch_lanes(now) or ()):
            served_at.append(now)
    waits = [later - earlier for earlier, later in itertools.pairwise(served_at)]
    assert max(waits) <= TURN_PERIOD_S + 0.021


# --- bounds


def test_a_full_model_refuses_and_says_when_to_come_back() -> None:
    bench = PolicyBench(max_queued=2, run_s=0.1, max_batch_size=1)
    lane = bench.lane()
    bench.offer(lane)
    bench.offer(lane)
    with pytest.raises(Overloaded) as caught:
        bench.offer(lane)
    assert caught.value.retry_after_s == pytest.approx(0.25)
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
