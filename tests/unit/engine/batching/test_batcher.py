"""The driver, on a loop whose clock jumps: instants are exact and cost no time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from engine.batching.batcher import BatcherLane, ModelBatcher
from engine.config import ModelConfig
from engine.errors import InternalError, InvalidInput, Overloaded, Quarantined, Unavailable
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Policy,
    Progress,
    Result,
)
from tests.fakes.executor import FakeExecutor
from tests.fakes.virtual_time import VirtualTimeLoop, run_until, settle, virtual_time

pytestmark = pytest.mark.unit

DEADLINE = Dropped(DropReason.DEADLINE)
SUPERSEDED = Dropped(DropReason.SUPERSEDED)
SHUTDOWN = Dropped(DropReason.SHUTDOWN)


class Bench:
    """A batcher over a fake executor; ``told`` is what every lane was told, and when."""

    def __init__(self, *, window_ms: float = 5.0, max_batch_size: int = 4, **executor: object):
        config = ModelConfig(
            max_batch_size=max_batch_size, batch_timeout_millis=window_ms, max_concurrent_requests=9
        )
        self.batcher = ModelBatcher("m", config)
        self.executor = FakeExecutor(self.batcher, **executor)  # type: ignore[arg-type]
        self.batcher.start(self.executor)
        self.told: list[tuple[float, int, Progress | Outcome]] = []
        self.reactions: dict[int, Callable[[], None]] = {}
        self.faults: list[AssertionError] = []
        self.next_id = 0

    def lane(self, policy: Policy = Policy.FIFO, capacity: int = 9) -> BatcherLane:
        spec = LaneSpec(model="m", policy=policy, capacity=capacity)
        return self.batcher.open_lane(spec, self._emit)

    def offer(self, lane: BatcherLane, budget_s: float | None = None) -> int:
        """Offer an item whose payload is its id; returns the id."""
        self.next_id += 1
        now = asyncio.get_running_loop().time()
        deadline = None if budget_s is None else now + budget_s
        lane.offer(Item(id=self.next_id, payload=b"%d" % self.next_id, deadline=deadline))
        self.batcher.check_integrity()
        return self.next_id

    def outcomes(self) -> dict[int, Outcome]:
        """By item; fails if an item was told twice, or a result has another item's answer."""
        answers = {item_id: outcome for _, item_id, outcome in self.told}
        assert len(answers) == len(self.told)
        assert self.faults == []
        for item_id, outcome in answers.items():
            assert not isinstance(outcome, Result) or outcome.data == b"%d" % item_id
        self.batcher.check_integrity()
        return answers  # type: ignore[return-value]

    def _emit(self, item_id: int, outcome: Progress | Outcome) -> None:
        self.told.append((asyncio.get_running_loop().time(), item_id, outcome))
        try:
            self.batcher.check_integrity()
        except AssertionError as fault:  # the batcher would log it and go on
            self.faults.append(fault)
        self.reactions.get(item_id, lambda: None)()


# --- batches


@virtual_time
async def test_items_offered_in_one_turn_of_the_loop_go_in_one_batch() -> None:
    bench = Bench()
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane)
    await settle()
    assert bench.executor.payloads == [[b"1", b"2", b"3"]]


@virtual_time
async def test_a_batch_goes_when_its_window_is_over() -> None:
    bench = Bench(window_ms=5.0, prefetch=9)
    first, second = bench.lane(), bench.lane()
    bench.offer(first)
    bench.offer(second)
    await run_until(1.0)
    bench.offer(first)
    await run_until(1.0049)
    assert bench.executor.payloads == [[b"1", b"2"]]
    await run_until(1.005)
    assert bench.executor.payloads == [[b"1", b"2"], [b"3"]]


@virtual_time
async def test_nothing_is_bound_before_a_worker_has_room() -> None:
    bench = Bench(max_batch_size=9)
    lane = bench.lane()
    bench.offer(lane)
    await settle()
    for _ in range(3):
        bench.offer(lane)
    await run_until(1.0)
    assert bench.executor.payloads == [[b"1"]]
    bench.executor.finish()
    await settle()
    assert bench.executor.payloads[1:] == [[b"2", b"3", b"4"]]


@virtual_time
async def test_a_warm_up_curve_that_says_batching_costs_is_obeyed() -> None:
    bench = Bench(workers=3, warmup_run_s={1: 0.04, 2: 0.09, 4: 0.2})
    for _ in range(3):
        bench.offer(bench.lane())
    await settle()
    assert bench.executor.payloads == [[b"1"], [b"2"], [b"3"]]


