from __future__ import annotations

import itertools
from collections import Counter

import pytest

from engine.batching.cost import CostModel
from engine.batching.policy import ACTIVITY_HORIZON_S, AGEING_STEP_S, BatchPolicy
from engine.errors import Overloaded
from engine.lane import Entry
from engine.types import Item, LaneSpec, Policy, Priority

pytestmark = pytest.mark.unit

WINDOW_S = 0.005


class Bench:
    """A policy with short calls for tests; every offer is checked for integrity."""

    def __init__(self, max_batch_size: int = 4, run_s: float = 0.0, max_queued: int = 100) -> None:
        self.cost = CostModel()
        if run_s:
            self.cost.seed({size: run_s * size**0.5 for size in (1, 2, 4, 8)})
        self.policy = BatchPolicy(
            max_batch_size=max_batch_size,
            window_s=WINDOW_S,
            max_queued=max_queued,
            cost=self.cost,
        )
        self._keys = itertools.count()
        self._lane_ids = itertools.count()

    def lane(
        self,
        policy: Policy = Policy.FIFO,
        capacity: int = 100,
        weight: float = 1.0,
        priority: Priority = Priority.STANDARD,
    ) -> int:
        lane_id = next(self._lane_ids)
        spec = LaneSpec(
            model="m", policy=policy, capacity=capacity, weight=weight, priority=priority
        )
        self.policy.add_lane(lane_id, spec)
        return lane_id

    def entry(self, lane_id: int, now: float = 0.0, deadline: float | None = None) -> Entry:
        key = next(self._keys)
        item = Item(id=key, payload=b"", deadline=deadline)
        return Entry(key=key, lane_id=lane_id, item=item, offered_at=now)

    def offer(self, lane_id: int, now: float = 0.0, deadline: float | None = None) -> Entry:
        entry = self.entry(lane_id, now, deadline)
        self.policy.offer(entry)
        self.policy.check_integrity()
        return entry

    def batch_lanes(self, now: float = 0.0) -> list[int] | None:
        batch = self.policy.next_batch(now)
        self.policy.check_integrity()
        return None if batch is None else [entry.lane_id for entry in batch]

    def served(self, num_batches: int, now: float = 0.0) -> Counter[int]:
        """How often each lane was served in so many batches."""
        return Counter(lane for _ in range(num_batches) for lane in self.batch_lanes(now) or ())


# --- when a batch closes


def test_nothing_queued_is_no_batch_and_no_wakeup() -> None:
    bench = Bench()
    bench.lane()
    assert bench.policy.next_batch(0.0) is None
    assert bench.policy.next_wakeup(0.0) is None


def test_a_single_stream_never_waits() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.0) == [lane]


def test_a_batch_waits_for_the_other_live_lanes_until_the_window_is_over() -> None:
    bench = Bench()
    first, second = bench.lane(), bench.lane()
    bench.offer(second, now=0.0)
    bench.batch_lanes(now=0.0)

    bench.offer(first, now=1.0)
    assert bench.batch_lanes(now=1.0) is None
    assert bench.policy.next_wakeup(1.0) == 1.0 + WINDOW_S
    assert bench.batch_lanes(now=1.0 + WINDOW_S) == [first]


def test_a_batch_with_every_live_lane_goes_at_once() -> None:
    bench = Bench()
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane, now=1.0)
    assert bench.batch_lanes(now=1.0) == lanes


def test_a_lane_that_went_quiet_is_not_waited_for() -> None:
    bench = Bench()
    quiet, active = bench.lane(), bench.lane()
    bench.offer(quiet, now=0.0)
    bench.batch_lanes(now=0.0)
    now = ACTIVITY_HORIZON_S + 0.1
    bench.offer(active, now=now)
    assert bench.batch_lanes(now=now) == [active]


def test_an_old_item_goes_although_no_lane_is_live() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.offer(lane, now=0.0)
    assert bench.batch_lanes(now=ACTIVITY_HORIZON_S + 0.1) == [lane]


