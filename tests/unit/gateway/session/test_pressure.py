from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from engine.base import LlmStatistics, ModelStatistics
from engine.types import Priority
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.clock import Clock
from gateway.session.pressure import RETRY_AFTER_MS, TICK_S, Pressure, Readings
from gateway.stream.service_level import Level
from tests.fakes.scripted_engine import ScriptedEngine
from tests.fakes.virtual_loop import VirtualLoop

pytestmark = pytest.mark.unit

CALM = Readings(models=(), outbox_share=0.0, loop_lag_s=0.0)


class Gateway:
    """A pressure that ticks on virtual time, and what it looks at."""

    def __init__(self, *, min_rate: float = 0.0) -> None:
        self.loop = VirtualLoop()
        self.levels: list[Level] = []
        self.readings = CALM
        self.pressure = Pressure(min_rate=min_rate, on_change=self.levels.append)
        self.pressure.start(Clock(self.loop), lambda: self.readings)


def a_model(**llm: float) -> ModelStatistics:
    model = ScriptedEngine().statistics().models[0]
    return replace(model, llm=LlmStatistics(**llm))  # type: ignore[arg-type]


def test_a_lagging_loop_sheds_class_after_class_and_never_realtime() -> None:
    gateway = Gateway()
    gateway.readings = replace(CALM, loop_lag_s=0.05)
    gateway.loop.advance(10)
    assert gateway.levels == [level for level in Level if level is not Level.NORMAL]
    for priority in (Priority.BACKGROUND, Priority.STANDARD):
        with pytest.raises(RequestProblem) as refusal:
            gateway.pressure.check(priority)
        assert refusal.value.kind is ProblemKind.OVERLOADED
        assert refusal.value.retry_after_ms == RETRY_AFTER_MS
    gateway.pressure.check(Priority.REALTIME)
    shed = gateway.pressure.statistics().shed
    assert shed == {Priority.BACKGROUND: 1, Priority.STANDARD: 1}


def test_a_step_up_is_a_warning_with_its_cause_and_one_down_is_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    gateway = Gateway()
    gateway.readings = replace(CALM, loop_lag_s=0.05)
    gateway.loop.advance(1.5)
    gateway.readings = CALM
    gateway.loop.advance(6)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "service level rises to no_extras, loop at 250 %"),
        ("INFO", "service level eases to normal, load at 0 %"),
    ]


def test_standard_work_that_waits_sheds_background_only() -> None:
    gateway = Gateway()
    for _ in range(100):
        gateway.pressure.note_wait("m", Priority.STANDARD, wait_s=2.0, allowed_s=2.0)
        gateway.loop.advance(TICK_S)
    assert gateway.pressure.level is Level.SHED_BACKGROUND
    gateway.pressure.check(Priority.STANDARD)


def test_background_work_may_wait_as_long_as_it_likes() -> None:
    gateway = Gateway()
    for _ in range(100):
        gateway.pressure.note_wait("m", Priority.BACKGROUND, wait_s=20.0, allowed_s=2.0)
        gateway.loop.advance(TICK_S)
    assert gateway.levels == []


def test_one_late_answer_is_no_pressure_and_a_wait_fades() -> None:
    gateway = Gateway()
    gateway.pressure.note_wait("m", Priority.REALTIME, wait_s=3.0, allowed_s=3.0)
    gateway.loop.advance(10)
    assert gateway.levels == []
    assert gateway.pressure.statistics().signals.realtime < 0.05


def test_a_clients_own_haste_is_no_pressure() -> None:
    gateway = Gateway()
    for _ in range(40):
        gateway.pressure.note_wait("m", Priority.REALTIME, wait_s=0.05, allowed_s=0.01)
        gateway.loop.advance(TICK_S)
    assert gateway.levels == []


def test_prompts_that_wait_too_long_or_flow_too_slowly_are_pressure() -> None:
    gateway = Gateway(min_rate=20.0)
    gateway.readings = replace(CALM, models=(a_model(waiting=3, scheduler_queue_latency_99=12.0),))
    gateway.loop.advance(2)
    assert gateway.pressure.level > Level.NORMAL
    slow = Gateway(min_rate=20.0)
    slow.readings = replace(CALM, models=(a_model(running=4, step_p50_s=0.065),))
    slow.loop.advance(2)
    assert slow.pressure.level > Level.NORMAL
    assert slow.pressure.statistics().signals.prompts == pytest.approx(1.5)


def test_steps_that_admission_has_filled_are_no_pressure() -> None:
    gateway = Gateway(min_rate=20.0)
    gateway.readings = replace(CALM, models=(a_model(running=9, step_p50_s=0.05),))
    gateway.loop.advance(60)
    assert gateway.levels == []


def test_without_a_tick_the_level_is_normal() -> None:
    pressure = Pressure()
    pressure.note_wait("m", Priority.REALTIME, wait_s=9.0, allowed_s=1.0)
    assert pressure.level is Level.NORMAL
    assert pressure.allows_extras
    assert pressure.service_level() == 0


def test_a_stopped_pressure_leaves_no_timer() -> None:
    gateway = Gateway()
    gateway.pressure.stop()
    gateway.pressure.stop()
    assert gateway.loop.num_armed == 0


def test_a_reading_that_fails_does_not_stop_the_ticks() -> None:
    gateway = Gateway()
    loop = VirtualLoop()
    calls = 0

    def read() -> Readings:
        nonlocal calls
        calls += 1
        raise RuntimeError("broken")

    gateway.pressure.start(Clock(loop), read)
    loop.advance(1.0)
    assert calls == 4


def test_seconds_are_counted_by_level() -> None:
    gateway = Gateway()
    gateway.loop.advance(10)
    seconds = gateway.pressure.statistics().seconds
    assert seconds[Level.NORMAL] == pytest.approx(10, abs=TICK_S)
