"""Answers on their way out: pace, room, ends, and what the engine is told."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from engine.types import Dropped, DropReason, Item
from gateway.config_sections import PacingConfig
from gateway.session.clock import Clock
from gateway.session.outflow import Outflow
from gateway.session.pacing import OFF_AHEAD, STEADY_AHEAD
from gateway.session.release_table import (
    READERS_PER_TURN,
    REFRESH_S,
    TOLD_EVERY_S,
    ReleaseTable,
)
from gateway.session.tenants import MAX_TENANTS, TenantCeilings
from gateway.session.text_totals import TextTotals
from gateway.stream.leaky_bucket import LeakyBucket
from gateway.stream.network_state import NetworkState
from gateway.stream.rate_ceiling import RateCeiling
from gateway.stream.release import Departure, Reserve
from gateway.stream.release_unpaced import UNPACED_TOKENS_PER_S, Unpaced
from gateway.wire.messages import Cancel, Close, EndOutput, ErrorMessage, Prompt, StreamKind, Token
from tests.fakes.scripted_engine import ScriptedLane
from tests.fakes.session_client import SessionClient
from tests.fakes.text_engine import finished
from tests.fakes.virtual_loop import VirtualLoop, VirtualTimer

pytestmark = pytest.mark.unit


def asking(pace: str = "steady", **pacing: Any) -> tuple[SessionClient, ScriptedLane]:
    client = SessionClient(pacing=PacingConfig(**pacing)).hello()
    lane = client.open(kind=StreamKind.TOKENS)
    client.receive()
    client.send(Prompt(stream=1, id="p", prompt="x", pace=pace))
    return client, lane


def listen(client: SessionClient, seconds: float) -> list[tuple[float, Any]]:
    """Messages with the time at which each came."""
    heard = []
    start = client.loop.time()
    while client.loop.time() < start + seconds:
        heard += [(client.loop.time(), message) for message in client.receive()]
        client.loop.advance(0.0005)
    return heard


def test_tokens_that_came_at_once_leave_on_the_pace_that_is_told_and_the_end_after_them() -> None:
    client, lane = asking()
    for _ in range(10):
        lane.progress(1, "x")
    lane.answer(1, finished())
    heard = listen(client, 1.0)
    tokens = [(at, message) for at, message in heard if isinstance(message, Token)]
    assert len(tokens) == 10
    assert isinstance(heard[-1][1], EndOutput)
    assert tokens[0][0] == heard[0][0] == pytest.approx(client.loop.time() - 1.0, abs=1e-3)
    for (sooner, token), (later, _) in pairwise(tokens):
        assert isinstance(token.pace, float)
        assert later - sooner == pytest.approx(token.pace / 1e3, abs=0.0015)
    assert client.registry.statistics().prompts["fake"].results == 1
    assert client.registry.text_of("fake").delivery.lag.counts[0] == 1


def test_an_error_follows_the_text_before_it() -> None:
    client, lane = asking()
    for _ in range(3):
        lane.progress(1, "x")
    lane.answer(1, Dropped(DropReason.DEADLINE))
    kinds = [type(message) for _, message in listen(client, 0.5)]
    assert kinds == [Token, Token, Token, ErrorMessage]


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_cancel_ends_the_answer_at_once_without_what_is_held(is_answered: bool) -> None:
    client, lane = asking()
    for _ in range(5):
        lane.progress(1, "x")
    if is_answered:
        lane.answer(1, finished())
    client.send(Cancel(stream=1, id="p"))
    token, end = client.receive()
    assert (token.text, end.finish_reason) == ("x", "cancelled")
    assert listen(client, 0.5) == []
    assert client.registry.text_of("fake").delivery.num_held == 0
    assert client.registry.statistics().prompts["fake"].cancelled == 1


def test_closing_the_stream_withdraws_what_is_still_on_its_way() -> None:
    client, lane = asking()
    for _ in range(5):
        lane.progress(1, "x")
    lane.answer(1, finished())
    client.send(Close(stream=1))
    messages = client.receive()
    assert messages[-1].cancelled == 1
    assert client.session.num_streams == 0


def test_giving_up_tells_all_the_text_and_a_whole_answer_keeps_its_end() -> None:
    client, lane = asking()
    client.send(Prompt(stream=1, id="q", prompt="x"))
    for key in (1, 2):
        for _ in range(5):
            lane.progress(key, "x")
    lane.answer(1, finished())
    client.session.drain(1000)
    client.session.give_up()
    messages = client.receive()
    assert sum(isinstance(message, Token) for message in messages) == 10
    ends = [m for m in messages if isinstance(m, EndOutput | ErrorMessage)]
    assert [end.id for end in ends] == ["p", "q"]
    assert isinstance(ends[1], ErrorMessage)


def test_a_lost_connection_leaves_no_timer() -> None:
    client, lane = asking()
    for _ in range(5):
        lane.progress(1, "x")
    client.session.close("gone")
    assert len(client.clock) <= 1  # the release table's last tick
    client.loop.advance(1.0)
    assert len(client.clock) == 0


@pytest.mark.parametrize(("pace", "ahead"), [("steady", STEADY_AHEAD), ("off", OFF_AHEAD)])
def test_only_a_few_events_wait_for_a_reader_that_does_not_read(pace: str, ahead: int) -> None:
    client, lane = asking(pace)
    for _ in range(50):
        lane.progress(1, "x")
    client.loop.advance(2.0)
    waiting = []
    while (outgoing := client.take()) is not None:
        waiting.append(outgoing)
    assert len(waiting) == ahead
    for outgoing in waiting:
        client.session.handle_sent(outgoing)
    heard = listen(client, 3.0)
    texts = "".join(message.text for _, message in heard if isinstance(message, Token))
    assert len(texts) == 50 - ahead


def test_congestion_packs_tokens_and_is_counted() -> None:
    client, lane = asking()
    prompts = client.session._prompts
    prompts.note_network(NetworkState(rtt_ms=20.0), client.loop.time())
    lane.progress(1, "a")
    prompts.note_network(NetworkState(rtt_ms=200.0), client.loop.time())
    for _ in range(8):
        lane.progress(1, "x")
    tokens = [message for _, message in listen(client, 1.0)]
    assert [token.count for token in tokens][1:] == [4, 4]
    assert client.registry.text_of("fake").triggers["delay_jump"] == 1


def test_a_stream_with_a_bucket_slows_down_to_its_rate() -> None:
    client, lane = asking(limit_streams=True, capacity=10.0, fill_rate=25.0)
    for _ in range(100):
        lane.progress(1, "x")
    tokens = [message for _, message in listen(client, 3.0)]
    assert tokens[-1].pace == pytest.approx(40.0, rel=0.05)


class Lane:
    """What the engine is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, float]] = []

    def offer(self, item: Item) -> None: ...

    def cancel(self, item_id: int) -> None: ...

    def close(self) -> None: ...

    def note_release(self, item_id: int, released: int, tokens_per_s: float) -> None:
        self.told.append((item_id, released, tokens_per_s))


