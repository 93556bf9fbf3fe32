"""What the live bench makes of answers and of the gateway's metrics."""

from __future__ import annotations

from array import array

import pytest

from gateway.commands.scrape import Change, parse
from loadtest.delivery.live_figures import burst_of, engine_gaps, mean_of
from loadtest.delivery.prompt_clients import Answer

pytestmark = pytest.mark.unit


def change_of(text: str) -> Change:
    """Between a gateway that has just begun and one that says ``text``."""
    return Change(before=parse("", 0.0), after=parse(text, 10.0))


def answer_of(num_tokens: int, **how: object) -> Answer:
    """Asked at 0 for as many tokens, told evenly from 1 s on."""
    answer = Answer(num_asked=num_tokens, sent_at=0.0)
    answer.arrivals = array("d", [1.0 + 0.04 * index for index in range(num_tokens)])
    answer.paces = array("d", [0.04] * num_tokens)
    for name, value in how.items():
        setattr(answer, name, value)
    return answer


def whole(num_tokens: int) -> Answer:
    return answer_of(num_tokens, finish_reason="length", num_told=num_tokens)


def test_the_engines_gaps_are_told_from_the_buckets() -> None:
    name = "clawstream_text_gap_seconds"
    found = engine_gaps(
        change_of(
            f"# TYPE {name} histogram\n"
            f'{name}_bucket{{le="0.036"}} 0\n{name}_bucket{{le="0.04"}} 100\n'
            f'{name}_bucket{{le="+Inf"}} 100\n{name}_count 100\n{name}_sum 3.8\n'
        )
    )
    assert found.quantiles[1] == pytest.approx(38.0)
    assert found.std == pytest.approx(4.0 / 12**0.5, rel=0.01), "even within the bucket"
    assert mean_of(change_of(""), name) == 0.0


async def test_a_request_of_a_burst_is_whole_or_refused_or_lost() -> None:
    refused, lost = answer_of(0, refusal="overloaded"), answer_of(20)
    found = burst_of(
        [whole(100)], [whole(10), refused, lost], per_s=2.0, has_hole=False, num_in_flight=1
    )
    assert (found.num_sent, found.num_extra) == (4, 3)
    assert (found.num_whole, found.num_refused, found.num_lost) == (2, 1, 1)
    assert found.slowest_first_s == 1.0
    assert found.within == 1.0


async def test_with_a_hole_in_a_stream_no_request_counts_as_whole() -> None:
    found = burst_of([whole(100)], [], per_s=2.0, has_hole=True, num_in_flight=0)
    assert found.num_lost == 1
