"""What the client's side of the language-model engine tells the streams. The boundary's contract
itself is in ``tests/contract``."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from engine.base import TextLane
from engine.config import LlmConfig
from engine.errors import InternalError, InvalidInput, Overloaded, StartupError, Unavailable
from engine.llm import door
from engine.llm.client import LlmEngine
from engine.llm.host import HostEvents
from engine.llm.messages import StepItem
from engine.llm.request import FinishedAnswer, Usage
from engine.manifest import Manifest
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Policy,
    Priority,
    Progress,
    Result,
)
from tests.fakes.echo_llm import prompt
from tests.fakes.llm_client_bench import STEP_S, LlmClientBench, running_llm
from tests.fakes.llm_host import FakeLlmHost
from tests.fakes.virtual_time import run_until, settle, virtual_time

pytestmark = pytest.mark.unit


def now() -> float:
    return asyncio.get_running_loop().time()


# --- answers


@virtual_time
async def test_each_token_is_told_and_then_the_end() -> None:
    async with running_llm() as bench:
        item = bench.ask(bench.lane(), "tell me more")
        await run_until(now() + 1.0)
        assert bench.texts == {item: ["tell ", "me ", "more"]}
        result = bench.outcomes[item]
        assert isinstance(result, Result)
        usage = Usage(prompt_tokens=3, completion_tokens=3, total_tokens=6)
        answer = msgspec.json.decode(result.data, type=FinishedAnswer)
        assert answer == FinishedAnswer(finish_reason="stop", usage=usage)
        assert (result.model, result.version) == ("echo", "1")
        assert result.timing.queue == 0
        assert result.timing.prepare == pytest.approx(STEP_S * 1e6, abs=1)
        assert result.timing.run == pytest.approx(2 * STEP_S * 1e6, abs=1)


@virtual_time
async def test_the_worker_learns_who_asks_and_until_when() -> None:
    async with running_llm() as bench:
        lane = bench.lane(weight=2.0, priority=Priority.BACKGROUND)
        offered_at = now()
        bench.ask(lane, options=b'{"tenant": "acme"}', deadline=now() + 5.0)
        bench.ask(lane)
        await settle()
        first, second = bench.submits
        assert (first.tenant, first.rank, first.weight) == ("acme", 2, 2.0)
        assert first.arrived_us == round(offered_at * 1e6)
        assert first.deadline_us == round((offered_at + 5.0) * 1e6)
        assert (second.tenant, second.deadline_us) == ("", 0)


@pytest.mark.parametrize(
    ("order", "outcome"),
    [
        ("!finish length", Result),
        ("!finish content_filter", Result),
        ("!finish deadline", Dropped(DropReason.DEADLINE)),
        ("!finish error ab12", InternalError),
        ("!finish nonsense ab12", InternalError),
        ("!refuse invalid_input", InvalidInput),
        ("!refuse overloaded", Overloaded),
        ("!refuse unavailable", Unavailable),
        ("!refuse nonsense", InternalError),
    ],
)
def test_every_way_to_end_has_its_outcome(order: str, outcome: type | Dropped) -> None:
    @virtual_time
    async def play() -> None:
        async with running_llm() as bench:
            item = bench.ask(bench.lane(), order)
            await settle()
            told = bench.outcomes[item]
            if isinstance(outcome, Dropped):
                assert told == outcome
            elif isinstance(told, Failed):
                assert type(told.error) is outcome
                assert (told.error.retry_after_s is None) == (not told.error.retryable)
            else:
                assert type(told) is outcome
            await settle()
            assert bench.cancels == []  # the worker knows

    play()


@virtual_time
async def test_a_fault_of_the_worker_keeps_its_log_reference() -> None:
    async with running_llm() as bench:
        item = bench.ask(bench.lane(), "!finish error ab12")
        await settle()
        told = bench.outcomes[item]
        assert isinstance(told, Failed)
        assert isinstance(told.error, InternalError)
        assert told.error.reference == "ab12"


@virtual_time
async def test_a_stream_that_raises_does_not_hurt_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_llm() as bench:

        def emit(item_id: int, news: Progress | Outcome) -> None:
            raise RuntimeError("a fault of the stream's")

        bad = bench.engine.open_lane(LaneSpec(model="echo", policy=Policy.FIFO), emit)
        bad.offer(Item(id=1, payload=prompt("tell me")))
        item = bench.ask(bench.lane())
        await run_until(now() + 1.0)
        assert isinstance(bench.outcomes[item], Result)
        assert "emit raised" in caplog.text
        assert bench.statistics.results == 2


# --- admission


@virtual_time
async def test_a_prompt_over_the_limit_is_refused_at_once() -> None:
    async with running_llm(max_prompt_bytes=100) as bench:
        with pytest.raises(InvalidInput, match="max_prompt_bytes is 100"):
            bench.ask(bench.lane(), "x" * 100)
        assert bench.statistics.accepted == 0


@pytest.mark.parametrize("options", [b"{", b'{"tenant": 3}', b" " * 5000], ids=len)
def test_malformed_options_are_refused_at_once(options: bytes) -> None:
    @virtual_time
    async def play() -> None:
        async with running_llm() as bench:
            with pytest.raises(InvalidInput, match="options"):
                bench.ask(bench.lane(), options=options)
            assert bench.statistics.accepted == 0

    play()


@virtual_time
async def test_a_full_model_refuses_and_says_when_to_come_back() -> None:
    async with running_llm(max_waiting=3) as bench:
        for _ in range(3):
            bench.ask(bench.lane(), "!hold")
        with pytest.raises(Overloaded) as refusal:
            bench.ask(bench.lane())
        assert refusal.value.retry_after_s == door.RETRY_AFTER_S
        assert bench.statistics.in_flight == 3


@virtual_time
async def test_the_bytes_of_all_unanswered_prompts_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "IN_FLIGHT_BYTES", 1000)
    async with running_llm(max_prompt_bytes=600) as bench:
        lane = bench.lane(Policy.LATEST, capacity=1)
        bench.ask(lane, "!hold " + "x" * 400)
        bench.ask(bench.lane(), "!hold " + "x" * 200)
        with pytest.raises(Overloaded, match="bytes of prompts"):
            bench.ask(bench.lane(), "!hold " + "x" * 400)
        bench.ask(lane, "!hold " + "x" * 400)  # takes the place of its predecessor


@virtual_time
async def test_a_lane_counts_its_running_prompts() -> None:
    async with running_llm() as bench:
        lane = bench.lane(capacity=1)
        bench.ask(lane, "a b c d")
        await run_until(now() + 2.5 * STEP_S)
        with pytest.raises(Overloaded, match="the stream already has 1 prompts"):
            bench.ask(lane)
        bench.ask(bench.lane())


@virtual_time
async def test_latest_replaces_a_prompt_that_runs_and_stops_it() -> None:
    async with running_llm() as bench:
        lane = bench.lane(Policy.LATEST, capacity=1)
        old = bench.ask(lane, "a b c d")
        await run_until(now() + 2.5 * STEP_S)
        new = bench.ask(lane)
        assert bench.outcomes == {old: Dropped(DropReason.SUPERSEDED)}
        await run_until(now() + 1.0)
        assert bench.texts[old] == ["a ", "b "]
        assert isinstance(bench.outcomes[new], Result)
        assert [message.keys for message in bench.cancels] == [(bench.submits[0].key,)]


@virtual_time
async def test_an_id_is_not_used_twice_at_the_same_time() -> None:
    async with running_llm() as bench:
        lane = bench.lane()
        bench.ask(lane)
        with pytest.raises(ValueError, match="not answered yet"):
            lane.offer(Item(id=0, payload=prompt("again")))


# --- giving up


@virtual_time
async def test_an_expired_prompt_is_told_to_the_worker_and_its_late_tokens_are_discarded() -> None:
    async with running_llm() as bench:
        began = now()
        item = bench.ask(bench.lane(), "a b c d e f", deadline=began + 2.5 * STEP_S)
        await run_until(began + 2.6 * STEP_S)
        assert bench.outcomes == {item: Dropped(DropReason.DEADLINE)}
        key = bench.submits[0].key
        assert [message.keys for message in bench.cancels] == [(key,)]
        assert bench.host.llm is not None
        bench.host.say_step(StepItem(key, ("late",)))
        await run_until(began + 1.0)
        assert bench.texts[item] == ["a ", "b "]


@virtual_time
async def test_cancels_of_one_turn_go_in_one_message() -> None:
    async with running_llm() as bench:
        lane, other = bench.lane(), bench.lane()
        items = [bench.ask(lane, "!hold") for _ in range(3)]
        bench.ask(other, "!hold")
        await settle()
        lane.cancel(items[1])
        lane.close()
        other.close()
        await settle()
        assert [sorted(message.keys) for message in bench.cancels] == [[0, 1, 2, 3]]
        assert set(bench.outcomes.values()) == {Cancelled()}


@virtual_time
async def test_what_is_withdrawn_in_the_same_turn_is_never_sent() -> None:
    async with running_llm() as bench:
        for _ in range(100):
            lane = bench.lane()
            bench.ask(lane)
            lane.close()
        await settle()
        assert not bench.host.sent


@virtual_time
async def test_a_stream_may_withdraw_while_it_is_told_a_token() -> None:
    async with running_llm() as bench:
        lanes: list[TextLane] = []

        def emit(item_id: int, news: Progress | Outcome) -> None:
            bench.emit(item_id, news)
            lanes[0].cancel(item_id)

        lanes.append(bench.engine.open_lane(LaneSpec(model="echo"), emit))
        item = bench.ask(lanes[0], "!hold")
        await settle()
        bench.host.say_step(StepItem(bench.submits[0].key, ("a", "b", "c")))
        assert bench.texts[item] == ["a"]
        assert bench.outcomes[item] == Cancelled()


# --- a worker that does not read


@virtual_time
async def test_nothing_is_sent_while_the_socket_is_full() -> None:
    async with running_llm() as bench:
        lane = bench.lane()
        running = bench.ask(lane, "!hold")
        await settle()
        bench.host.pause()
        lane.cancel(running)
        withdrawn, kept = bench.ask(lane), bench.ask(lane)
        lane.cancel(withdrawn)
        await settle()
        assert len(bench.host.sent) == 1
        bench.host.resume()
        await run_until(now() + 1.0)
        assert [message.keys for message in bench.cancels] == [(0,)]
        assert [submit.key for submit in bench.submits] == [0, 2]
        assert isinstance(bench.outcomes[kept], Result)


# --- release table


@virtual_time
async def test_releases_go_together_twenty_times_a_second() -> None:
    async with running_llm() as bench:
        lane, other = bench.lane(), bench.lane()
        items = [bench.ask(lane, "!hold"), bench.ask(other, "!hold")]
        await settle()
        began = now()
        for released in range(10):
            lane.note_release(items[0], released, 30.0)
        other.note_release(items[1], 5, 10.0)
        lane.note_release(4711, 1, 1.0)
        await run_until(began + 1.0)
        (table,) = bench.host.releases
        assert [(r.key, r.released, r.tokens_per_s) for r in table.releases] == [
            (0, 9, 30.0),
            (1, 5, 10.0),
        ]
        assert table.releases[0].at_us == round(began * 1e6)

        for tick in range(100):  # one each centisecond
            lane.note_release(items[0], 10 + tick, 30.0)
            await run_until(began + 1.0 + tick * 0.01)
        await run_until(began + 3.0)
        assert 15 <= len(bench.host.releases) - 1 <= 21
        assert bench.host.releases[-1].releases[0].released == 109


@virtual_time
async def test_releases_of_answered_prompts_are_not_sent() -> None:
    async with running_llm() as bench:
        lane = bench.lane()
        item = bench.ask(lane, "!hold")
        await settle()
        lane.note_release(item, 1, 30.0)
        lane.cancel(item)
        lane.note_release(item, 2, 30.0)
        await run_until(now() + 1.0)
        assert bench.host.releases == []


# --- statistics


@virtual_time
async def test_statistics_tell_waiting_from_running_and_the_workers_gauges() -> None:
    async with running_llm() as bench:
        assert isinstance(bench.lane(), TextLane)
        bench.ask(bench.lane(), "a b c d")
        bench.ask(bench.lane(), "!hold")
        await run_until(now() + 1.5 * STEP_S)
        assert bench.host.llm is not None
        bench.host.say(bench.host.llm.gauges())
        model = bench.statistics
        assert (model.queued, model.in_flight, model.lanes) == (1, 2, 3)
        assert (model.providers, model.workers_alive) == (("cpu",), 1)
        assert model.llm is not None
        assert (model.llm.running, model.llm.tokens, model.batches) == (1, 1, 1)
        assert model.llm.kv_cache_utilization == 0.01


def test_statistics_need_no_loop() -> None:
    engine = LlmEngine({"echo": (Manifest(name="echo"), LlmConfig())})
    (model,) = engine.statistics().models
    assert (model.model, model.ready, model.reason) == ("echo", False, "not started")


def test_a_prompt_limit_that_no_message_can_hold_is_refused() -> None:
    config = LlmConfig(max_prompt_bytes=1 << 30)
    with pytest.raises(ValueError, match="max_prompt_bytes must be <="):
        LlmEngine({"echo": (Manifest(name="echo"), config)})


# --- life


@virtual_time
async def test_before_the_start_nothing_is_served() -> None:
    bench = LlmClientBench()
    lane = bench.lane()
    with pytest.raises(Unavailable, match="starting"):
        bench.ask(lane)
    await bench.engine.aclose(now())


@virtual_time
async def test_a_model_that_cannot_start_stops_the_others_too() -> None:
    hosts: list[FakeLlmHost] = []

    def build(manifest: Manifest, config: LlmConfig, events: HostEvents) -> FakeLlmHost:
        hosts.append(FakeLlmHost(manifest, config, events))
        return hosts[-1]

    models = {name: (Manifest(name=name), LlmConfig()) for name in ("good", "bad")}
    engine = LlmEngine(models, build)
    hosts[1].start_error = StartupError("model bad: no such file")
    with pytest.raises(StartupError, match="model bad"):
        await engine.start()
    assert not hosts[0].is_started
    with pytest.raises(Unavailable):
        engine.open_lane(LaneSpec(model="good"), lambda *_: None)


@virtual_time
async def test_a_worker_that_becomes_busy_is_watched_from_then_on() -> None:
    async with running_llm() as bench:
        await run_until(100.0)
        bench.ask(bench.lane(), "!hold")
        await run_until(200.0)
        bench.ask(bench.lane(), "!hold")
        assert bench.host.busy_since == 100.0