@virtual_time
async def test_a_result_says_how_long_its_item_was_queued() -> None:
    bench = Bench(run_s=0.030)
    lane = bench.lane()
    bench.offer(lane)
    await run_until(0.010)
    bench.offer(lane)
    await run_until(1.0)
    outcome = bench.outcomes()[2]
    assert isinstance(outcome, Result)
    assert outcome.timing.queue == pytest.approx(20_000, abs=1)
    assert outcome.timing.run == 30_000


@virtual_time
async def test_when_the_slab_is_full_the_rest_of_the_batch_goes_first_later() -> None:
    bench = Bench(max_batch_size=4, slab_items=3, prefetch=1)
    lane = bench.lane()
    for _ in range(4):
        bench.offer(lane)
    await settle()
    bench.offer(lane)
    await settle()
    assert bench.executor.payloads == [[b"1", b"2", b"3"]]
    assert bench.batcher.num_queued == 2
    bench.executor.finish()
    await settle()
    assert bench.executor.payloads[1:] == [[b"4"], [b"5"]]


@virtual_time
async def test_an_item_that_found_no_room_in_the_slab_can_expire_and_be_cancelled() -> None:
    bench = Bench(slab_items=1, prefetch=1)
    lane = bench.lane()
    ids = [bench.offer(lane, budget_s=budget) for budget in (None, 0.1, None)]
    await settle()
    lane.cancel(ids[2])
    await run_until(0.1)
    assert bench.outcomes() == {ids[1]: DEADLINE, ids[2]: Cancelled()}


# --- deadlines


@pytest.mark.parametrize("blocked", [True, False], ids=["dispatched", "queued"])
@virtual_time
async def test_expiry_is_told_at_the_deadline_whatever_the_worker_does(blocked: bool) -> None:
    bench = Bench()
    lane = bench.lane()
    if not blocked:
        bench.offer(lane)  # occupies the only worker
        await settle()
    item_id = bench.offer(lane, budget_s=0.1)
    await run_until(5.0)
    assert bench.outcomes() == {item_id: DEADLINE}
    assert bench.told[0][0] == pytest.approx(0.1)


@virtual_time
async def test_a_late_answer_is_discarded_and_counted() -> None:
    bench = Bench()
    item_id = bench.offer(bench.lane(), budget_s=0.1)
    await run_until(1.0)
    bench.executor.finish()
    await settle()
    assert bench.outcomes() == {item_id: DEADLINE}
    assert bench.batcher.counters.discarded == 1
    assert bench.batcher.num_in_flight == 0


@virtual_time
async def test_deadlines_are_told_each_at_its_time_in_any_order_of_offers() -> None:
    bench = Bench()
    lane = bench.lane()
    budgets = [0.3, 0.1, 0.2, 0.1, 0.05]
    for budget_s in budgets:
        bench.offer(lane, budget_s=budget_s)
        await settle()
    await run_until(1.0)
    assert [when for when, _, _ in bench.told] == pytest.approx(sorted(budgets))


