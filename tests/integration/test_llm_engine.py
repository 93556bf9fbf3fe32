"""The language-model engine with worker processes that die, hang, cannot start or do not read."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.errors import InternalError, Quarantined, StartupError, Unavailable
from engine.types import Dropped, DropReason, Failed, Outcome, Result
from engine.workers.channel import MAX_UNSENT_BYTES
from tests.fakes.echo_llm import prompt
from tests.fakes.llm_engines import make_llm, running_llm_engine
from tests.fakes.pools import child_pids, nothing_left

pytestmark = pytest.mark.integration


def is_failed(outcome: Outcome, kind: type[Exception]) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, kind)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_prompts_of_many_lanes_are_answered_with_their_own_words() -> None:
    async with running_llm_engine() as streams:
        texts = [f"this is prompt number {number} " * (1 + number % 5) for number in range(50)]
        items = [streams.ask(streams.lane(), prompt(text)) for text in texts]
        for item, text in zip(items, texts, strict=True):
            assert isinstance(await streams.outcome(item), Result)
            assert streams.texts[item] == text
        await streams.wait(lambda: streams.statistics.batches > 0)
        statistics = streams.statistics
        assert (statistics.results, statistics.in_flight) == (50, 0)
        assert statistics.worker_rss_bytes[0] > 0


async def test_a_killed_worker_answers_at_once_and_is_replaced() -> None:
    async with running_llm_engine({"step_s": 0.02}) as streams:
        begun = streams.ask(streams.lane(), prompt("word " * 1000))
        await streams.wait(lambda: begun in streams.texts)
        held = streams.ask(streams.lane(), prompt("!hold"))
        (pid,) = child_pids()
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        fresh = streams.ask(streams.lane(), prompt("a b c"))
        assert is_failed(await streams.outcome(begun), Unavailable)
        assert time.monotonic() - killed_at < 1.0
        assert streams.statistics.reason == f"worker 0 (pid {pid}) was killed by SIGKILL"
        assert isinstance(await streams.outcome(fresh), Result)
        assert streams.statistics.ready
        assert streams.statistics.worker_restarts == 1
        assert held not in streams.outcomes  # it is with the new worker


async def test_a_prompt_that_kills_is_quarantined_and_the_model_serves_on() -> None:
    async with running_llm_engine(max_restarts=1) as streams:
        for _ in range(2):  # four deaths, but each worker was of use
            good = streams.ask(streams.lane(), prompt("a b"))
            assert isinstance(await streams.outcome(good), Result)
            poison = streams.ask(streams.lane(), prompt("!crash"))
            await streams.wait(lambda: not streams.statistics.ready)
            good = streams.ask(streams.lane(), prompt("a b"))
            assert is_failed(await streams.outcome(poison), Quarantined)
            assert isinstance(await streams.outcome(good), Result)


async def test_a_worker_that_is_silent_for_too_long_is_replaced() -> None:
    async with running_llm_engine(stall_timeout_s=0.4) as streams:
        stalling = streams.ask(streams.lane(), prompt("!stall"))
        fine = streams.ask(streams.lane(), prompt("a b c"))
        assert is_failed(await streams.outcome(stalling), Quarantined)
        assert isinstance(await streams.outcome(fine), Result)


async def test_an_idle_worker_is_not_silent_for_too_long() -> None:
    async with running_llm_engine(stall_timeout_s=0.2) as streams:
        (pid,) = child_pids()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        assert isinstance(await streams.outcome(streams.ask(streams.lane(), prompt("a b"))), Result)
        assert streams.statistics.worker_restarts == 0


async def test_a_crash_loop_opens_the_circuit_and_a_probe_closes_it(tmp_path: Path) -> None:
    switch = tmp_path / "broken"
    config = {"max_restarts": 1, "restart_window_s": 1.5}
    async with running_llm_engine({"break_file": str(switch)}, **config) as streams:
        lane = streams.lane()
        switch.touch()
        held = streams.ask(lane, prompt("!hold"))
        os.kill(child_pids()[0], signal.SIGKILL)
        failed = await streams.outcome(held)
        assert isinstance(failed, Failed)
        assert "circuit open" in failed.error.detail
        assert "exited with code 7 while loading" in streams.statistics.reason
        with pytest.raises(Unavailable, match="circuit open"):
            streams.ask(lane, prompt("a"))
        switch.unlink()
        await streams.wait(lambda: streams.statistics.ready)
        assert isinstance(await streams.outcome(streams.ask(lane, prompt("a"))), Result)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ("fail", "no such file: model.safetensors"),
        ("crash", "exited with code 7 while loading"),
        ("hang", "was not ready within start_timeout_s = 0.5 s"),
    ],
)
async def test_a_first_start_that_fails_says_why_and_leaves_nothing(start: str, words: str) -> None:
    # Only the worker that hangs may run into the limit, however busy the machine is.
    start_timeout_s = 0.5 if start == "hang" else 30.0
    with nothing_left():
        with pytest.raises(StartupError, match=words):
            await make_llm({"start": start}, start_timeout_s=start_timeout_s).start()
        # a worker that cannot be run at all
        with pytest.raises(StartupError, match="exited with code 1 while loading"):
            await make_llm(module="tests.no_such_module").start()


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.3])
async def test_closing_while_the_worker_starts_leaves_nothing(delay_s: float) -> None:
    with nothing_left():
        engine = make_llm({"start": "hang"})
        start = asyncio.create_task(engine.start())
        await asyncio.sleep(delay_s)
        began = time.monotonic()
        await engine.aclose(now() + 10.0)
        assert time.monotonic() - began < 2.0
        with pytest.raises((StartupError, Unavailable)):
            await start


async def test_closing_a_hung_worker_keeps_the_deadline() -> None:
    async with running_llm_engine() as streams:
        item = streams.ask(streams.lane(), prompt("!stall"))
        began = time.monotonic()
        await streams.engine.aclose(now() + 0.2)
        assert time.monotonic() - began < 1.5
        assert streams.outcomes[item] == Dropped(DropReason.SHUTDOWN)
        await streams.engine.aclose(now())


async def test_deadlines_are_told_while_the_worker_is_stopped() -> None:
    async with running_llm_engine() as streams:
        worker = psutil.Process(child_pids()[0])
        worker.suspend()
        due = now() + 0.1
        item = streams.ask(streams.lane(), prompt("a b c"), deadline=due)
        assert await streams.outcome(item) == Dropped(DropReason.DEADLINE)
        assert now() < due + 5.0
        worker.resume()


async def test_memory_is_bounded_when_the_worker_does_not_read() -> None:
    """Prompts that are offered and withdrawn, 200 MB in all, while nothing is read."""
    async with running_llm_engine() as streams:
        worker = psutil.Process(child_pids()[0])
        worker.suspend()
        payload = prompt("!hold " + "x" * 500_000)
        before = psutil.Process().memory_info().rss
        for _ in range(400):
            lane = streams.lane()
            streams.ask(lane, payload)
            await asyncio.sleep(0)
            lane.close()
        grown = psutil.Process().memory_info().rss - before
        assert grown < 10 * (MAX_UNSENT_BYTES + len(payload))
        assert (streams.statistics.in_flight, streams.statistics.lanes) == (0, 0)
        worker.resume()
        assert isinstance(await streams.outcome(streams.ask(streams.lane(), prompt("a b"))), Result)


async def test_a_fault_in_one_answer_leaves_the_others_alone() -> None:
    async with running_llm_engine() as streams:
        bad = streams.ask(streams.lane(), prompt("!finish error ab12"))
        good = streams.ask(streams.lane(), prompt("a b c"))
        assert is_failed(await streams.outcome(bad), InternalError)
        assert isinstance(await streams.outcome(good), Result)


HOST = """
import asyncio
from tests.fakes.echo_llm import prompt
from tests.fakes.llm_engines import LlmStreams, make_llm
from tests.fakes.pools import child_pids

async def main():
    engine = make_llm()
    await engine.start()
    streams = LlmStreams(engine)
    streams.ask(streams.lane(), prompt("!stall"))
    await asyncio.sleep(0.1)
    print(child_pids()[0], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_no_worker_outlives_a_host_that_is_killed() -> None:
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        worker = psutil.Process(int(host.stdout.readline()))
        host.kill()
        deadline = time.monotonic() + 2.0
        while is_running(worker) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(worker)


def is_running(process: psutil.Process) -> bool:
    """Whoever adopts an orphan may be slow to reap it; a zombie holds nothing any more."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
