"""A pool of real worker processes at work: order, overlap, faults of items, bounds."""

from __future__ import annotations

import asyncio
import json
import logging
import os

import psutil
import pytest
import uvloop

from engine.batching.executor import Work
from engine.errors import InternalError, InvalidInput
from engine.log_format import JsonFormatter
from engine.types import AttachmentKind, Failed, Result
from tests.fakes.pools import child_pids, dispatch_all, make_pool, running_pool, work

pytestmark = pytest.mark.integration


async def test_two_hundred_batches_come_back_intact_and_in_order() -> None:
    async with running_pool("build_echo", max_batch_size=4) as (pool, events):
        for first in range(0, 800, 4):
            await events.wait(lambda: pool.free_slots > 0)
            keys = range(first, first + 4)
            batch = [Work(key=k, payload=bytes([k % 256]) * k, meta=b"", options=b"") for k in keys]
            dispatch_all(pool, batch)
        await events.wait(lambda: len(events.answers) == 800)
        assert list(events.answers) == list(range(800))
        for key in range(800):
            assert await events.data(key) == {"bytes": key, "sum": key % 256 * key}
        assert {size for size, _ in events.batches} == {4}


def test_the_pool_runs_on_uvloop_too() -> None:
    async def main() -> None:
        pool, _ = make_pool()  # the first use makes uvloop open a descriptor that it keeps
        await pool.start()
        await pool.aclose(asyncio.get_running_loop().time() + 1.0)
        async with running_pool(workers=2) as (pool, events):
            dispatch_all(pool, [work(1), work(2)])
            assert (await events.data(2))["batch"] == 2

    uvloop.run(main())


async def test_the_next_batch_is_prepared_while_one_runs() -> None:
    async with running_pool(options={"run_s": 0.3}) as (pool, events):
        dispatch_all(pool, [work(1)])
        dispatch_all(pool, [work(2, stage="prepare", sleep_s=0.1)])
        first, second = await events.data(1), await events.data(2)
        assert second["prepare"][1] < first["run"][1]
        # The second batch waited behind the first, and its timing says for how long.
        assert second["run"][0] >= first["run"][1]


async def test_a_worker_takes_one_running_and_prefetch_count_waiting_batches() -> None:
    async with running_pool(options={"run_s": 0.2}, prefetch_count=1) as (pool, events):
        assert (pool.free_slots, pool.idle_workers) == (2, 1)
        dispatch_all(pool, [work(1)])
        assert (pool.free_slots, pool.idle_workers) == (1, 0)
        dispatch_all(pool, [work(2)])
        assert pool.dispatch([work(3)]) == 0
        await events.answer(2)
        assert (pool.free_slots, pool.idle_workers) == (2, 1)


async def test_a_worker_with_two_streams_runs_two_batches_side_by_side() -> None:
    # The pipeline opens no network, so that the provider need not be there.
    keys = {"execution_providers": ("CUDAExecutionProvider",), "cuda_streams": 2}
    async with running_pool(options={"run_s": 0.3}, prefetch_count=1, **keys) as (pool, events):
        assert (pool.free_slots, pool.idle_streams) == (3, 2)
        dispatch_all(pool, [work(1)])
        assert (pool.free_slots, pool.idle_streams, pool.idle_workers) == (2, 1, 0)
        dispatch_all(pool, [work(2)])
        assert (pool.free_slots, pool.idle_streams) == (1, 0)
        first, second = await events.data(1), await events.data(2)
        assert max(first["run"][0], second["run"][0]) < min(first["run"][1], second["run"][1])


async def test_batches_go_to_the_least_loaded_worker() -> None:
    async with running_pool(options={"run_s": 0.1}, workers=2) as (pool, events):
        for key in range(4):
            dispatch_all(pool, [work(key)])
        workers = [(await events.data(key))["worker"] for key in range(4)]
        assert sorted(workers) == [0, 0, 1, 1]
        assert workers[0] != workers[1]


@pytest.mark.parametrize("stage", ["prepare", "run", "interpret"])
async def test_an_item_at_fault_fails_alone(stage: str) -> None:
    async with running_pool() as (pool, events):
        faulty = [work(2, stage=stage, act="invalid"), work(3, stage=stage, act="raise")]
        dispatch_all(pool, [work(1), *faulty, work(4)])
        await events.wait(lambda: len(events.answers) == 4)
        assert (await events.data(1))["bytes"] == (await events.data(4))["bytes"] == 7
        invalid, internal = events.answers[2], events.answers[3]
        assert isinstance(invalid, Failed)
        assert isinstance(invalid.error, InvalidInput)
        assert invalid.error.detail == "the script says so"
        assert isinstance(internal, Failed)
        assert isinstance(internal.error, InternalError)
        assert pool.statistics().restarts == 0


