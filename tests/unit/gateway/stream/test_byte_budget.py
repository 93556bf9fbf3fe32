from __future__ import annotations

import pytest

from gateway.stream.byte_budget import ByteBudget, ByteMeter

pytestmark = pytest.mark.unit


def test_what_does_not_fit_is_refused_and_takes_nothing() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(7)
    assert not budget.try_take(4)
    assert budget.used == 7
    assert budget.try_take(3)


def test_what_was_given_back_can_be_taken_again() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(10)
    budget.give_back(4)
    assert budget.try_take(4)


def test_more_cannot_be_given_back_than_was_taken() -> None:
    budget = ByteBudget(10)
    budget.try_take(2)
    with pytest.raises(ValueError, match="3 bytes"):
        budget.give_back(3)
    assert budget.used == 2


def test_a_part_counts_for_the_whole_until_it_leaves() -> None:
    whole = ByteMeter()
    parts = [ByteMeter(whole), ByteMeter(whole)]
    parts[0].add(10)
    parts[1].add(5)
    parts[0].add(-3)
    assert (whole.used, parts[0].used) == (12, 7)
    parts[0].leave()
    parts[0].leave()
    parts[0].add(100)
    assert (whole.used, parts[0].used) == (5, 107)
