from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.llm.gauge_log import WINDOW_S, GaugeLog
from engine.llm.messages import Gauges, LlmReady

pytestmark = pytest.mark.unit

NOTHING = Gauges(
    running=0,
    waiting=0,
    blocks_total=200,
    blocks_owned=0,
    blocks_cached=0,
    fragmentation=0.0,
    steps=0,
    tokens=0,
    prompt_tokens=0,
    cached_prompt_tokens=0,
    preemptions=0,
    starvations=0,
    swap_s=0.0,
    queue_p99_s=0.0,
    batch_mean=0.0,
    step_p50_s=0.0,
    step_p99_s=0.0,
)
READY = LlmReady(
    device="cpu", weights="int8", num_blocks=200, block_size=16, max_seq_length=64, vocabulary=9
)


def gauges(**values: Any) -> Gauges:
    return msgspec.structs.replace(NOTHING, **values)


def test_before_the_first_snapshot_everything_is_zero() -> None:
    statistics = GaugeLog().statistics(None, 5.0)
    assert (statistics.device, statistics.tokens, statistics.tokens_per_s) == ("", 0, 0.0)
    assert GaugeLog().queue_p99_s() == 0.0


def test_the_last_snapshot_is_shown_under_the_fields_own_names() -> None:
    log = GaugeLog()
    log.add(gauges(running=9), 0.0)
    log.add(
        gauges(
            running=3,
            waiting=4,
            blocks_owned=50,
            fragmentation=0.1,
            queue_p99_s=0.7,
            batch_mean=2.5,
            starvations=2,
            drafted=8,
            accepted=5,
        ),
        1.0,
    )
    statistics = log.statistics(READY, 1.0)
    assert (statistics.device, statistics.weights) == ("cpu", "int8")
    assert (statistics.running, statistics.waiting) == (3, 4)
    assert statistics.kv_cache_utilization == 0.25
    assert statistics.memory_fragmentation == 0.1
    assert statistics.scheduler_queue_latency_99 == log.queue_p99_s() == 0.7
    assert statistics.batch_size_avg == 2.5
    assert statistics.scheduler_starvation_count == 2
    assert (statistics.drafted, statistics.drafts_accepted) == (8, 5)


def test_the_weights_are_those_that_steps_run_with_now() -> None:
    ready = msgspec.structs.replace(READY, weights="fp32", cheaper_weights="int8")
    log, now = GaugeLog(), 0.0
    assert log.statistics(ready, now).weights == "fp32"
    for is_cheaper, weights in ((True, "int8"), (False, "fp32")):
        log.add(gauges(is_cheaper=is_cheaper), now)
        assert log.statistics(ready, now).weights == weights
    assert log.statistics(None, now).weights == ""


def test_rates_and_shares_are_over_the_window() -> None:
    log = GaugeLog()
    for second in range(40):
        log.add(
            gauges(tokens=100 * second, preemptions=2 * second, swap_s=0.25 * second), float(second)
        )
        assert len(log._samples) <= WINDOW_S + 2
    statistics = log.statistics(READY, 39.0)
    assert statistics.tokens_per_s == pytest.approx(100.0)
    assert statistics.preemption_count_per_sec == pytest.approx(2.0)
    assert statistics.context_switch_overhead == pytest.approx(0.25)


def test_rates_fall_to_zero_when_a_worker_says_nothing_more() -> None:
    log = GaugeLog()
    for second in range(5):
        log.add(gauges(tokens=100 * second), float(second))
    assert log.statistics(READY, 8.0).tokens_per_s == pytest.approx(50.0)
    assert log.statistics(READY, 60.0).tokens_per_s == 0.0
    assert log.statistics(READY, 60.0).tokens == 400


def test_counters_and_histograms_go_on_where_the_last_worker_ended() -> None:
    log = GaugeLog()
    first = gauges(
        tokens=10,
        steps=4,
        running=2,
        histograms={"step_s": (1, 4)},
        histogram_sums={"step_s": 2.5},
    )
    log.add(first, 1.0)
    log.end_worker()
    statistics = log.statistics(None, 2.0)
    assert (statistics.tokens, statistics.steps, statistics.running) == (10, 4, 0)
    assert statistics.histograms == {"step_s": (1, 4)}
    assert statistics.histogram_sums == {"step_s": 2.5}
    log.end_worker()  # one that never said anything
    second = gauges(
        tokens=5,
        histograms={"step_s": (2, 2), "queue_s": (1,)},
        histogram_sums={"step_s": 0.5, "queue_s": 0.25},
    )
    log.add(second, 3.0)
    statistics = log.statistics(READY, 3.0)
    assert (statistics.tokens, statistics.tokens_per_s) == (15, 0.0)
    assert statistics.histograms == {"step_s": (3, 6), "queue_s": (1,)}
    assert statistics.histogram_sums == {"step_s": 3.0, "queue_s": 0.25}
