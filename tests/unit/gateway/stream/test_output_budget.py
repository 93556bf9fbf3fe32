from __future__ import annotations

import pytest

from gateway.stream.byte_budget import ByteMeter
from gateway.stream.output_budget import OutputBudget

pytestmark = pytest.mark.unit


class Holder:
    """Gives up half of what it holds; below ten bytes it leaves."""

    def __init__(self, budget: OutputBudget, num_bytes: int) -> None:
        self.budget = budget
        self.meter = ByteMeter(budget.meter)
        self.meter.add(num_bytes)
        self.num_relieved = 0
        budget.join(self)

    @property
    def size_bytes(self) -> int:
        return self.meter.used

    def relieve(self) -> None:
        self.num_relieved += 1
        if self.size_bytes < 10:
            self.budget.leave(self)
            self.meter.leave()
        else:
            self.meter.add(-self.size_bytes // 2)
        self.budget.make_room()  # as putting something meanwhile would


def test_within_the_budget_nobody_pays() -> None:
    budget = OutputBudget(100)
    holders = [Holder(budget, 50), Holder(budget, 50)]
    budget.make_room()
    assert [holder.num_relieved for holder in holders] == [0, 0]


def test_the_largest_pays_until_the_next_is_larger() -> None:
    budget = OutputBudget(100)
    small, large = Holder(budget, 60), Holder(budget, 200)
    budget.make_room()
    assert (small.num_relieved, large.num_relieved) == (1, 2)
    assert budget.meter.used == 80
    assert budget.num_relieved == 3


def test_who_leaves_is_counted_no_more() -> None:
    budget = OutputBudget(5)
    holder = Holder(budget, 9)
    budget.make_room()
    assert budget.meter.used == 0
    assert holder.size_bytes == 9
    budget.make_room()
    assert holder.num_relieved == 1