def test_a_closed_lane_is_not_waited_for() -> None:
    bench = Bench()
    closed, active = bench.lane(), bench.lane()
    bench.offer(closed, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(active, now=1.0)
    assert bench.batch_lanes(now=1.0) is None
    bench.policy.remove_lane(closed)
    assert bench.batch_lanes(now=1.0) == [active]


def test_a_full_batch_goes_at_once() -> None:
    bench = Bench(max_batch_size=2)
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(lanes[0], now=0.001)  # lanes[2] still waits
    assert bench.batch_lanes(now=0.001) == [lanes[2], lanes[0]]


def test_the_window_opens_at_the_first_item_and_a_trickle_does_not_move_it() -> None:
    bench = Bench(max_batch_size=100)
    trickle, other = bench.lane(Policy.LATEST, capacity=1), bench.lane()
    bench.offer(other, now=0.0)
    bench.batch_lanes(now=0.0)
    for step in range(4):
        bench.offer(trickle, now=1.0 + step * 0.001)  # replaces itself
    assert bench.policy.next_wakeup(1.004) == 1.0 + WINDOW_S


def test_items_that_waited_for_a_worker_go_as_soon_as_there_is_one() -> None:
    bench = Bench()
    first, second = bench.lane(), bench.lane()
    bench.offer(second, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(first, now=1.0)
    assert bench.batch_lanes(now=1.2) == [first]


def test_a_batch_closes_early_enough_for_its_nearest_deadline() -> None:
    bench = Bench(max_batch_size=8, run_s=0.002)
    first, second = bench.lane(), bench.lane()
    bench.offer(second, now=0.0)
    bench.batch_lanes(now=0.0)
    bench.offer(first, now=1.0, deadline=1.005)
    closes_at = bench.policy.next_wakeup(1.0) or 0.0
    assert closes_at == pytest.approx(1.003)
    assert bench.batch_lanes(now=1.0) is None
    assert bench.batch_lanes(now=closes_at) == [first]


def test_the_measured_curve_limits_the_batch() -> None:
    bench = Bench(max_batch_size=8)
    bench.cost.seed({1: 0.042, 2: 0.095, 4: 0.211, 8: 0.470})
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane)
    assert [bench.batch_lanes() for _ in range(4)] == [[lanes[0]], [lanes[1]], [lanes[2]], None]


# --- who is in it


def test_lanes_of_equal_weight_take_turns() -> None:
    bench = Bench(max_batch_size=1)
    greedy, modest = bench.lane(), bench.lane()
    for _ in range(10):
        bench.offer(greedy)
    for _ in range(4):
        bench.offer(modest)
    assert bench.served(8) == {greedy: 4, modest: 4}


def test_weights_share_in_proportion() -> None:
    bench = Bench(max_batch_size=1)
    heavy, light = bench.lane(weight=3.0), bench.lane(weight=1.0)
    for _ in range(40):
        bench.offer(heavy)
        bench.offer(light)
    served = bench.served(40)
    assert abs(served[heavy] - 30) <= 1


def test_a_lane_may_fill_a_batch_when_the_others_are_empty() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.lane()
    for _ in range(6):
        bench.offer(lane)
    assert bench.batch_lanes() == [lane] * 4


def test_a_batch_takes_from_every_lane_before_it_takes_twice() -> None:
    bench = Bench()
    greedy, *others = [bench.lane() for _ in range(4)]
    for _ in range(6):
        bench.offer(greedy)
    for lane in others:
        bench.offer(lane)
    assert sorted(bench.batch_lanes() or ()) == [greedy, *others]


def test_a_fresh_lane_is_not_locked_out_by_old_virtual_times() -> None:
    bench = Bench(max_batch_size=1)
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
    bench = Bench(max_batch_size=1)
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
    bench = Bench(max_batch_size=1)
    flicker, steady = bench.lane(), bench.lane()
    for _ in range(20):
        bench.offer(steady)
    for _ in range(5):
        bench.policy.cancel(bench.offer(flicker))
    bench.offer(flicker)
    bench.offer(flicker)
    assert bench.served(4) == {flicker: 2, steady: 2}


def test_a_lane_that_was_emptied_is_passed_over() -> None:
    bench = Bench(max_batch_size=1)
    emptied, other = bench.lane(), bench.lane()
    bench.policy.cancel(bench.offer(emptied))
    bench.offer(other)
    assert bench.batch_lanes() == [other]


def test_a_tiny_weight_pays_no_debt_after_everybody_was_idle() -> None:
    bench = Bench(max_batch_size=1)
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
    bench = Bench(max_batch_size=1)
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
    bench = Bench(max_batch_size=1)
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
    bench = Bench(max_batch_size=1)
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


# --- deadlines


def test_an_item_for_which_it_is_too_late_does_not_take_a_viable_ones_place() -> None:
    bench = Bench(max_batch_size=1, run_s=0.030)
    lane, other = bench.lane(), bench.lane()
    late = bench.offer(lane, now=0.0, deadline=1.010)
    viable = bench.offer(lane, now=0.0, deadline=2.0)
    bench.offer(other, now=0.0, deadline=2.0)
    assert bench.policy.next_batch(1.0) == [viable]
    assert bench.batch_lanes(now=1.0) == [other]
    assert bench.policy.next_batch(1.0) == [late]  # better than to do nothing


def test_a_lane_with_nothing_viable_keeps_its_place_in_the_queue() -> None:
    bench = Bench(max_batch_size=1, run_s=0.030)
    lane, other = bench.lane(), bench.lane()
    bench.offer(lane, now=0.0, deadline=1.010)
    for _ in range(3):
        bench.offer(other, now=0.0, deadline=2.0)
    assert bench.batch_lanes(now=1.0) == [other]
    bench.offer(lane, now=1.0, deadline=2.0)
    assert bench.batch_lanes(now=1.0) == [lane]


# --- bounds


def test_a_full_model_refuses_and_says_when_to_come_back() -> None:
    bench = Bench(max_queued=2, run_s=0.1, max_batch_size=1)
    lane = bench.lane()
    bench.offer(lane)
    bench.offer(lane)
    with pytest.raises(Overloaded) as caught:
        bench.offer(lane)
    assert caught.value.retry_after_s == pytest.approx(0.2)
    assert bench.policy.num_queued == 2


def test_a_full_model_still_lets_a_stream_replace_its_frame() -> None:
    bench = Bench(max_queued=1)
    lane = bench.lane(Policy.LATEST, capacity=1)
    old = bench.offer(lane)
    assert bench.policy.offer(bench.entry(lane)) is old
    assert bench.policy.num_queued == 1


def test_cancel_finds_what_is_queued_and_nothing_else() -> None:
    bench = Bench()
    lane = bench.lane()
    entry = bench.offer(lane)
    assert bench.policy.cancel(entry)
    assert not bench.policy.cancel(entry)
    assert bench.policy.num_queued == 0
    bench.policy.remove_lane(lane)
    assert not bench.policy.cancel(entry)


def test_a_removed_lane_takes_what_it_held_with_it() -> None:
    bench = Bench()
    lane = bench.lane()
    for _ in range(3):
        bench.offer(lane)
    bench.policy.remove_lane(lane)
    assert bench.policy.num_queued == bench.policy.num_lanes == 0
    assert bench.policy.next_batch(9.0) is None


def test_abandoned_lanes_leave_nothing_behind() -> None:
    bench = Bench()
    blocker = bench.lane()
    bench.offer(blocker)
    for _ in range(1000):
        lane = bench.lane()
        bench.offer(lane)
        bench.policy.remove_lane(lane)
    assert bench.policy.num_lanes == bench.policy.num_queued == 1
    share = bench.policy._shares[Priority.STANDARD]
    assert len(share._heap) == len(bench.policy._recent) == 1
