from __future__ import annotations

import pytest

from gateway.stream.sequencer import Sequencer

pytestmark = pytest.mark.unit


def test_a_result_waits_for_every_earlier_frame() -> None:
    sequencer: Sequencer[str] = Sequencer(3)
    for seq in (1, 5, 9):
        sequencer.reserve(seq)
    assert sequencer.complete(9, "c") == []
    assert sequencer.complete(5, "b") == []
    assert sequencer.held == (5, 9)
    assert sequencer.complete(1, "a") == [(1, "a"), (5, "b"), (9, "c")]
    assert len(sequencer) == 0


def test_a_vacated_slot_lets_what_waited_for_it_go() -> None:
    sequencer: Sequencer[str] = Sequencer(3)
    for seq in (1, 2, 3):
        sequencer.reserve(seq)
    assert sequencer.complete(2, "b") == []
    assert sequencer.vacate(1) == [(2, "b")]
    assert sequencer.vacate(3) == []


def test_a_held_result_can_be_given_up() -> None:
    sequencer: Sequencer[str] = Sequencer(2)
    sequencer.reserve(1)
    sequencer.reserve(2)
    sequencer.complete(2, "b")
    assert sequencer.vacate(2) == []
    assert sequencer.complete(1, "a") == [(1, "a")]


def test_slots_vacated_behind_a_slow_frame_are_free_again() -> None:
    sequencer: Sequencer[str] = Sequencer(2)
    sequencer.reserve(0)
    for seq in range(1, 1000):
        sequencer.reserve(seq)
        sequencer.vacate(seq)
    assert len(sequencer) == 1


def test_a_falsy_result_is_a_result() -> None:
    sequencer: Sequencer[bytes] = Sequencer(1)
    sequencer.reserve(0)
    assert sequencer.complete(0, b"") == [(0, b"")]


@pytest.mark.parametrize("seq", [4, 5])
def test_seq_must_rise(seq: int) -> None:
    sequencer: Sequencer[str] = Sequencer(3)
    sequencer.reserve(5)
    with pytest.raises(ValueError, match="rise"):
        sequencer.reserve(seq)
    assert len(sequencer) == 1


def test_more_frames_than_slots_are_refused() -> None:
    sequencer: Sequencer[str] = Sequencer(1)
    sequencer.reserve(1)
    with pytest.raises(ValueError, match="slots"):
        sequencer.reserve(2)
    sequencer.vacate(1)
    sequencer.reserve(2)


def test_only_reserved_slots_can_be_filled_and_only_once() -> None:
    sequencer: Sequencer[str] = Sequencer(2)
    sequencer.reserve(1)
    sequencer.reserve(2)
    with pytest.raises(ValueError, match="awaits"):
        sequencer.complete(3, "x")
    sequencer.complete(2, "b")
    with pytest.raises(ValueError, match="awaits"):
        sequencer.complete(2, "again")
    with pytest.raises(ValueError, match="no slot"):
        sequencer.vacate(3)


def test_a_sequencer_without_slots_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="capacity"):
        Sequencer(0)


def test_a_frame_that_too_many_results_wait_for_is_overdue() -> None:
    sequencer: Sequencer[str] = Sequencer(5, max_gap=2)
    for seq in range(5):
        sequencer.reserve(seq)
    sequencer.complete(1, "b")
    sequencer.complete(2, "c")
    assert sequencer.overdue is None
    sequencer.complete(3, "d")
    assert sequencer.overdue == 0
    assert sequencer.vacate(0) == [(1, "b"), (2, "c"), (3, "d")]
    assert sequencer.overdue is None


def test_without_a_gap_limit_results_wait_for_ever() -> None:
    sequencer: Sequencer[int] = Sequencer(50)
    for seq in range(50):
        sequencer.reserve(seq)
    for seq in range(1, 50):
        sequencer.complete(seq, seq)
    assert sequencer.overdue is None


def test_a_gap_of_nothing_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="max_gap"):
        Sequencer(2, max_gap=0)
