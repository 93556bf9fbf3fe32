"""What is exported: names, receipts that add up, histogram."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.types import DropReason
from gateway.api.metrics import MetricsApi
from gateway.metrics import LoopLag, render
from gateway.net.admission import ConnectionTable
from gateway.session.registry import SessionRegistry
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


def exported(registry: SessionRegistry) -> dict[str, float]:
    api = MetricsApi(
        FakeEngine(("faces",)), registry, ConnectionTable(9), LoopLag(), lambda request: ""
    )
    lines = render(list(api.families())).decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


async def test_every_name_is_ours_and_counters_end_in_total() -> None:
    api = MetricsApi(
        FakeEngine(("faces",)), SessionRegistry(1), ConnectionTable(9), LoopLag(), lambda r: ""
    )
    for family in api.families():
        assert family.name.startswith("clawstream_")
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")


async def test_every_family_is_documented() -> None:
    api = MetricsApi(
        FakeEngine(("faces",)), SessionRegistry(1), ConnectionTable(9), LoopLag(), lambda r: ""
    )
    text = DOCS.read_text()
    for family in api.families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} |" in text, name


async def test_receipts_add_up() -> None:
    registry = SessionRegistry(1)
    tally = registry.tally_of("faces")
    for _ in range(5):
        tally.count_accepted()
    tally.count_refused()
    tally.count_result()
    registry.observe_latency("faces", 0.03)
    tally.count_error()
    tally.count_dropped(DropReason.DEADLINE)
    tally.count_dropped(DropReason.CANCELLED)
    values = exported(registry)

    def value(name: str, extra: str = "") -> float:
        return values[f'clawstream_{name}{{model="faces"{extra}}}']

    answered = (
        value("frame_results_total")
        + value("frame_errors_total")
        + value("frames_cancelled_total")
        + value("frames_dropped_total", ',reason="deadline"')
    )
    assert value("frames_accepted_total") == answered + value("frames_in_flight") == 5
    assert value("frames_received_total") == 6
    buckets = 'clawstream_frame_latency_seconds_bucket{le="%s",model="faces"}'
    assert values[buckets % "0.02"] == 0
    assert values[buckets % "0.035"] == 1
    assert values[buckets % "+Inf"] == 1


async def test_quiet_gateway_exports_its_gauges() -> None:
    values = exported(SessionRegistry(1))
    assert values["clawstream_connections"] == 0
    assert values["clawstream_connections_limit"] == 9
    assert values['clawstream_model_ready{model="faces"}'] == 1
    assert values['clawstream_loop_lag_seconds{statistic="max"}'] == 0
