"""The sequencer against a model that simply looks at everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stream.sequencer import Sequencer

pytestmark = pytest.mark.property

CAPACITY = 5


@given(st.lists(st.tuples(st.sampled_from(["reserve", "complete", "vacate"]), st.integers(0, 9))))
def test_any_interleaving_releases_what_a_model_releases(steps: list[tuple[str, int]]) -> None:
    sequencer: Sequencer[int] = Sequencer(CAPACITY)
    slots: list[int] = []  # seqs taken, in order
    done: set[int] = set()
    last, released_last = -1, -1
    for action, number in steps:
        released: list[tuple[int, int]] = []
        if action == "reserve":
            if len(slots) == CAPACITY:
                assert sequencer.is_full
                continue
            last += 1 + number  # gaps are legal
            sequencer.reserve(last)
            slots.append(last)
        elif slots:
            seq = slots[number % len(slots)]
            if action == "complete" and seq not in done:
                released = sequencer.complete(seq, seq)
                done.add(seq)
            elif action == "vacate":
                released = sequencer.vacate(seq)
                slots.remove(seq)
                done.discard(seq)
        expected = []
        while slots and slots[0] in done:
            seq = slots.pop(0)
            done.discard(seq)
            expected.append((seq, seq))
        assert released == expected
        assert len(sequencer) == len(slots)
        assert sequencer.held == tuple(seq for seq in slots if seq in done)
        for seq, _ in released:
            assert seq > released_last
            released_last = seq


@given(st.permutations(range(8)))
def test_results_leave_in_order_whatever_order_they_come_in(order: list[int]) -> None:
    sequencer: Sequencer[int] = Sequencer(8)
    for seq in range(8):
        sequencer.reserve(seq)
    released = [pair for seq in order for pair in sequencer.complete(seq, seq)]
    assert released == [(seq, seq) for seq in range(8)]
