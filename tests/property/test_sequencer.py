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


@given(
    max_gap=st.integers(1, 4),
    events=st.lists(
        st.tuples(st.sampled_from(["result", "result", "drop", "duplicate"]), st.integers(0, 11)),
        max_size=60,
    ),
)
def test_no_gap_grows_too_long_and_nothing_leaves_twice_or_out_of_order(
    max_gap: int, events: list[tuple[str, int]]
) -> None:
    """As the session drives it: drops, results that come twice or after their slot was closed."""
    sequencer: Sequencer[int] = Sequencer(12, max_gap=max_gap)
    for seq in range(12):
        sequencer.reserve(seq)
    open_slots = set(range(12))  # answers that are still awaited
    left: list[int] = []
    dropped: list[int] = []
    for kind, seq in events:
        if seq in open_slots:
            open_slots.discard(seq)
            is_drop = kind == "drop"
            released = sequencer.vacate(seq) if is_drop else sequencer.complete(seq, seq)
            if is_drop:
                dropped.append(seq)
            left += [seq for seq, _ in released]
        elif kind == "duplicate" and seq in sequencer.held:
            with pytest.raises(ValueError, match="awaits no result"):
                sequencer.complete(seq, seq)
        while (overdue := sequencer.overdue) is not None:
            assert overdue in open_slots
            assert len(sequencer.held) == max_gap + 1
            open_slots.discard(overdue)
            dropped.append(overdue)
            left += [seq for seq, _ in sequencer.vacate(overdue)]
        sequencer.check_integrity()
        assert len(sequencer.held) <= max_gap
        assert left == sorted(set(left))
        assert set(left).isdisjoint(dropped)
    assert len(left) + len(dropped) + len(sequencer) == 12


@given(st.permutations(range(8)))
def test_results_leave_in_order_whatever_order_they_come_in(order: list[int]) -> None:
    sequencer: Sequencer[int] = Sequencer(8)
    for seq in range(8):
        sequencer.reserve(seq)
    released = [pair for seq in order for pair in sequencer.complete(seq, seq)]
    assert released == [(seq, seq) for seq in range(8)]
