"""The driver, on a loop whose clock jumps: instants are exact and cost no time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from engine.batching.batcher import ModelBatcher
from engine.config import ModelConfig
from engine.errors import Overloaded, Unavailable
from engine.types import Cancelled, Dropped, DropReason, Item, LaneSpec, Policy, Result
from tests.fakes.model_bench import ModelBench
from tests.fakes.virtual_time import VirtualTimeLoop, run_until, settle, virtual_time

pytestmark = pytest.mark.unit

DEADLINE = Dropped(DropReason.DEADLINE)
SUPERSEDED = Dropped(DropReason.SUPERSEDED)
SHUTDOWN = Dropped(DropReason.SHUTDOWN)


# --- batches


@virtual_time
async def test_items_offered_in_one_turn_of_the_loop_go_in_one_batch() -> None:
    bench = ModelBench()
    lanes = [bench.lane() for _ in range(3)]
    for lane in lanes:
        bench.offer(lane)
    await settle()
    assert bench.executor.payloads == [[b"1", b"2", b"3"]]


@virtual_time
async def test_a_batch_goes_when_its_window_is_over() -> None:
    bench = ModelBench(window_ms=5.0, prefetch=9)
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
    bench = ModelBench(max_batch_size=9)
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
    bench = ModelBench(workers=3, warmup_run_s={1: 0.04, 2: 0.09, 4: 0.2})
    for _ in range(3):
        bench.offer(bench.lane())
    await settle()
    assert bench.executor.payloads == [[b"1"], [b"2"], [b"3"]]


@virtual_time
async def test_a_result_says_how_long_its_item_was_queued() -> None:
    bench = ModelBench(run_s=0.030)
    lane = bench.lane()
    bench.offer(lane)
    await run_until(0.010)
    bench.offer(lane)
    await run_until(1.0)
    outcome = bench.outcomes()[2]
    assert isinstance(outcome, Result)
    assert outcome.timing.queue == pytest.approx(20_000, abs=1)
    assert outcome.timing.run == 30_000


# --- deadlines


@pytest.mark.parametrize("blocked", [True, False], ids=["dispatched", "queued"])
@virtual_time
async def test_expiry_is_told_at_the_deadline_whatever_the_worker_does(blocked: bool) -> None:
    bench = ModelBench()
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
    bench = ModelBench()
    item_id = bench.offer(bench.lane(), budget_s=0.1)
    await run_until(1.0)
    bench.executor.finish()
    await settle()
    assert bench.outcomes() == {item_id: DEADLINE}
    assert bench.batcher.counters.discarded == 1
    assert bench.batcher.num_in_flight == 0


@virtual_time
async def test_deadlines_are_told_each_at_its_time_in_any_order_of_offers() -> None:
    bench = ModelBench()
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
        bench = ModelBench()
        bench.offer(bench.lane(), budget_s=0.1)
        await run_until(1.0)
        assert bench.outcomes() == {1: DEADLINE}
        assert bench.told[0][0] == pytest.approx(0.0995)

    with asyncio.Runner(loop_factory=EarlyLoop) as runner:
        runner.run(scenario())


class SoonLoop(VirtualTimeLoop):
    """Calls what is nearly due soon, through a handle without a time, as uvloop does."""

    def call_at(  # type: ignore[override]  # only what the batcher calls
        self, when: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.Handle:
        if when - self.time() < 0.0005:
            return self.call_soon(callback, *args)
        return super().call_at(when, callback, *args)


def test_a_timer_that_became_a_plain_callback_does_not_end_the_pump() -> None:
    async def scenario() -> None:
        bench = ModelBench()
        loop = asyncio.get_running_loop()
        lane = bench.lane()
        faults: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: faults.append(context))
        # In one turn: this offer asks for the pump, then the timer runs it and sets the next one.
        loop.call_at(loop.time() + 0.01 - 1e-12, bench.offer, lane, 0.0003)
        bench.offer(lane, budget_s=0.01)
        await run_until(1.0)
        assert bench.outcomes() == {1: DEADLINE, 2: DEADLINE}
        assert faults == []

    with asyncio.Runner(loop_factory=SoonLoop) as runner:
        runner.run(scenario())


@virtual_time
async def test_an_item_offered_after_its_deadline_is_accepted_and_told_at_once() -> None:
    bench = ModelBench()
    await run_until(1.0)
    bench.offer(bench.lane(), budget_s=-0.5)
    await settle()
    assert bench.told == [(1.0, 1, DEADLINE)]
    assert bench.executor.batches == []


@virtual_time
async def test_overload_does_not_waste_the_model_on_items_that_will_be_late() -> None:
    """Bounded FIFO lanes at three times the capacity: without a prediction of the whole answer
    every item would be dispatched just in time to expire in the worker."""
    bench = ModelBench(run_s=0.030, prefetch=1, max_batch_size=1, warmup_run_s={1: 0.030})
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
    bench = ModelBench()
    lane = bench.lane(Policy.LATEST, capacity=1)
    bench.offer(lane)
    bench.offer(lane)
    assert bench.outcomes() == {1: SUPERSEDED}


@virtual_time
async def test_cancelling_a_dispatched_item_is_told_now_and_its_answer_is_discarded() -> None:
    bench = ModelBench()
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
    bench = ModelBench()
    lane = bench.lane()
    lane.offer(Item(id=7, payload=b"7"))
    with pytest.raises(ValueError, match="item 7"):
        lane.offer(Item(id=7, payload=b"7"))
    lane.cancel(7)
    lane.offer(Item(id=7, payload=b"7"))
    assert bench.batcher.counters.accepted == 2


@virtual_time
async def test_a_full_model_refuses_and_keeps_its_books() -> None:
    bench = ModelBench()
    lanes = [bench.lane() for _ in range(3)]
    for number in range(9):
        bench.offer(lanes[number % 3])
    with pytest.raises(Overloaded):
        bench.offer(lanes[0])
    bench.batcher.check_integrity()
    assert bench.batcher.counters.accepted == 9


@virtual_time
async def test_closing_a_lane_cancels_what_it_has_everywhere() -> None:
    bench = ModelBench(max_batch_size=1, slab_items=2)
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
    bench = ModelBench(window_ms=1000.0, prefetch=9)
    first, second = [bench.lane(Policy.LATEST, capacity=1) for _ in range(2)]
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
    bench = ModelBench()
    lane, other = bench.lane(), bench.lane()
    ids = [bench.offer(lane) for _ in range(3)]

    def cancel_and_offer() -> None:
        lane.cancel(ids[1])
        bench.offer(other)

    bench.reactions = {ids[0]: cancel_and_offer, ids[1]: lane.close}
    await settle()
    bench.executor.finish()
    await run_until(0.01)
    bench.executor.finish()
    answers = bench.outcomes()
    assert isinstance(answers[ids[0]], Result)
    assert answers[ids[1]] == answers[ids[2]] == Cancelled()
    assert isinstance(answers[4], Result)


@virtual_time
async def test_cancelling_inside_the_close_of_the_same_lane_is_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = ModelBench()
    lane = bench.lane()
    ids = [bench.offer(lane) for _ in range(3)]
    bench.reactions = {ids[0]: lambda: lane.cancel(ids[2])}
    lane.close()
    assert bench.outcomes() == dict.fromkeys(ids, Cancelled())
    assert caplog.records == []


@virtual_time
async def test_an_emit_that_raises_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    bench = ModelBench()
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
    bench = ModelBench(run_s=0.1, max_batch_size=1)
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
    bench = ModelBench()
    for _ in range(2):
        bench.offer(bench.lane())
    await bench.batcher.aclose(0.5)
    assert bench.told == [(0.5, 1, SHUTDOWN), (0.5, 2, SHUTDOWN)]
    await bench.batcher.aclose(0.5)
    bench.executor.kill()
    assert bench.executor.slab == set()


@virtual_time
async def test_a_cancelled_close_still_answers_everybody() -> None:
    bench = ModelBench()
    bench.offer(bench.lane())
    closing = asyncio.create_task(bench.batcher.aclose(5.0))
    await settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert bench.outcomes() == {1: SHUTDOWN}


@virtual_time
async def test_abandoned_lanes_cost_nothing() -> None:
    bench = ModelBench()
    for _ in range(1000):
        lane = bench.lane()
        bench.offer(lane, budget_s=60.0)
        lane.close()
        await asyncio.sleep(0)
    batcher = bench.batcher
    assert batcher.num_lanes == batcher.num_in_flight == batcher.num_queued == 0
    assert batcher.counters.cancelled == 1000
    assert len(batcher._deadlines) <= 65
