"""The upstream engine against a server that stalls, bursts, breaks off and says no."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from engine.config import UpstreamConfig
from engine.errors import (
    EngineError,
    InternalError,
    InvalidInput,
    Overloaded,
    StartupError,
    Unavailable,
)
from engine.llm.request import ChatMessage, FinishedAnswer, PromptOptions, PromptPayload, Sampling
from engine.llm.upstream.engine import UpstreamEngine
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
from tests.fakes.openai_server import FakeOpenAiServer, Script

pytestmark = pytest.mark.integration

KEY = "sk-very-secret"
WAIT_S = 5.0


class Stream:
    """One lane and what it was told."""

    def __init__(self, engine: UpstreamEngine) -> None:
        self.pieces: dict[int, list[str]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self._news = asyncio.Event()
        spec = LaneSpec(model="echo", policy=Policy.FIFO, capacity=100)
        self.lane = engine.open_lane(spec, self._emit)

    def ask(
        self,
        text: str,
        *,
        chat: bool = False,
        tenant: str = "",
        budget_s: float | None = None,
        **sampling: Any,
    ) -> int:
        item_id = len(self.pieces)
        self.pieces[item_id] = []
        prompt: dict[str, Any] = (
            {"messages": (ChatMessage(role="user", content=text),)} if chat else {"prompt": text}
        )
        deadline = None if budget_s is None else asyncio.get_running_loop().time() + budget_s
        self.lane.offer(
            Item(
                id=item_id,
                payload=msgspec.json.encode(PromptPayload(sampling=Sampling(**sampling), **prompt)),
                options=msgspec.json.encode(PromptOptions(tenant=tenant)),
                deadline=deadline,
            )
        )
        return item_id

    async def outcome(self, item_id: int) -> Outcome:
        await self.wait_until(lambda: item_id in self.outcomes)
        return self.outcomes[item_id]

    async def answer(self, text: str, **options: Any) -> tuple[str, FinishedAnswer]:
        item_id = self.ask(text, **options)
        outcome = await self.outcome(item_id)
        assert isinstance(outcome, Result), outcome
        return "".join(self.pieces[item_id]), msgspec.json.decode(outcome.data, type=FinishedAnswer)

    async def error(self, text: str = "one two three", **options: Any) -> EngineError:
        outcome = await self.outcome(self.ask(text, **options))
        assert isinstance(outcome, Failed), outcome
        return outcome.error

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_true():
                self._news.clear()
                await self._news.wait()

    def _emit(self, item_id: int, news: Progress | Outcome) -> None:
        assert item_id not in self.outcomes
        if isinstance(news, Progress):
            self.pieces[item_id].append(news.text)
        else:
            self.outcomes[item_id] = news
        self._news.set()


@pytest.fixture
async def server() -> AsyncIterator[FakeOpenAiServer]:
    async with FakeOpenAiServer() as server:
        yield server


@contextlib.asynccontextmanager
async def serving(server: FakeOpenAiServer, **config: Any) -> AsyncIterator[Stream]:
    config = {"dialect": "vllm", "api_key": KEY, **config}
    engine = UpstreamEngine({"echo": UpstreamConfig(url=server.url, model="big", **config)})
    await engine.start()
    try:
        yield Stream(engine)
    finally:
        await engine.aclose(asyncio.get_running_loop().time())
        engine.check_integrity()


async def until(is_true: Callable[[], bool]) -> None:
    """For what the server sees, which tells nobody."""
    async with asyncio.timeout(WAIT_S):
        while not is_true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# --- answers


@pytest.mark.parametrize("chat", [False, True])
async def test_an_answer_comes_piece_by_piece(server: FakeOpenAiServer, chat: bool) -> None:
    async with serving(server) as stream:
        text, answer = await stream.answer("one two three", chat=chat)
        assert (text, stream.pieces[0]) == ("one two three", ["one ", "two ", "three"])
        assert answer.finish_reason == "stop"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3)
    (asked,) = server.asked
    assert asked.path == ("/v1/chat/completions" if chat else "/v1/completions")
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body["model"] == "big"


@pytest.mark.parametrize("cut", [1, 2, 7])
async def test_characters_and_events_may_be_cut_anywhere(
    server: FakeOpenAiServer, cut: int
) -> None:
    pieces = ["한국", "어 🙂", "\ufffd", "\r\n", "é"]
    server.scripts.append(Script(pieces=pieces, cut=cut))
    async with serving(server) as stream:
        await stream.answer("x")
        assert stream.pieces[0] == pieces


async def test_a_burst_stays_a_piece_per_token(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(pieces=["a", "b", "c"], is_burst=True))
    async with serving(server) as stream:
        await stream.answer("x")
        assert stream.pieces[0] == ["a", "b", "c"]


async def test_an_answer_without_the_end_mark_ends_soon(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(has_done=False, stays_open=True, finish_reason="length"))
    async with serving(server) as stream:
        _, answer = await stream.answer("one two")
        assert answer.finish_reason == "length"
        assert answer.usage.completion_tokens == 2
        await until(lambda: server.num_open == 0)


async def test_without_a_usage_pieces_are_counted(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(has_usage=False))
    async with serving(server) as stream:
        _, answer = await stream.answer("one two three")
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (0, 3)


async def test_a_connection_serves_one_answer_after_the_other(server: FakeOpenAiServer) -> None:
    async with serving(server) as stream:
        for _ in range(5):
            await stream.answer("one two")
    assert len(server.connections) == 1


# --- retries


@pytest.mark.parametrize(
    "script",
    [
        Script(status=500, body={"error": "oops"}),
        Script(status=503, headers={"Retry-After": "0"}),
        Script(status=429, headers={"Retry-After": "0"}),
        Script(breaks_after=0),
        Script(ends_after=0),
        Script(raw=b'data: {"error": {"message": "try again"}}\n\n'),
    ],
    ids=["500", "503", "429", "broke off", "ended", "error in the stream"],
)
async def test_what_fails_before_the_first_token_is_tried_again(
    server: FakeOpenAiServer, script: Script
) -> None:
    server.scripts.append(script)
    async with serving(server) as stream:
        text, _ = await stream.answer("one two")
        assert text == "one two"
    assert len(server.asked) == 2


@pytest.mark.parametrize("fault", [{"breaks_after": 2}, {"ends_after": 2}])
async def test_what_was_told_is_not_generated_again(
    server: FakeOpenAiServer, fault: dict[str, int]
) -> None:
    server.scripts.append(Script(**fault))  # type: ignore[arg-type]
    async with serving(server) as stream:
        error = await stream.error("one two three")
        assert isinstance(error, Unavailable)
        assert "".join(stream.pieces[0]) in ("one two ", "one ")  # a reset may lose the last one
    assert len(server.asked) == 1


async def test_retries_are_bounded(server: FakeOpenAiServer) -> None:
    server.scripts.extend([Script(status=503, headers={"Retry-After": "0"})] * 10)
    async with serving(server, max_retries=3) as stream:
        error = await stream.error()
        assert isinstance(error, Unavailable)
        assert "503" in error.detail
    assert len(server.asked) == 4


async def test_a_long_wait_is_left_to_the_caller(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(status=429, headers={"Retry-After": "60"}))
    async with serving(server) as stream:
        error = await stream.error()
        assert isinstance(error, Overloaded)
        assert error.retry_after_s == 60.0
    assert len(server.asked) == 1


# --- errors


async def test_the_callers_fault_is_told_in_the_servers_words(server: FakeOpenAiServer) -> None:
    message = "This model's maximum context length is 10 tokens."
    server.scripts.append(Script(status=400, body={"error": {"message": message}}))
    async with serving(server) as stream:
        error = await stream.error()
        assert isinstance(error, InvalidInput)
        assert error.detail == message


async def test_a_refused_key_is_our_fault_and_is_never_logged(
    server: FakeOpenAiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.scripts.append(Script(status=401, body={"error": {"message": f"bad key {KEY}"}}))
    async with serving(server) as stream:
        error = await stream.error()
        assert isinstance(error, InternalError)
        assert error.reference is not None
    assert error.reference in caplog.text
    assert "bad key ***" in caplog.text
    assert KEY not in caplog.text
    assert KEY not in repr(UpstreamConfig(url=server.url, model="x", api_key=KEY))


@pytest.mark.parametrize(
    "script",
    [
        Script(raw=b"data: {nonsense\n\n"),
        Script(raw=b'data: {"choices": 3}\n\n'),
        Script(raw=b'{"choices": []}', content_type="application/json"),
        Script(raw=b"data: " + b"x" * (1 << 20) + b"\n\n"),
    ],
    ids=["no json", "no chunk", "no stream", "too large"],
)
async def test_a_server_that_makes_no_sense_is_unavailable(
    server: FakeOpenAiServer, script: Script
) -> None:
    server.scripts.append(script)
    async with serving(server) as stream:
        assert isinstance(await stream.error(), Unavailable)
        text, _ = await stream.answer("next")
        assert text == "next"


async def test_an_endless_answer_is_cut_off(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(pieces=["word "] * 10_000))
    async with serving(server, max_answer_bytes=20_000) as stream:
        assert isinstance(await stream.error(), Unavailable)
        await until(lambda: server.num_open == 0)
        assert len(stream.pieces[0]) < 1000


# --- time-outs


async def test_silence_before_the_first_token_ends(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(stalls_after=0, comment_gap_s=0.02))
    async with serving(server, first_token_timeout_s=0.1) as stream:
        error = await stream.error(chat=True)
        assert isinstance(error, Unavailable)
        assert "no token for 0.1 s" in error.detail
        await until(lambda: server.num_disconnects == 1)
    assert len(server.asked) == 1


async def test_silence_within_an_answer_ends(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(stalls_after=2))
    async with serving(server, idle_timeout_s=0.1) as stream:
        error = await stream.error("one two three")
        assert "silent for 0.1 s" in error.detail
        assert stream.pieces[0] == ["one ", "two "]
        await until(lambda: server.num_open == 0)


async def test_comments_keep_an_answer_alive_until_its_total_time(
    server: FakeOpenAiServer,
) -> None:
    server.scripts.append(Script(stalls_after=2, comment_gap_s=0.02))
    async with serving(server, idle_timeout_s=0.1, total_timeout_s=0.3) as stream:
        error = await stream.error("one two three")
        assert "more than 0.3 s" in error.detail


async def test_a_deadline_is_told_on_time_and_ends_the_request(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(stalls_after=1))
    async with serving(server) as stream:
        outcome = await stream.outcome(stream.ask("one two", budget_s=0.1))
        assert outcome == Dropped(DropReason.DEADLINE)
        await until(lambda: server.num_disconnects == 1)


# --- cancel, bounds


async def test_a_cancel_ends_the_request_at_the_server(server: FakeOpenAiServer) -> None:
    server.scripts.extend([Script(stalls_after=1), Script(stalls_after=1)])
    async with serving(server) as stream:
        first, second = stream.ask("one two"), stream.ask("three four")
        await stream.wait_until(lambda: all(stream.pieces.values()))
        stream.lane.cancel(first)
        assert stream.outcomes == {first: Cancelled()}
        await until(lambda: server.num_disconnects == 1)
        stream.lane.close()
        assert stream.outcomes[second] == Cancelled()
        await until(lambda: server.num_open == 0)


async def test_no_more_than_the_pool_run_and_tenants_take_turns(server: FakeOpenAiServer) -> None:
    server.block()
    async with serving(server, max_concurrent_requests=2) as stream:
        busy = [stream.ask(f"busy {n}", tenant="a") for n in range(20)]
        await until(lambda: server.num_open == 2)
        late = stream.ask("late", tenant="b")
        stream.lane.cancel(busy[-1])
        server.unblock()
        for item_id in [*busy, late]:
            await stream.outcome(item_id)
    assert server.max_open == 2
    prompts = [asked.body["prompt"] for asked in server.asked]
    assert prompts.index("late") < 6
    assert len(prompts) == 20


async def test_a_reader_that_does_not_read_stops_the_server(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(pieces=["x" * 100_000] * 300, gap_s=0.001))
    async with serving(server, max_unreleased=10, max_answer_bytes=1 << 30) as stream:
        item_id = stream.ask("x")
        await stream.wait_until(lambda: bool(stream.pieces[item_id]))
        stream.lane.note_release(item_id, 1, 30.0)
        await asyncio.sleep(0.5)
        num_read, num_sent = len(stream.pieces[item_id]), server.num_sent
        await asyncio.sleep(0.2)
        assert len(stream.pieces[item_id]) == num_read < 100
        assert server.num_sent == num_sent < 250  # the rest does not fit into the sockets
        stream.lane.note_release(item_id, 300, 30.0)
        assert isinstance(await stream.outcome(item_id), Result)
        assert len(stream.pieces[item_id]) == 300


async def test_closing_ends_what_runs(server: FakeOpenAiServer) -> None:
    server.scripts.append(Script(stalls_after=1))
    async with serving(server) as stream:
        item_id = stream.ask("one two")
        await stream.wait_until(lambda: bool(stream.pieces[item_id]))
    assert stream.outcomes[item_id] == Dropped(DropReason.SHUTDOWN)
    await until(lambda: server.num_open == 0)


async def test_whatever_happens_everybody_is_answered_once(server: FakeOpenAiServer) -> None:
    chance = random.Random(7)
    faults: list[dict[str, Any]] = [
        {}, {}, {"gap_s": 0.002}, {"status": 500}, {"status": 429}, {"status": 400},
        {"breaks_after": 0}, {"breaks_after": 1}, {"ends_after": 1}, {"stalls_after": 0},
        {"stalls_after": 1}, {"raw": b"data: ?\n\n"}, {"has_done": False}, {"cut": 3},
    ]  # fmt: skip
    server.scripts.extend(Script(**chance.choice(faults)) for _ in range(400))
    limits = {"first_token_timeout_s": 0.1, "idle_timeout_s": 0.1, "max_concurrent_requests": 8}
    async with serving(server, **limits) as stream:
        for number in range(200):
            budget_s = chance.choice([None, None, 0.05, 0.5])
            while True:
                try:
                    item_id = stream.ask("one two three", chat=number % 2 == 0, budget_s=budget_s)
                    break
                except Overloaded:  # the lane holds a hundred
                    stream.pieces.popitem()
                    await asyncio.sleep(0.01)
            if chance.random() < 0.3:
                loop = asyncio.get_running_loop()
                loop.call_later(chance.uniform(0, 0.1), stream.lane.cancel, item_id)
            await asyncio.sleep(0.002 * chance.random())
        await stream.wait_until(lambda: len(stream.outcomes) == 200)
        kinds = {type(outcome) for outcome in stream.outcomes.values()}
        assert kinds == {Result, Failed, Dropped, Cancelled}
        await until(lambda: server.num_open == 0)
    assert server.max_open <= 8 + 2  # a server notices a closed connection a little later


# --- life


async def test_a_server_that_is_not_there_stops_the_start() -> None:
    config = UpstreamConfig(url="http://127.0.0.1:9/v1", model="x", start_timeout_s=0.1)
    engine = UpstreamEngine({"echo": config})
    with pytest.raises(StartupError, match=r"http://127\.0\.0\.1:9/v1.*cannot be reached"):
        await engine.start()


async def test_a_refused_key_stops_the_start_at_once(server: FakeOpenAiServer) -> None:
    server.models_status = 401
    with pytest.raises(StartupError, match="refuses the api_key"):
        async with asyncio.timeout(WAIT_S), serving(server):
            pass


async def test_readiness_follows_the_server() -> None:
    async with FakeOpenAiServer() as server:
        engine = UpstreamEngine(
            {
                "echo": UpstreamConfig(
                    url=server.url, model="x", probe_interval_s=0.05, max_retries=0
                )
            }
        )
        await engine.start()
        assert engine.statistics().ready
    try:
        await until(lambda: not engine.statistics().ready)
        (model,) = engine.statistics().models
        assert "cannot be reached" in model.reason
        assert isinstance(await Stream(engine).error(), Unavailable)
        async with FakeOpenAiServer(server.port):
            await until(lambda: engine.statistics().ready)
            text, _ = await Stream(engine).answer("back again")
            assert text == "back again"
    finally:
        await engine.aclose(asyncio.get_running_loop().time())


async def test_calls_are_measured(server: FakeOpenAiServer) -> None:
    engine = UpstreamEngine({"echo": UpstreamConfig(url=server.url, model="x")})
    await engine.start()
    try:
        await Stream(engine).answer("one two three")
        await until(lambda: _llm(engine).tokens == 3)
        assert _llm(engine).prompt_tokens == 3
        assert _llm(engine).histograms["time_to_first_token_s"][-1] == 1
        assert _llm(engine).histograms["inter_token_s"][-1] == 2
    finally:
        await engine.aclose(asyncio.get_running_loop().time())


def _llm(engine: UpstreamEngine) -> Any:
    return engine.statistics().models[0].llm
