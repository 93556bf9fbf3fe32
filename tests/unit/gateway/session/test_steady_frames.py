"""Frames through a whole session: gaps, playout, hints, pressure, tiers and operators' words."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec import UNSET

from engine.types import Dropped, DropReason, Priority
from gateway.config_sections import LimitsConfig
from gateway.session.pressure import Pressure, Readings
from gateway.session.registry import SessionRegistry
from gateway.session.tiers import Tiers
from gateway.stream.service_level import Level
from gateway.wire.codec import FrameHeader, MessageType, encode_binary
from gateway.wire.messages import (
    Close,
    Closed,
    Drop,
    EndInput,
    ErrorMessage,
    Hint,
    Open,
    Prompt,
    ResultMessage,
    ServerEvent,
    StreamKind,
    StreamOptions,
    Token,
)
from tests.fakes.scripted_engine import ScriptedLane
from tests.fakes.session_client import SessionClient, jpeg

pytestmark = pytest.mark.unit

PERIOD_S = 0.04
PATIENT = LimitsConfig(ping_interval_s=1e6, ack_deadline_s=1e6, resume_window_s=0)


class Camera:
    """A session with one stream, whose frames are captured on the loop's clock."""

    def __init__(self, *, tiers: Tiers | None = None, **options: Any) -> None:
        self.client = SessionClient(
            limits=PATIENT, registry=SessionRegistry(8, tiers=tiers)
        ).hello()
        self.lane: ScriptedLane = self.client.open(**options)
        self.client.receive()
        self.received: list[Any] = []
        self.times: list[float] = []  # of results
        self.next_seq = 0

    def send(self, *, width: int = 64) -> int:
        seq, self.next_seq = self.next_seq, self.next_seq + 1
        t_us = self.client.clock.now_us()
        header = FrameHeader(type=MessageType.FRAME, stream=1, seq=seq, t_us=t_us)
        self.client.session.receive_binary(encode_binary(header, jpeg(width, 48), b""))
        return seq

    def run(self, delays_s: list[float]) -> None:
        """A frame each period, answered after that long; all that leaves is received at once."""
        start = self.client.loop.time()
        events = [(start + n * PERIOD_S, 0, n) for n in range(len(delays_s))]
        events += [(at + delays_s[n], 1, n) for at, _, n in events]
        first = self.next_seq
        for at, is_answer, number in sorted(events):
            self.wait(at - self.client.loop.time())
            if is_answer:
                self.lane.answer(first + number)
            else:
                self.send()
            self.take()
        self.wait(0.5)

    def wait(self, seconds: float) -> None:
        for _ in range(max(0, round(seconds / 0.001))):
            self.client.loop.advance(0.001)
            self.take()

    def take(self) -> None:
        for message in self.client.receive():
            self.received.append(message)
            if isinstance(message, ResultMessage):
                self.times.append(self.client.loop.time())

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    def check(self) -> None:
        self.client.registry.check_integrity()
        self.client.outbox.check_integrity()


def a_client(tiers: Tiers) -> SessionClient:
    return SessionClient(registry=SessionRegistry(8, tiers=tiers)).hello()


def seqs(messages: list[Any]) -> list[int]:
    return [message.seq for message in messages]


# --- gaps


def test_a_frame_that_too_many_results_wait_for_is_dropped_as_late() -> None:
    camera = Camera(policy="fifo")
    for _ in range(20):
        camera.send()
    for seq in range(1, 18):
        camera.lane.answer(seq)
    camera.take()
    (drop,) = camera.of(Drop)
    assert (drop.first, drop.last, drop.reason) == (0, 0, "late")
    assert seqs(camera.of(ResultMessage)) == list(range(1, 18))
    assert 0 not in camera.lane.items, "the engine need not go on with it"
    camera.lane.emit_again(0, Dropped(DropReason.DEADLINE))
    camera.take()
    assert len(camera.of(Drop)) == 1
    camera.check()


def test_a_lossless_stream_waits_for_its_gap() -> None:
    camera = Camera(policy="lossless")
    for _ in range(30):
        camera.send()
    for seq in range(1, 30):
        camera.lane.answer(seq)
    camera.take()
    assert camera.received == []
    camera.lane.answer(0)
    camera.take()
    assert seqs(camera.of(ResultMessage)) == list(range(30))


def test_pictures_that_change_their_size_keep_their_order() -> None:
    camera = Camera(policy="fifo")
    for width in (64, 1280, 64, 16, 640):
        camera.send(width=width)
    for seq in (4, 2, 0, 3, 1):
        camera.lane.answer(seq)
    camera.take()
    assert seqs(camera.of(ResultMessage)) == list(range(5))


# --- playout


