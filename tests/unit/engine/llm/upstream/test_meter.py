from __future__ import annotations

import pytest

from engine.llm.messages import Finish, Submit
from engine.llm.upstream.meter import UpstreamMeter

pytestmark = pytest.mark.unit


def test_a_calls_times_are_counted_from_its_arrival() -> None:
    meter = UpstreamMeter()
    meter.note_start(
        Submit(
            key=1, payload=b"", tenant="", rank=1, weight=1.0, arrived_us=10_000_000, deadline_us=0
        ),
        now=11.0,
    )
    for now in (12.0, 12.5, 12.6):
        meter.note_piece(1, now)
    meter.note_finish(Finish(reason="stop", prompt_tokens=9, completion_tokens=3, cached_tokens=4))
    meter.note_end(1, now=13.0)
    gauges = meter.gauges(running=2, waiting=5)
    assert (gauges.running, gauges.waiting, gauges.queue_p99_s) == (2, 5, 1.0)
    assert (gauges.tokens, gauges.prompt_tokens, gauges.cached_prompt_tokens) == (3, 9, 4)
    counts = {name: histogram[-1] for name, histogram in gauges.histograms.items()}
    assert counts == {
        "time_to_first_token_s": 1,
        "inter_token_s": 2,
        "queue_s": 1,
        "decode_s": 1,
        "prompt_tokens": 1,
        "output_tokens": 1,
    }


def test_a_call_without_a_token_has_no_decode_time() -> None:
    meter = UpstreamMeter()
    meter.note_start(
        Submit(key=1, payload=b"", tenant="", rank=1, weight=1.0, arrived_us=0, deadline_us=0),
        now=1.0,
    )
    meter.note_end(1, now=2.0)
    assert meter.gauges(0, 0).histograms["decode_s"][-1] == 0