class EarlyLoop(VirtualTimeLoop):
    """Fires its timers early, as uvloop does by up to half a millisecond."""

    def call_at(  # type: ignore[override]  # only what the batcher calls
        self, when: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return super().call_at(when - 0.0005, callback, *args)


def test_a_timer_that_fires_early_is_not_set_again() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.offer(bench.lane(), budget_s=0.1)
        await run_until(1.0)
        assert bench.outcomes() == {1: DEADLINE}
        assert bench.told[0][0] == pytest.approx(0.0995)

    with asyncio.Runner(loop_factory=EarlyLoop) as runner:
        runner.run(scenario())


@virtual_time
async def test_an_item_offered_after_its_deadline_is_accepted_and_told_at_once() -> None:
    bench = Bench()
    await run_until(1.0)
    bench.offer(bench.lane(), budget_s=-0.5)
    await settle()
    assert bench.told == [(1.0, 1, DEADLINE)]
    assert bench.executor.batches == []


@virtual_time
async def test_overload_does_not_waste_the_model_on_items_that_will_be_late() -> None:
    """Bounded FIFO lanes at three times the capacity: without a prediction of the whole answer
    every item would be dispatched just in time to expire in the worker."""
    bench = Bench(run_s=0.030, prefetch=1, max_batch_size=1, warmup_run_s={1: 0.030})
    lane = bench.lane()
    for step in range(1000):
        await run_until(step * 0.010)
        try:
            bench.offer(lane, budget_s=0.085)
        except Overloaded:
            pass
    await run_until(20.0)
    results = sum(isinstance(outcome, Result) for outcome in bench.outcomes().values())
    assert results >= 0.9 * 10.0 / 0.030


# --- lanes


@virtual_time
async def test_superseded_is_told_inside_the_offer_that_supersedes() -> None:
    bench = Bench()
    lane = bench.lane(Policy.LATEST, capacity=1)
    bench.offer(lane)
    bench.offer(lane)
    assert bench.outcomes() == {1: SUPERSEDED}


@virtual_time
async def test_cancelling_a_dispatched_item_is_told_now_and_its_answer_is_discarded() -> None:
    bench = Bench()
    lane = bench.lane()
    first, second = bench.offer(lane), bench.offer(lane)
    await settle()
    lane.cancel(first)
    lane.cancel(first)
    assert bench.outcomes() == {first: Cancelled()}
    bench.executor.finish()
    assert isinstance(bench.outcomes()[second], Result)
    assert bench.batcher.counters.discarded == 1


@virtual_time
async def test_an_id_may_be_used_again_once_it_was_answered() -> None:
    bench = Bench()
    lane = bench.lane()
    lane.offer(Item(id=7, payload=b"7"))
    with pytest.raises(ValueError, match="item 7"):
        lane.offer(Item(id=7, payload=b"7"))
    lane.cancel(7)
    lane.offer(Item(id=7, payload=b"7"))
    assert bench.batcher.counters.accepted == 2


@virtual_time
async def test_a_full_model_refuses_and_keeps_its_books() -> None:
    bench = Bench()
    lanes = [bench.lane() for _ in range(3)]
    for number in range(9):
        bench.offer(lanes[number % 3])
    with pytest.raises(Overloaded):
        bench.offer(lanes[0])
    bench.batcher.check_integrity()
    assert bench.batcher.counters.accepted == 9


@virtual_time
async def test_closing_a_lane_cancels_what_it_has_everywhere() -> None:
    bench = Bench(max_batch_size=1, slab_items=2)
    lane = bench.lane()
    dispatched = bench.offer(lane)
    await settle()
    queued = bench.offer(lane)
    lane.close()
    lane.close()
    assert bench.outcomes() == {dispatched: Cancelled(), queued: Cancelled()}
    with pytest.raises(Unavailable):
        bench.offer(lane)
    assert bench.batcher.num_lanes == 0


@virtual_time
async def test_a_lane_that_closes_lets_the_others_batch_go() -> None:
    bench = Bench(window_ms=1000.0, prefetch=9)
    first, second = bench.lane(), bench.lane()
    bench.offer(first)
    bench.offer(second)
    await settle()
    bench.offer(first)
    await settle()
    assert len(bench.executor.batches) == 1
    second.close()
    await settle()
    assert len(bench.executor.batches) == 2


@virtual_time
async def test_emit_may_offer_cancel_and_close() -> None:
    bench = Bench()
    lane, other = bench.lane(), bench.lane()
    ids = [bench.offer(lane) for _ in range(3)]

    def cancel_and_offer() -> None:
        lane.cancel(ids[1])
        bench.offer(other)

    bench.reactions = {ids[0]: cancel_and_offer, ids[1]: lane.close}
    await settle()
    bench.executor.finish()
    await settle()
    bench.executor.finish()
    answers = bench.outcomes()
    assert isinstance(answers[ids[0]], Result)
    assert answers[ids[1]] == answers[ids[2]] == Cancelled()
    assert isinstance(answers[4], Result)


@virtual_time
async def test_cancelling_inside_the_close_of_the_same_lane_is_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    lane = bench.lane()
    ids = [bench.offer(lane) for _ in range(3)]
    bench.reactions = {ids[0]: lambda: lane.cancel(ids[2])}
    lane.close()
    assert bench.outcomes() == dict.fromkeys(ids, Cancelled())
    assert caplog.records == []


@virtual_time
async def test_an_emit_that_raises_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    faulty, healthy = bench.lane(), bench.lane()
    first, second = bench.offer(faulty), bench.offer(healthy)

    def fail() -> None:
        raise RuntimeError("a stream's own fault")

    bench.reactions = {first: fail}
    await settle()
    with caplog.at_level(logging.CRITICAL + 1):
        bench.executor.finish()
    assert isinstance(bench.outcomes()[second], Result)
    assert bench.batcher.num_in_flight == 0


# --- workers that fail


@virtual_time
async def test_a_failed_batch_fails_its_items_and_the_next_one_runs() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.offer(lane)
    await settle()
    error = InvalidInput("not a picture")
    bench.executor.finish(error=error)
    bench.offer(lane)
    await settle()
    bench.executor.finish()
    assert bench.outcomes()[1] == Failed(error)
    assert isinstance(bench.outcomes()[2], Result)


@virtual_time
async def test_lost_items_run_again_alone_before_anything_else() -> None:
    bench = Bench(max_batch_size=2, workers=2)
    lane = bench.lane()
    for _ in range(6):
        bench.offer(lane)
    await settle()
    bench.executor.kill(worker=0)
    await settle()
    assert len(bench.executor.batches) == 2  # the other worker is busy

    bench.executor.finish()
    await settle()
    assert [(b.alone, len(b.works)) for b in bench.executor.batches[2:]] == [(True, 1)]
    bench.executor.finish()
    await settle()
    assert [(b.alone, len(b.works)) for b in bench.executor.batches[3:]] == [(True, 1)]
    bench.executor.finish()
    await settle()
    assert bench.executor.batches[4].alone is False
    bench.executor.finish()
    assert all(isinstance(outcome, Result) for outcome in bench.outcomes().values())
    assert bench.batcher.counters.retried == 2
    assert bench.executor.slab == set()


@virtual_time
async def test_while_a_worker_runs_suspects_the_others_go_on() -> None:
    bench = Bench(max_batch_size=2, workers=3)
    lane = bench.lane()
    for _ in range(8):
        bench.offer(lane)
    await settle()
    bench.executor.kill(worker=0)
    bench.executor.finish()  # worker 1: takes the first suspect
    await settle()
    assert bench.executor.busy[-1].alone
    bench.executor.finish()  # worker 2: idle, so the second suspect has it
    await settle()
    bench.executor.revive(worker=0)
    await settle()
    assert [batch.alone for batch in bench.executor.busy] == [True, True, False]


@virtual_time
async def test_a_worker_that_always_has_work_is_drained_for_a_suspect() -> None:
    bench = Bench(max_batch_size=1, workers=2, prefetch=1)
    lane = bench.lane()
    for _ in range(8):
        bench.offer(lane)
    await settle()
    bench.executor.kill(worker=0)  # holds two items; worker 1 holds two others
    bench.executor.finish()
    await settle()
    assert len(bench.executor.busy) == 1
    bench.executor.finish()
    await settle()
    assert [batch.alone for batch in bench.executor.busy] == [True]


@virtual_time
async def test_an_item_lost_twice_is_quarantined_and_its_neighbours_are_not() -> None:
    bench = Bench(max_batch_size=2)
    lane = bench.lane()
    poison, neighbour = bench.offer(lane), bench.offer(lane)
    await settle()
    bench.executor.kill()
    bench.executor.revive()
    await settle()
    bench.executor.kill()
    bench.executor.revive()
    await settle()
    bench.executor.finish()
    outcome = bench.outcomes()[poison]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Quarantined)
    assert isinstance(bench.outcomes()[neighbour], Result)
    assert bench.executor.slab == set()


