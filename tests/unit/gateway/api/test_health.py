"""Reasons against traffic."""

from __future__ import annotations

import pytest

from engine.base import EngineStatistics, ModelStatistics
from gateway.api.health import Health
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.unit


class _WarmingEngine(FakeEngine):
    """A fake whose model has not been warmed up, for a reason or without one."""

    reason = ""

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(models=tuple(map(self._cold, super().statistics().models)))

    def _cold(self, model: ModelStatistics) -> ModelStatistics:
        fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
        return ModelStatistics(**{**fields, "ready": False, "reason": self.reason})


def test_warm_engine_is_ready() -> None:
    assert Health(FakeEngine()).reasons() == []


def test_cold_model_is_named_with_its_reason() -> None:
    engine = _WarmingEngine(("faces",))
    assert Health(engine).reasons() == ["model faces: warming up"]
    engine.reason = "its worker ended three times"
    assert Health(engine).reasons() == ["model faces: its worker ended three times"]


def test_draining_is_not_ready_but_sound() -> None:
    health = Health(FakeEngine())
    health.start_draining()
    assert health.reasons() == ["shutting down"]
    assert health.failure is None


def test_first_failure_stays() -> None:
    health = Health(FakeEngine())
    health.fail("task a failed")
    health.fail("task b failed")
    assert health.failure == "task a failed"
    assert health.reasons() == ["task a failed"]
