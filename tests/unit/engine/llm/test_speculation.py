"""Look-ahead: what is guessed, how far, and when it pauses."""

from __future__ import annotations

import pytest

from engine.llm.speculation import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MISSES_UNTIL_PAUSE,
    LookAhead,
    NgramIndex,
    count_right,
)

pytestmark = pytest.mark.unit


def look_ahead(tokens: list[int], longest: int = 4) -> LookAhead:
    return LookAhead(NgramIndex(tokens, 1000), longest)


def test_nothing_is_guessed_where_nothing_repeats() -> None:
    assert NgramIndex([1, 2, 3, 4, 5], 100).guess(4) == ()


@pytest.mark.parametrize("tokens", [[], [1], [1, 2]])
def test_short_sequences_guess_nothing(tokens: list[int]) -> None:
    assert NgramIndex(tokens, 100).guess(4) == ()


def test_what_followed_last_time_is_guessed() -> None:
    assert NgramIndex([1, 2, 3, 4, 5, 1, 2], 100).guess(2) == (3, 4)


def test_a_longer_run_is_believed_before_a_shorter_one() -> None:
    assert NgramIndex([7, 1, 2, 9, 9, 8, 1, 2, 5, 5, 7, 1, 2], 100).guess(1) == (9,)


def test_the_last_occurrence_is_believed() -> None:
    assert NgramIndex([1, 2, 3, 1, 2, 4, 0, 1, 2], 100).guess(1) == (4,)


def test_a_repetition_is_guessed_to_go_on() -> None:
    assert NgramIndex([5, 6, 5, 6], 100).guess(5) == (5, 6, 5, 6, 5)


def test_the_index_grows_with_the_sequence() -> None:
    index = NgramIndex([1, 2, 3], 100)
    assert index.guess(1) == ()
    index.extend([1])
    index.extend([2])
    assert index.guess(2) == (3, 1)


def test_a_full_index_guesses_nothing_and_grows_no_more() -> None:
    index = NgramIndex([1, 2, 1, 2], 4)
    assert index.guess(1) == (1,)
    index.extend([1, 2, 1, 2])
    assert index.guess(1) == ()


def test_no_room_means_no_guess() -> None:
    assert look_ahead([1, 2, 1, 2]).guess(0) == ()


def test_a_miss_shortens_and_a_hit_lengthens_the_guess() -> None:
    ahead = look_ahead([1, 2] * 4)
    assert len(ahead.guess(10)) == 4
    ahead.note_result(4, 1)
    assert len(ahead.guess(10)) == 2
    ahead.note_result(2, 2)
    assert len(ahead.guess(10)) == 3


def test_repeated_misses_pause_the_guessing_longer_and_longer() -> None:
    ahead = look_ahead([1, 2] * 4)
    pauses = []
    for _ in range(7):
        for _ in range(MISSES_UNTIL_PAUSE):
            assert ahead.guess(4) != ()
            ahead.note_result(4, 0)
        pause = 0
        while ahead.guess(4) == ():
            pause += 1
        pauses.append(pause)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


def test_a_step_without_guesses_changes_nothing() -> None:
    ahead = look_ahead([1, 2] * 4)
    for _ in range(10):
        ahead.note_result(0, 0)
    assert len(ahead.guess(4)) == 4


def test_at_most_one_guess_is_possible() -> None:
    ahead = look_ahead([1, 2] * 4, longest=1)
    ahead.note_result(1, 0)
    assert len(ahead.guess(4)) == 1


@pytest.mark.parametrize(
    ("guesses", "chosen", "right"),
    [((), [5], 0), ((5,), [5, 6], 1), ((5, 6), [5, 7, 8], 1), ((5, 6), [4, 6, 7], 0)],
)
def test_guesses_count_until_the_first_wrong_one(
    guesses: tuple[int, ...], chosen: list[int], right: int
) -> None:
    assert count_right(guesses, chosen) == right
