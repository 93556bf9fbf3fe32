"""What becomes of bound items when the slab is full, a batch fails or a worker dies."""

from __future__ import annotations

import pytest

from engine.errors import InternalError, InvalidInput, Quarantined, Unavailable
from engine.types import Cancelled, Dropped, DropReason, Failed, Policy, Result
from tests.fakes.model_bench import ModelBench
from tests.fakes.virtual_time import run_until, settle, virtual_time

pytestmark = pytest.mark.unit

DEADLINE = Dropped(DropReason.DEADLINE)


# --- the slab


@virtual_time
async def test_when_the_slab_is_full_the_rest_of_the_batch_goes_first_later() -> None:
    bench = ModelBench(max_batch_size=4, slab_items=3, prefetch=1)
    lane = bench.lane()
    for _ in range(4):
        bench.offer(lane)
    await settle()
    bench.offer(lane)
    await settle()
    assert bench.executor.payloads == [[b"1", b"2", b"3"]]
    assert bench.batcher.num_queued == 2
    bench.executor.finish()
    await run_until(0.01)
    assert bench.executor.payloads[1:] == [[b"4"], [b"5"]]


@virtual_time
async def test_an_item_that_found_no_room_in_the_slab_can_expire_and_be_cancelled() -> None:
    bench = ModelBench(slab_items=1, prefetch=1)
    lane = bench.lane()
    ids = [bench.offer(lane, budget_s=budget) for budget in (None, 0.1, None)]
    await settle()
    lane.cancel(ids[2])
    await run_until(0.1)
    assert bench.outcomes() == {ids[1]: DEADLINE, ids[2]: Cancelled()}


# --- workers that fail


@virtual_time
async def test_a_failed_batch_fails_its_items_and_the_next_one_runs() -> None:
    bench = ModelBench()
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
    bench = ModelBench(max_batch_size=2, workers=2)
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
    bench = ModelBench(max_batch_size=2, workers=3)
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
    bench = ModelBench(max_batch_size=1, workers=2, prefetch=1)
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
    bench = ModelBench(max_batch_size=2)
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


@virtual_time
async def test_without_retries_a_lost_item_is_dropped_and_not_called_guilty() -> None:
    bench = ModelBench(config={"max_attempts": 1})
    lane = bench.lane()
    ids = [bench.offer(lane), bench.offer(lane)]
    await settle()
    bench.executor.kill()
    assert bench.outcomes() == dict.fromkeys(ids, Dropped(DropReason.WORKER_LOST))
    assert bench.executor.slab == set()


@virtual_time
async def test_an_item_is_tried_as_often_as_configured() -> None:
    bench = ModelBench(config={"max_attempts": 4})
    bench.offer(bench.lane())
    for _ in range(3):
        await settle()
        assert bench.told == []
        bench.executor.kill()
        bench.executor.revive()
    await settle()
    assert bench.batcher.counters.retried == 3
    bench.executor.kill()
    outcome = bench.outcomes()[1]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Quarantined)


@virtual_time
async def test_what_workers_have_had_for_too_long_is_answered_although_it_has_no_deadline() -> None:
    bench = ModelBench(config={"run_timeout_s": 30.0})
    lane = bench.lane()
    item_id = bench.offer(lane)
    await run_until(20.0)
    bench.executor.kill()
    bench.executor.revive()  # the second attempt does not get another 30 s
    await run_until(40.0)
    (when, told_id, outcome) = bench.told[0]
    assert (when, told_id) == (30.0, item_id)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Unavailable)
    bench.executor.finish()
    assert len(bench.told) == 1
    assert bench.batcher.counters.discarded == 1
    assert bench.executor.slab == set()


@virtual_time
async def test_waiting_for_a_worker_does_not_count_as_running() -> None:
    bench = ModelBench(config={"run_timeout_s": 30.0}, max_batch_size=1)
    lane = bench.lane()
    for _ in range(2):
        bench.offer(lane)
    await run_until(20.0)
    bench.executor.finish()
    await run_until(45.0)
    bench.executor.finish()
    assert all(isinstance(outcome, Result) for outcome in bench.outcomes().values())


