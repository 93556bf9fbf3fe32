from __future__ import annotations

import pytest

from engine.llm.messages import Submit
from engine.llm.upstream.waiting import WaitingPrompts
from engine.types import Priority

pytestmark = pytest.mark.unit


def submit(key: int, tenant: str = "", rank: int = 1, weight: float = 1.0) -> Submit:
    return Submit(
        key=key, payload=b"", tenant=tenant, rank=rank, weight=weight, arrived_us=0, deadline_us=0
    )


def take_all(waiting: WaitingPrompts) -> list[int]:
    keys = []
    while (taken := waiting.take(now=0.0)) is not None:
        keys.append(taken.key)
    return keys


def test_one_tenants_prompts_go_in_order() -> None:
    waiting = WaitingPrompts(10)
    for key in range(5):
        waiting.add(submit(key), now=0.0)
    assert len(waiting) == 5
    assert take_all(waiting) == [0, 1, 2, 3, 4]
    assert waiting.take(now=0.0) is None


def test_tenants_take_turns_by_weight() -> None:
    waiting = WaitingPrompts(100)
    for key in range(8):
        waiting.add(submit(key, "a"), now=0.0)
    for key in range(100, 108):
        waiting.add(submit(key, "b", weight=3.0), now=0.0)
    served = take_all(waiting)
    assert sum(key < 100 for key in served[:8]) in (2, 3)


def test_the_urgent_class_goes_first() -> None:
    waiting = WaitingPrompts(10)
    waiting.add(submit(0, rank=Priority.BACKGROUND.rank), now=0.0)
    waiting.add(submit(1, rank=Priority.REALTIME.rank), now=0.0)
    assert take_all(waiting) == [1, 0]


def test_a_withdrawn_prompt_is_not_sent() -> None:
    waiting = WaitingPrompts(10)
    for key in range(3):
        waiting.add(submit(key), now=0.0)
    assert waiting.remove(1)
    assert not waiting.remove(1)
    assert take_all(waiting) == [0, 2]


def test_tenants_who_come_and_go_leave_nothing_behind() -> None:
    waiting = WaitingPrompts(10)
    for key in range(1000):
        waiting.add(submit(key, tenant=str(key)), now=0.0)
        assert waiting.remove(key) or waiting.take(now=0.0)
    assert len(waiting) == 0
    assert waiting._lines == {}
    assert waiting._policy.num_lanes == 0