class Left:
    """Takes as many texts as there is ``room`` for."""

    def __init__(self) -> None:
        self.room = 1

    def has_room(self) -> bool:
        return self.room > 0

    def receive(self, departure: Departure) -> None:
        self.room -= 1

    def on_drained(self) -> None: ...


def test_the_engine_is_told_what_leaves_and_hears_of_a_reader_that_takes_nothing() -> None:
    loop, lane, left = VirtualLoop(0.0), Lane(), Left()
    clock = Clock(loop)
    outflow = Outflow(
        Unpaced(LeakyBucket(rate_hz=100.0, burst=1)),
        clock,
        ReleaseTable(clock),
        TextTotals().start_delivery(Reserve()),
        left,
        lane=lane,
        item_id=7,
        on_over=lambda: None,
    )
    outflow.push("a")
    assert lane.told == [(7, 1, UNPACED_TOKENS_PER_S)]
    loop.advance(0.02)
    outflow.push("b")
    assert lane.told[1:] == [(7, 1, 0.0)]
    loop.advance(3 * REFRESH_S)
    assert set(lane.told[2:]) == {(7, 1, 0.0)}
    assert 2 <= len(lane.told[2:]) <= 3
    left.room = 9
    outflow.resume()
    assert lane.told[-1] == (7, 2, UNPACED_TOKENS_PER_S)
    told = len(lane.told)
    for _ in range(4):
        loop.advance(TOLD_EVERY_S / 2 + 0.001)
        outflow.push("c")
    assert [released for _, released, _ in lane.told[told:]] == [4, 6]
    outflow.drop()


class Reader:
    """Notes what it is asked to tell."""

    def __init__(self, told: list[float]) -> None:
        self._told = told

    def refresh_release(self, now: float) -> None:
        self._told.append(now)


def test_readers_are_asked_again_and_again_until_they_are_gone() -> None:
    loop = VirtualLoop(0.0)
    table, told = ReleaseTable(Clock(loop)), list[float]()
    reader = Reader(told)
    table.add(reader)
    loop.advance(3 * REFRESH_S + 0.001)
    assert told == pytest.approx([REFRESH_S, 2 * REFRESH_S, 3 * REFRESH_S], abs=0.001)
    table.remove(reader)
    table.remove(reader)
    loop.advance(1.0)
    assert (len(told), len(table), loop.num_armed) == (3, 0, 0)


def test_many_readers_are_told_in_turns_that_leave_the_loop_to_others() -> None:
    turns: list[int] = []

    class Turns(VirtualLoop):
        def call_at(self, when: float, callback: Callable[[], None], /) -> VirtualTimer:
            def run() -> None:
                before = len(told)
                callback()
                turns.append(len(told) - before)

            return super().call_at(when, run)

    loop, told = Turns(0.0), list[float]()
    table = ReleaseTable(Clock(loop))
    readers = [Reader(told) for _ in range(2 * READERS_PER_TURN + 2)]
    for reader in readers:
        table.add(reader)
    table.remove(readers[-1])
    loop.advance(REFRESH_S + 0.001)
    assert turns == [READERS_PER_TURN, READERS_PER_TURN, 1]


def test_a_tenants_bucket_is_shared_and_outlives_its_streams() -> None:
    tenants = TenantCeilings(lambda: RateCeiling(capacity=10, fill_rate=1, fastest_hz=50))
    ceiling = tenants.join("a")
    assert tenants.join("a") is ceiling
    assert ceiling.num_sharing == 2
    tenants.leave("a")
    tenants.leave("a")
    assert tenants.join("a") is ceiling
    for index in range(2 * MAX_TENANTS):
        tenants.join(f"t{index}")
        tenants.leave(f"t{index}")
    assert len(tenants) == MAX_TENANTS + 1