@pytest.mark.parametrize("how", ["cancel", "expire"])
@virtual_time
async def test_a_worker_is_told_what_nobody_waits_for_any_more(how: str) -> None:
    bench = ModelBench()
    lane = bench.lane()
    wanted, given_up = bench.offer(lane), bench.offer(lane, budget_s=0.1)
    await settle()
    if how == "cancel":
        lane.cancel(given_up)
    await run_until(0.2)
    assert list(bench.executor.withdrawn) == [bench.executor.busy[0].works[1].key]
    bench.executor.finish()
    assert isinstance(bench.outcomes()[wanted], Result)
    assert len(bench.executor.withdrawn) == 1


@virtual_time
async def test_an_answer_that_comes_twice_is_told_once() -> None:
    bench = ModelBench()
    bench.offer(bench.lane())
    await settle()
    key = bench.executor.busy[0].keys[0]
    bench.executor.finish()
    bench.batcher.on_done(key, Failed(InternalError()))
    assert isinstance(bench.outcomes()[1], Result)
    assert bench.batcher.counters.discarded == 1


@virtual_time
async def test_room_behind_a_running_batch_is_used_at_once_while_deadlines_are_kept() -> None:
    curve = {1: 0.040}
    bench = ModelBench(max_batch_size=1, prefetch=1, run_s=0.040, warmup_run_s=curve)
    lane = bench.lane(Policy.LATEST, capacity=1)
    bench.offer(lane)
    await run_until(0.005)
    bench.offer(lane, budget_s=0.200)
    await settle()
    assert bench.executor.payloads == [[b"1"], [b"2"]]


@virtual_time
async def test_when_deadlines_are_near_that_room_is_left_until_shortly_before_the_end() -> None:
    """Bound earlier, an item would only grow old, and a newer one could not take its place."""
    curve = {1: 0.040}
    bench = ModelBench(max_batch_size=1, prefetch=1, run_s=0.040, warmup_run_s=curve)
    lane = bench.lane(Policy.LATEST, capacity=1)
    bench.offer(lane)
    await run_until(0.005)
    bench.offer(lane, budget_s=0.060)
    await run_until(0.028)
    assert bench.executor.payloads == [[b"1"]]
    bench.offer(lane, budget_s=0.060)
    await run_until(0.031)
    assert bench.executor.payloads == [[b"1"], [b"3"]]


@pytest.mark.parametrize("how", ["cancel", "expire"])
@virtual_time
async def test_a_lost_item_that_is_given_up_frees_its_slot(how: str) -> None:
    bench = ModelBench()
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
    bench = ModelBench()
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
    bench = ModelBench(max_batch_size=2)
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
async def test_a_refusal_says_when_the_next_attempt_begins() -> None:
    bench = ModelBench()
    lane = bench.lane()
    bench.offer(lane)
    await settle()
    bench.offer(lane)
    bench.executor.break_down(retry_at=61.0)
    await run_until(31.0)
    for when, seconds in ((31.0, 30.0), (60.5, 1.0), (70.0, 1.0)):
        await run_until(when)
        with pytest.raises(Unavailable) as refused:
            bench.offer(lane)
        assert refused.value.retry_after_s == seconds
    waits = [o.error.retry_after_s for o in bench.outcomes().values() if isinstance(o, Failed)]
    assert waits == [61.0, 61.0]


@virtual_time
async def test_items_lost_after_the_model_broke_are_answered_too() -> None:
    bench = ModelBench(workers=2)
    bench.offer(bench.lane())
    await settle()
    bench.batcher.on_unavailable("circuit open", None)
    assert bench.outcomes() == {}  # a worker still holds it
    bench.executor.kill(0)
    assert isinstance(bench.outcomes()[1], Failed)


@virtual_time
async def test_a_model_that_comes_back_serves_again() -> None:
    bench = ModelBench()
    lane = bench.lane()
    bench.executor.break_down()
    bench.executor.revive()
    bench.offer(lane)
    await settle()
    bench.executor.finish()
    assert isinstance(bench.outcomes()[1], Result)


@virtual_time
async def test_a_report_of_room_without_a_ready_worker_revives_nothing() -> None:
    bench = ModelBench()
    bench.executor.break_down()
    bench.batcher.on_room()
    assert bench.batcher.unavailable == "circuit open"


@virtual_time
async def test_a_dispatch_that_raises_fails_its_batch_only() -> None:
    bench = ModelBench()
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
