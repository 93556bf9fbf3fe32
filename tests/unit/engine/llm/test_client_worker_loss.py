"""What the streams are told when workers die."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Quarantined, Unavailable
from engine.llm.suspects import TOGETHER
from engine.types import Cancelled, Failed, Outcome, Result
from tests.fakes.llm_client_bench import STEP_S, running_llm
from tests.fakes.virtual_time import run_until, settle, virtual_time

pytestmark = pytest.mark.unit


def now() -> float:
    return asyncio.get_running_loop().time()


def is_quarantined(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, Quarantined)


@virtual_time
async def test_a_begun_answer_fails_at_once_and_the_others_are_tried_again() -> None:
    async with running_llm() as bench:
        begun = bench.ask(bench.lane(), "a b c d")
        await run_until(now() + 1.5 * STEP_S)
        fresh = bench.ask(bench.lane(), "a b")
        await settle()
        died_at = now()
        bench.host.die()
        failed = bench.outcomes[begun]
        assert now() == died_at
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, Unavailable)
        assert failed.error.retry_after_s is not None
        assert not bench.statistics.ready
        assert bench.statistics.reason == "was killed by SIGKILL"
        assert bench.statistics.retried == 1
        await run_until(died_at + 1.0)
        assert isinstance(bench.outcomes[fresh], Result)
        assert bench.texts[fresh] == ["a ", "b"]
        assert bench.statistics.ready
        assert bench.statistics.worker_restarts == 1


@virtual_time
async def test_a_prompt_that_kills_twice_is_quarantined() -> None:
    async with running_llm() as bench:
        item = bench.ask(bench.lane(), "!crash")
        await run_until(now() + 1.0)
        assert is_quarantined(bench.outcomes[item])
        assert bench.statistics.worker_restarts == 2
        assert bench.statistics.ready


@virtual_time
async def test_a_prompt_that_kills_is_the_only_one_quarantined() -> None:
    async with running_llm() as bench:
        others = [bench.ask(bench.lane()) for _ in range(20)]
        poison = bench.ask(bench.lane(), "!crash")
        others += [bench.ask(bench.lane()) for _ in range(20)]
        await run_until(now() + 5.0)
        assert bench.statistics.worker_restarts == 3
        assert is_quarantined(bench.outcomes.pop(poison))
        assert bench.outcomes.keys() == {*others}
        assert not any(is_quarantined(outcome) for outcome in bench.outcomes.values())


@virtual_time
async def test_harmless_prompts_return_in_few_rounds() -> None:
    async with running_llm() as bench:
        for _ in range(100):
            bench.ask(bench.lane(), "one")
        await settle()
        bench.host.die()
        await run_until(now() + bench.host.restart_s + 13.5 * STEP_S)
        assert len(bench.outcomes) == 100


@virtual_time
async def test_a_suspect_can_be_withdrawn_before_its_turn_and_during_it() -> None:
    async with running_llm() as bench:
        lane = bench.lane()
        items = [bench.ask(lane, "!hold") for _ in range(TOGETHER + 1)] + [bench.ask(lane)]
        await settle()
        bench.host.die()
        await run_until(now() + 1.0)
        lane.cancel(items[TOGETHER])
        await run_until(now() + 1.0)
        assert bench.outcomes == {items[TOGETHER]: Cancelled()}
        lane.cancel(items[0])
        await run_until(now() + 1.0)
        assert bench.outcomes[items[0]] == Cancelled()
        assert isinstance(bench.outcomes[items[-1]], Result)


@virtual_time
async def test_what_is_offered_during_a_restart_waits_for_it() -> None:
    async with running_llm() as bench:
        bench.host.die()
        item = bench.ask(bench.lane())
        assert bench.statistics.queued == 1
        await run_until(now() + 1.0)
        assert isinstance(bench.outcomes[item], Result)


@virtual_time
async def test_an_open_circuit_answers_everybody_and_a_probe_closes_it() -> None:
    async with running_llm() as bench:
        lane = bench.lane()
        items = [bench.ask(lane, "a b c"), bench.ask(lane)]
        await settle()
        bench.ask(lane)  # not even sent
        bench.host.die(can_recover=False)
        for item in (*items, 2):
            failed = bench.outcomes[item]
            assert isinstance(failed, Failed)
            assert isinstance(failed.error, Unavailable)
            assert failed.error.detail == "circuit open: SIGKILL"
        with pytest.raises(Unavailable, match="circuit open"):
            bench.ask(lane)
        assert not bench.statistics.ready
        await run_until(now() + 1.0)
        item = bench.ask(lane)
        await run_until(now() + 1.0)
        assert isinstance(bench.outcomes[item], Result)


@virtual_time
async def test_a_stream_may_withdraw_another_prompt_while_it_is_told_of_a_death() -> None:
    async with running_llm() as bench:
        lane = bench.lane()
        items = [bench.ask(lane, "a b c d") for _ in range(3)]
        await run_until(now() + 1.5 * STEP_S)
        bench.on_emit = lambda: lane.cancel(items[2])
        bench.host.die()
        assert bench.outcomes[items[2]] == Cancelled()
        assert len(bench.outcomes) == 3
        await run_until(now() + 1.0)


@virtual_time
async def test_counters_and_gauges_survive_the_worker() -> None:
    async with running_llm() as bench:
        bench.ask(bench.lane(), "a b c")
        await run_until(now() + 1.0)
        assert bench.host.llm is not None
        bench.host.say(bench.host.llm.gauges())
        bench.host.die()
        llm = bench.statistics.llm
        assert llm is not None
        assert (llm.tokens, llm.running, llm.device) == (3, 0, "")
        await run_until(now() + 1.0)
        bench.ask(bench.lane(), "d e")
        await run_until(now() + 1.0)
        assert bench.host.llm is not None
        bench.host.say(bench.host.llm.gauges())
        assert bench.statistics.llm is not None
        assert bench.statistics.llm.tokens == 5
