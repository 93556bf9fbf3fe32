"""What is exported: names, receipts that add up, histogram."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.base import Engine, LlmStatistics
from engine.llm.histograms import BOUNDS
from engine.types import DropReason
from gateway.api.metrics import MetricsApi
from gateway.api.text_metrics import FIELD_GAUGES
from gateway.metrics import LoopLag, render
from gateway.net.admission import ConnectionTable
from gateway.session.registry import SessionRegistry
from tests.fakes.engine import FakeEngine
from tests.fakes.text_engine import TextEngine

pytestmark = pytest.mark.unit

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


def exported(registry: SessionRegistry, engine: Engine | None = None) -> dict[str, float]:
    engine = engine or FakeEngine(("faces",))
    api = MetricsApi(engine, registry, ConnectionTable(9), LoopLag(), lambda request: "")
    lines = render(list(api.families())).decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


async def test_every_name_is_ours_and_counters_end_in_total() -> None:
    api = MetricsApi(
        TextEngine(("words",)), SessionRegistry(1), ConnectionTable(9), LoopLag(), lambda r: ""
    )
    for family in api.families():
        assert family.name.startswith("clawstream_") or family.name in FIELD_GAUGES
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total")


async def test_every_family_is_documented() -> None:
    api = MetricsApi(
        TextEngine(("words",)), SessionRegistry(1), ConnectionTable(9), LoopLag(), lambda r: ""
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


async def test_the_scheduler_is_exported_under_the_names_of_the_field() -> None:
    engine = TextEngine(("words",))
    counts = tuple(range(1, len(BOUNDS["step_s"]) + 2))
    engine.llm = LlmStatistics(
        weights="int8",
        kv_cache_utilization=0.5,
        preemption_count_per_sec=0.25,
        steps=7,
        histograms={"step_s": counts, "queue_s": (1, 2)},
        histogram_sums={"step_s": 0.75, "queue_s": 1.0},
    )
    values = exported(SessionRegistry(1), engine)
    assert {f'{name}{{model="words"}}' for name in FIELD_GAUGES} <= values.keys()
    assert values['kv_cache_utilization{model="words"}'] == 0.5
    assert values['preemption_count_per_sec{model="words"}'] == 0.25
    assert values['clawstream_llm_steps_total{model="words"}'] == 7
    assert values['clawstream_llm_weights{model="words",weights="int8"}'] == 1
    assert values['clawstream_llm_step_seconds_bucket{le="0.005",model="words"}'] == 3
    assert values['clawstream_llm_step_seconds_bucket{le="+Inf",model="words"}'] == counts[-1]
    assert values['clawstream_llm_step_seconds_sum{model="words"}'] == 0.75
    # Buckets of another version of the worker are left out rather than mixed up.
    assert not any("llm_queue_seconds" in name for name in values)


async def test_without_a_language_model_there_are_no_scheduler_gauges() -> None:
    values = exported(SessionRegistry(1))
    assert not any("llm_" in name or "kv_cache" in name for name in values)


async def test_answers_are_exported_in_time_and_by_their_end() -> None:
    registry = SessionRegistry(1)
    totals = registry.text_of("words")
    totals.now = iter([0.0, 0.25, 0.28]).__next__
    timer = totals.start()
    timer.token("a")
    timer.token("b")
    timer.end("stop")
    registry.prompts_of("words").count_accepted()
    registry.prompts_of("words").count_result()
    values = exported(registry)
    assert values['clawstream_text_tokens_total{model="words"}'] == 2
    assert values['clawstream_text_answers_total{model="words",reason="stop"}'] == 1
    assert values['clawstream_text_first_token_seconds_sum{model="words"}'] == 0.25
    gaps = 'clawstream_text_gap_seconds_bucket{le="%s",model="words"}'
    assert values[gaps % "0.028"] == 0
    assert values[gaps % "0.033"] == 1
    assert values['clawstream_prompts_accepted_total{model="words"}'] == 1
    assert values['clawstream_prompt_results_total{model="words"}'] == 1