@pytest.mark.parametrize("how", ["cancel", "expire"])
@virtual_time
async def test_a_lost_item_that_is_given_up_frees_its_slot(how: str) -> None:
    bench = Bench()
    lane = bench.lane()
    item_id = bench.offer(lane, budget_s=0.1)
    await settle()
    bench.executor.kill()
    if how == "cancel":
        lane.cancel(item_id)
    await run_until(0.2)
    assert bench.outcomes() == {item_id: Cancelled() if how == "cancel" else DEADLINE}
    assert bench.executor.slab == set()


@virtual_time
async def test_an_item_given_up_before_its_worker_died_frees_its_slot() -> None:
    bench = Bench()
    lane = bench.lane()
    item_id = bench.offer(lane)
    await settle()
    lane.cancel(item_id)
    bench.executor.kill()
    assert bench.executor.slab == set()
    bench.executor.revive()
    await settle()
    assert len(bench.executor.batches) == 1


@virtual_time
async def test_a_broken_model_answers_everybody_at_once_and_refuses() -> None:
    bench = Bench(max_batch_size=2)
    lane = bench.lane()
    for _ in range(5):
        bench.offer(lane)
    await settle()
    bench.executor.break_down("circuit open: missing library")
    for outcome in bench.outcomes().values():
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Unavailable)
        assert "missing library" in outcome.error.detail
    assert len(bench.told) == 5
    with pytest.raises(Unavailable, match="missing library"):
        bench.offer(lane)
    assert bench.executor.slab == set()


