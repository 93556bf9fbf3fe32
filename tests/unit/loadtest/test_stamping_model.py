"""The worker without a model: a stamp for each prompt and step."""

from __future__ import annotations

import time

import msgspec
import pytest

from engine.llm.messages import CancelKeys, Submit
from engine.llm.request import PromptPayload, Sampling
from loadtest.delivery.stamping_worker import StampingModel

pytestmark = pytest.mark.unit


def submit(key: int, num_tokens: int) -> Submit:
    payload = PromptPayload(prompt="x", sampling=Sampling(max_tokens=num_tokens))
    return Submit(
        key=key,
        payload=msgspec.json.encode(payload),
        tenant="",
        rank=1,
        weight=1.0,
        arrived_us=0,
        deadline_us=0,
    )


def test_every_step_stamps_a_token_for_each_prompt_until_it_has_all() -> None:
    model = StampingModel(epoch=3)
    model.submit(submit(1, 2))
    model.submit(submit(2, 1))
    before = time.monotonic_ns()
    first = model.step()
    assert first.epoch == 3
    assert [item.key for item in first.items] == [1, 2]
    assert all(before <= int(item.texts[0]) <= time.monotonic_ns() for item in first.items)
    assert [item.finish is None for item in first.items] == [True, False]
    (last,) = model.step().items
    assert last.finish is not None
    assert last.finish.completion_tokens == 2
    assert model.is_idle


def test_a_cancelled_prompt_gets_nothing_more() -> None:
    model = StampingModel(epoch=3)
    model.submit(submit(1, 2))
    model.cancel(CancelKeys((1, 7)))
    assert model.is_idle