def test_results_leave_evenly_on_their_playout_clock() -> None:
    camera = Camera(policy="fifo", pace="playout")
    camera.run([0.07, 0.02] * 40)
    gaps = [b - a for a, b in pairwise(camera.times[4:])]
    assert all(abs(gap - PERIOD_S) < 0.003 for gap in gaps)
    held = [message.timing.pace for message in camera.of(ResultMessage)[4:]]
    assert held[1] - held[0] == pytest.approx(40_000, abs=4000)  # 10 ms it waited for its turn
    camera.check()


def test_without_playout_they_leave_as_they_come() -> None:
    camera = Camera(policy="fifo")
    camera.run([0.07, 0.02] * 40)
    gaps = [b - a for a, b in pairwise(camera.times[4:])]
    assert min(gaps) < 0.02
    assert all(message.timing.pace == 0 for message in camera.of(ResultMessage))


def test_a_result_too_late_for_its_turn_is_dropped_with_a_receipt() -> None:
    camera = Camera(policy="fifo", pace="playout", deadline_ms=5000.0)
    camera.run([0.03] * 40)
    seq = camera.send()
    camera.wait(1.0)
    camera.lane.answer(seq)
    camera.wait(0.1)
    (drop,) = camera.of(Drop)
    assert (drop.first, drop.last, drop.reason) == (seq, seq, "late")
    camera.check()


def test_closing_cancels_what_waits_for_its_playout_time() -> None:
    camera = Camera(policy="fifo", pace="playout")
    camera.run([0.1, 0.02] * 20)
    camera.received.clear()
    seq = camera.send()
    camera.lane.answer(seq)
    camera.client.send(Close(stream=1))
    camera.take()
    assert [(drop.first, drop.reason) for drop in camera.of(Drop)] == [(seq, "cancelled")]
    assert len(camera.of(Closed)) == 1
    camera.wait(1.0)
    camera.check()


def test_ending_lets_what_waits_leave_on_time() -> None:
    camera = Camera(policy="fifo", pace="playout")
    camera.run([0.1, 0.02] * 20)
    camera.received.clear()
    seq = camera.send()
    camera.lane.answer(seq)
    camera.client.send(EndInput(stream=1))
    camera.take()
    assert camera.received == []
    camera.wait(0.3)
    assert seqs(camera.of(ResultMessage)) == [seq]
    assert camera.of(Closed)[0].results == 41


def test_a_lost_client_leaves_no_timer_behind() -> None:
    camera = Camera(policy="fifo", pace="playout")
    camera.run([0.1, 0.02] * 20)
    camera.lane.answer(camera.send())
    camera.client.session.close("gone")
    assert len(camera.client.clock) == 0
    camera.client.registry.check_integrity()


# --- hints


def test_a_camera_whose_frames_are_superseded_is_asked_for_fewer() -> None:
    camera = Camera()
    for number in range(100):
        camera.send()
        if number % 4 == 0:
            for seq in list(camera.lane.items):
                camera.lane.answer(seq)
        camera.wait(PERIOD_S)
    (hint, *_) = camera.of(Hint)
    assert hint.stream == 1
    assert 6.25 < hint.max_fps < 12.5


def test_a_lossless_stream_is_never_asked_for_less() -> None:
    camera = Camera(policy="lossless")
    for _ in range(200):
        camera.lane.answer(camera.send(), Dropped(DropReason.DEADLINE))
        camera.wait(PERIOD_S)
    assert camera.of(Hint) == []


def test_frames_above_the_clients_own_limit_are_no_reason_for_a_hint() -> None:
    camera = Camera(max_fps=5.0)
    for _ in range(200):
        camera.send()
        for seq in list(camera.lane.items):
            camera.lane.answer(seq)
        camera.wait(PERIOD_S)
    assert camera.of(Hint) == []


# --- pressure and tiers


def at_level(level: Level, tier: Priority = Priority.REALTIME) -> Tiers:
    """A process whose loop lags until the level is reached, and then no more."""
    tiers = Tiers(Pressure(), lambda _: tier)
    press(tiers.pressure, level)
    return tiers


def press(pressure: Pressure, level: Level) -> None:
    now = 0.0
    while pressure.level < level:
        now += 0.25
        pressure.update(Readings(models=(), outbox_share=0.0, loop_lag_s=1.0), now)


def test_under_pressure_extras_go_first() -> None:
    camera = Camera(tiers=at_level(Level.NO_EXTRAS), annotate="boxes")
    camera.lane.answer(camera.send())
    camera.take()
    (result,) = camera.of(ResultMessage)
    assert camera.lane.offered[0].options == b""
    assert result.timing.received_us > 0
    calm = Camera(annotate="boxes")
    calm.send()
    assert calm.lane.offered[0].options != b""