async def test_an_internal_error_has_a_reference_that_the_log_has_too(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1, act="raise")])
        answer = await events.answer(1)
    assert isinstance(answer, Failed)
    assert isinstance(answer.error, InternalError)
    log = capfd.readouterr().err
    assert answer.error.reference in log
    assert "worker test-model/0 pid" in log
    assert "RuntimeError: scripted failure" in log


async def test_prepare_must_not_keep_its_payload() -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1, stage="prepare", act="keep"), work(2)])
        answer = await events.answer(1)
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, InternalError)
        assert (await events.data(2))["bytes"] == 7


async def test_attachments_arrive() -> None:
    async with running_pool() as (pool, events):
        dispatch_all(pool, [work(1, annotate="boxes")])
        answer = await events.answer(1)
        assert isinstance(answer, Result)
        (attachment,) = answer.attachments
        assert attachment.kind is AttachmentKind.ANNOTATED_FRAME
        assert attachment.payload == bytes(range(16))


async def test_an_answer_over_the_limit_is_told_in_words() -> None:
    async with running_pool(max_output_bytes=100_000) as (pool, events):
        dispatch_all(pool, [work(1, answer_bytes=200_000), work(2, answer_bytes=50_000)])
        answer = await events.answer(1)
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, InvalidInput)
        assert "max_output_bytes is 100000" in answer.error.detail
        assert len((await events.data(2))["pad"]) == 50_000


async def test_an_item_that_is_too_large_is_refused_without_a_worker() -> None:
    async with running_pool(max_item_bytes=1000) as (pool, events):
        assert pool.dispatch([work(1, payload=bytes(1001))]) == 1
        assert events.answers == {}  # not from inside dispatch
        answer = await events.answer(1)
        assert isinstance(answer, Failed)
        assert "max_item_bytes is 1000" in str(answer.error)


async def test_a_full_slab_takes_what_fits_and_calls_when_there_is_room() -> None:
    item = bytes(1 << 18)
    async with running_pool(options={"run_s": 0.1}) as (pool, events):
        batch = [work(key, payload=item) for key in range(5)]
        taken = pool.dispatch(batch)
        assert 1 <= taken < 5
        assert pool.dispatch(batch[taken:]) == 0
        rooms = events.num_rooms
        await events.wait(lambda: len(events.answers) == taken)
        assert events.num_rooms > rooms
        dispatch_all(pool, batch[taken:])
        await events.wait(lambda: len(events.answers) == 5)
        assert pool.statistics().slab_used_bytes == 0


async def test_a_suspect_gets_a_worker_to_itself() -> None:
    async with running_pool(options={"run_s": 0.1}) as (pool, events):
        dispatch_all(pool, [work(1)])
        assert pool.dispatch([work(2)], alone=True) == 0
        await events.wait(lambda: pool.idle_workers == 1)
        dispatch_all(pool, [work(2)], alone=True)
        assert pool.free_slots == 0
        assert pool.dispatch([work(3)]) == 0
        await events.answer(2)
        await events.wait(lambda: pool.free_slots == 2)


async def test_statistics_describe_the_workers() -> None:
    async with running_pool("build_scripted", {"warm_up_s": 0.01}, workers=2) as (pool, _):
        statistics = pool.statistics()
        assert statistics.ready
        assert (statistics.workers_alive, statistics.workers_wanted) == (2, 2)
        assert len(statistics.rss_bytes) == 2
        assert all(10_000_000 < rss < 200_000_000 for rss in statistics.rss_bytes)
        assert sorted(pool.warmup_run_s) == [1, 2, 4, 8]
        assert pool.warmup_run_s[8] == pytest.approx(0.01, rel=0.5)


async def test_a_worker_has_its_environment_set_before_libraries_load() -> None:
    async with running_pool():
        (pid,) = child_pids()
        environment = psutil.Process(pid).environ()
        assert environment["ORT_DISABLE_TELEMETRY"] == "1"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert os.getsid(pid) != os.getsid(0)  # the terminal's Ctrl-C does not reach it
        assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull


async def test_closing_answers_what_is_in_flight() -> None:
    async with running_pool(options={"run_s": 0.1}) as (pool, events):
        dispatch_all(pool, [work(1), work(2)])
        dispatch_all(pool, [work(3)])
        await pool.aclose(asyncio.get_running_loop().time() + 5.0)
        assert sorted(events.answers) == [1, 2, 3]
        assert events.lost == []


async def test_a_worker_logs_as_its_host_does(capfd: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)
    try:
        async with running_pool() as (pool, events):
            dispatch_all(pool, [work(1, act="raise")])
            failed = await events.answer(1)
    finally:
        logging.getLogger().removeHandler(handler)
    assert isinstance(failed, Failed)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (line,) = [line for line in lines if line.get("worker", "").startswith("test-model/0 pid ")]
    assert line["level"] == "error"
    assert str(failed.error).removeprefix("internal error, ") in line["message"]
    assert "scripted failure" in line["traceback"]