@virtual_time
async def test_items_lost_after_the_model_broke_are_answered_too() -> None:
    bench = Bench(workers=2)
    bench.offer(bench.lane())
    await settle()
    bench.batcher.on_unavailable("circuit open")
    assert bench.outcomes() == {}  # a worker still holds it
    bench.executor.kill(0)
    assert isinstance(bench.outcomes()[1], Failed)


@virtual_time
async def test_a_model_that_comes_back_serves_again() -> None:
    bench = Bench()
    lane = bench.lane()
    bench.executor.break_down()
    bench.executor.revive()
    bench.offer(lane)
    await settle()
    bench.executor.finish()
    assert isinstance(bench.outcomes()[1], Result)


@virtual_time
async def test_a_report_of_room_without_a_ready_worker_revives_nothing() -> None:
    bench = Bench()
    bench.executor.break_down()
    bench.batcher.on_room()
    assert bench.batcher.unavailable == "circuit open"


@virtual_time
async def test_a_dispatch_that_raises_fails_its_batch_only() -> None:
    bench = Bench()
    lane = bench.lane()
    working, bench.executor.dispatch = bench.executor.dispatch, broken_dispatch  # type: ignore[method-assign]
    bench.offer(lane)
    await settle()
    outcome = bench.outcomes()[1]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, InternalError)

    bench.executor.dispatch = working  # type: ignore[method-assign]
    bench.offer(lane)
    await settle()
    bench.executor.finish()
    assert isinstance(bench.outcomes()[2], Result)


def broken_dispatch(batch: object, *, alone: bool = False) -> int:
    raise OSError("no buffer space")


# --- start and end


@virtual_time
async def test_before_the_start_offers_are_refused() -> None:
    batcher = ModelBatcher("m", ModelConfig())
    lane = batcher.open_lane(LaneSpec(model="m"), lambda *_: None)
    batcher.on_room()  # a worker is ready before the whole pool is
    with pytest.raises(Unavailable, match="starting"):
        lane.offer(Item(id=1, payload=b""))
    batcher.check_integrity()


@virtual_time
async def test_closing_finishes_what_was_accepted() -> None:
    bench = Bench(run_s=0.1, max_batch_size=1)
    lane = bench.lane()
    for _ in range(3):
        bench.offer(lane)
    closing = asyncio.create_task(bench.batcher.aclose(5.0))
    await settle()
    with pytest.raises(Unavailable):
        bench.offer(lane)
    with pytest.raises(Unavailable):
        bench.lane()
    await closing
    assert asyncio.get_running_loop().time() == pytest.approx(0.3)
    assert all(isinstance(outcome, Result) for outcome in bench.outcomes().values())


@virtual_time
async def test_closing_drops_the_rest_at_its_deadline() -> None:
    bench = Bench()
    for _ in range(2):
        bench.offer(bench.lane())
    await bench.batcher.aclose(0.5)
    assert bench.told == [(0.5, 1, SHUTDOWN), (0.5, 2, SHUTDOWN)]
    await bench.batcher.aclose(0.5)
    bench.executor.kill()
    assert bench.executor.slab == set()


@virtual_time
async def test_a_cancelled_close_still_answers_everybody() -> None:
    bench = Bench()
    bench.offer(bench.lane())
    closing = asyncio.create_task(bench.batcher.aclose(5.0))
    await settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert bench.outcomes() == {1: SHUTDOWN}


@virtual_time
async def test_abandoned_lanes_cost_nothing() -> None:
    bench = Bench()
    for _ in range(1000):
        lane = bench.lane()
        bench.offer(lane, budget_s=60.0)
        lane.close()
        await asyncio.sleep(0)
    batcher = bench.batcher
    assert batcher.num_lanes == batcher.num_in_flight == batcher.num_queued == 0
    assert batcher.counters.cancelled == 1000
    assert len(batcher._deadlines) <= 65
