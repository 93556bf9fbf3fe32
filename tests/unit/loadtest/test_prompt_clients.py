"""What the bench's clients make of the messages of one connection."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from loadtest.delivery.prompt_clients import PromptClient

pytestmark = pytest.mark.unit


def tell(client: PromptClient, at: float, **message: Any) -> None:
    client.on_text(msgspec.json.encode({"stream": 1, "id": "1", **message}), at)


def tell_end(client: PromptClient, seq: int, num_tokens: int) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": 1 + num_tokens}
    tell(client, 9.0, type="end", seq=seq, finish_reason="length", usage=usage)


async def test_an_answer_is_whole_with_all_its_tokens_in_order() -> None:
    client = PromptClient(0, "m")
    answer = client.ask("x", 2)
    tell(client, 1.0, type="token", seq=0, text="a", pace=40.0)
    tell(client, 1.05, type="token", seq=1, text="b", pace=40.0)
    assert not answer.over.done()
    tell_end(client, seq=2, num_tokens=2)
    assert answer.over.done()
    assert answer.is_whole
    assert not client.has_hole
    assert answer.first_text == "a"
    assert float(answer.evenness_ms.is_within.mean()) == 0.0  # 50 ms where 40 were announced


async def test_a_missing_event_is_a_hole() -> None:
    client = PromptClient(0, "m")
    client.ask("x", 2)
    tell(client, 1.0, type="token", seq=1, text="b", pace=40.0)
    assert client.has_hole


async def test_an_answer_with_fewer_tokens_than_asked_for_is_not_whole() -> None:
    client = PromptClient(0, "m")
    answer = client.ask("x", 3)
    tell_end(client, seq=0, num_tokens=2)
    assert answer.over.done()
    assert not answer.is_whole


async def test_a_refusal_is_a_receipt() -> None:
    client = PromptClient(0, "m")
    answer = client.ask("x", 3)
    problem = {"type": "overloaded", "title": "t", "status": 503}
    tell(client, 1.0, type="error", problem=problem, retryable=True)
    assert answer.over.done()
    assert answer.refusal == "overloaded"


async def test_what_is_unanswered_when_the_connection_is_lost_is_over_and_lost() -> None:
    client = PromptClient(0, "m")
    answer = client.ask("x", 3)
    client.opened.set_result(None)
    client.connection_lost(None)
    assert answer.over.done()
    assert not answer.is_whole
    assert not answer.refusal
    assert client.ask("y", 3).over.done(), "nobody will answer this one either"