def test_then_cameras_are_asked_for_less() -> None:
    camera = Camera(tiers=at_level(Level.LESS_INPUT), policy="fifo")
    camera.run([0.01] * 100)
    (hint, *_) = camera.of(Hint)
    assert hint.max_fps == pytest.approx(12.5, abs=1.0)
    assert hint.quality == 0.7


def test_a_shed_class_is_refused_and_what_it_has_running_is_answered() -> None:
    tiers = Tiers()
    camera = Camera(tiers=tiers, policy="fifo", priority="background")
    running = camera.send()
    press(tiers.pressure, Level.SHED_BACKGROUND)
    refused = camera.send()
    camera.lane.answer(running)
    camera.take()
    (error,) = camera.of(ErrorMessage)
    assert (error.seq, error.retryable, error.retry_after_ms) == (refused, True, 2000)
    assert error.problem.type.endswith(":overloaded")
    assert seqs(camera.of(ResultMessage)) == [running]
    camera.check()
    receipts = camera.client.registry.statistics().models["fake"]
    assert (receipts.received, receipts.accepted, receipts.refused) == (2, 1, 1)


def test_realtime_is_never_shed() -> None:
    camera = Camera(tiers=at_level(Level.SHED_STANDARD), priority="realtime")
    camera.send()
    assert len(camera.lane.items) == 1


def test_prompts_of_a_shed_class_are_refused() -> None:
    client = a_client(at_level(Level.SHED_STANDARD))
    client.open(1, kind=StreamKind.TOKENS)
    client.send(Prompt(stream=1, id="a", prompt="x"))
    client.send(Prompt(stream=1, id="b", prompt="x", priority="realtime"))
    errors = client.receive_only(ErrorMessage)
    assert [(error.id, error.retry_after_ms) for error in errors] == [("a", 2000)]


@pytest.mark.parametrize(
    ("tier", "asked", "served"),
    [
        (Priority.REALTIME, "realtime", Priority.REALTIME),
        (Priority.STANDARD, "standard", Priority.STANDARD),
        (Priority.STANDARD, "background", Priority.BACKGROUND),
        (Priority.BACKGROUND, "standard", Priority.BACKGROUND),
    ],
)
def test_a_key_reaches_up_to_its_tier(tier: Priority, asked: str, served: Priority) -> None:
    client = a_client(Tiers(None, lambda _: tier))
    assert client.open(1, priority=asked).spec.priority is served
    text = client.open(2, kind=StreamKind.TOKENS, priority=asked)
    assert text.spec.priority is served


def test_realtime_above_the_tier_is_forbidden() -> None:
    client = a_client(Tiers(None, lambda _: Priority.STANDARD))
    options = StreamOptions(priority="realtime")
    client.send(Open(stream=1, model="fake", options=options))
    (error,) = client.receive_only(ErrorMessage)
    assert error.problem.type.endswith(":forbidden")
    assert "standard at most" in error.problem.detail
    client.open(2, kind=StreamKind.TOKENS)
    client.send(Prompt(stream=2, id="a", prompt="x", priority="realtime"))
    (error,) = client.receive_only(ErrorMessage)
    assert error.id == "a"


def test_the_level_is_told_in_welcome_unless_it_is_normal() -> None:
    told = a_client(at_level(Level.NO_EXTRAS)).welcome
    assert told is not None
    assert told.service_level == "no_extras"
    calm = a_client(Tiers()).welcome
    assert calm is not None
    assert calm.service_level is UNSET


# --- an operator's words


def test_an_operators_words_overtake_text_that_waits() -> None:
    client = SessionClient().hello()
    lane = client.open(1, kind=StreamKind.TOKENS)
    client.send(Prompt(stream=1, id="a", prompt="x", pace="off"))
    client.receive()
    for number in range(5):
        lane.progress(next(iter(lane.items)), f"{number} ")
    event = ServerEvent(kind="message", text="closing soon", stream=1)
    assert client.registry.say(event, client.session.id) == 1
    first, *rest = client.receive()
    assert first == event
    assert all(isinstance(message, Token) for message in rest)


def test_words_for_nobody_are_told_to_nobody() -> None:
    client = SessionClient().hello()
    event = ServerEvent(kind="message", text="x", stream=7)
    assert client.registry.say(event, client.session.id) == 0
    assert client.registry.say(event, "no such session") == 0
    assert client.registry.say(ServerEvent(kind="message", text="x")) == 1
    unborn = SessionClient(registry=client.registry)
    assert client.registry.say(ServerEvent(kind="message", text="x")) == 1
    assert unborn.receive() == []
