from __future__ import annotations

import pytest

from engine.llm.prompts import Prompt
from engine.llm.suspects import TOGETHER, Suspects
from engine.types import Item, LaneSpec

pytestmark = pytest.mark.unit


def suspect(key: int, losses: int = 1) -> Prompt:
    return Prompt(
        key=key,
        lane_id=0,
        item=Item(id=key, payload=b""),
        offered_at=0.0,
        spec=LaneSpec(model="m"),
        tenant="",
        losses=losses,
    )


def take_all(suspects: Suspects) -> list[int]:
    taken = []
    while (prompt := suspects.take()) is not None:
        taken.append(prompt.key)
    return taken


def test_a_bounded_number_is_out_and_the_next_follow_in_order() -> None:
    suspects = Suspects()
    for key in range(TOGETHER + 3):
        suspects.add(suspect(key))
    assert take_all(suspects) == list(range(TOGETHER))
    suspects.remove(3)
    suspects.remove(4)
    suspects.remove(4711)
    assert take_all(suspects) == [TOGETHER, TOGETHER + 1]
    assert suspects.num_waiting == 1


def test_those_lost_twice_go_first_and_alone() -> None:
    suspects = Suspects()
    suspects.add(suspect(1))
    suspects.add(suspect(2, losses=2))
    suspects.add(suspect(3, losses=2))
    assert take_all(suspects) == [2]
    suspects.remove(2)
    assert take_all(suspects) == [3]
    suspects.remove(3)
    assert take_all(suspects) == [1]


def test_one_that_goes_alone_waits_until_the_others_are_cleared() -> None:
    suspects = Suspects()
    suspects.add(suspect(1))
    assert take_all(suspects) == [1]
    suspects.add(suspect(2, losses=2))
    assert take_all(suspects) == []
    suspects.remove(1)
    assert take_all(suspects) == [2]


def test_only_the_one_that_was_alone_is_convicted() -> None:
    suspects = Suspects()
    assert suspects.note_death() is None
    suspects.add(suspect(1))
    suspects.add(suspect(2))
    take_all(suspects)
    assert suspects.note_death() is None
    suspects.add(suspect(1, losses=2))
    suspects.add(suspect(2, losses=2))
    take_all(suspects)
    assert suspects.note_death() == 1


def test_one_that_is_withdrawn_while_it_waits_is_never_taken() -> None:
    suspects = Suspects()
    suspects.add(suspect(1))
    suspects.add(suspect(2, losses=2))
    suspects.remove(1)
    suspects.remove(2)
    assert suspects.num_waiting == 0
    assert take_all(suspects) == []
