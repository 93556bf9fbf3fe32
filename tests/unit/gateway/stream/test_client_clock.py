from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stream.client_clock import MAX_SAMPLES, ClientClock

pytestmark = pytest.mark.unit


def test_the_offset_is_that_of_the_quickest_answer() -> None:
    clock = ClientClock()
    assert clock.offset_s is None
    clock.note(1_000_000, sent_at=100.0, answered_at=100.8)
    clock.note(2_000_000, sent_at=101.0, answered_at=101.02)
    clock.note(3_000_000, sent_at=102.0, answered_at=102.4)
    assert clock.offset_s == pytest.approx(99.01)


def test_old_answers_are_forgotten_because_clocks_run_apart() -> None:
    clock = ClientClock()
    clock.note(0, sent_at=50.0, answered_at=50.0)
    for number in range(MAX_SAMPLES):
        clock.note(number * 1_000_000, sent_at=60.0 + number, answered_at=60.1 + number)
    assert clock.offset_s == pytest.approx(60.05)


def test_a_frame_is_as_old_as_both_clocks_say() -> None:
    clock = ClientClock()
    assert clock.age_s(0, now=5.0) == 0
    clock.note(1_000_000, sent_at=101.0, answered_at=101.0)
    assert clock.age_s(1_500_000, now=101.7) == pytest.approx(0.2)


@pytest.mark.parametrize("t_us", [0, 10_000_000, 2**53 - 1])
def test_labels_of_another_clock_have_no_age(t_us: int) -> None:
    clock = ClientClock()
    clock.note(500_000_000, sent_at=1000.0, answered_at=1000.0)
    assert clock.age_s(t_us, now=1000.0) == 0


def test_a_frame_from_the_near_future_was_captured_now() -> None:
    clock = ClientClock()
    clock.note(1_000_000, sent_at=101.0, answered_at=101.1)
    assert clock.age_s(1_080_000, now=101.1) == 0


def test_another_connection_begins_anew() -> None:
    clock = ClientClock()
    clock.note(0, sent_at=1.0, answered_at=1.0)
    clock.forget()
    assert clock.offset_s is None


@given(
    offset_s=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=30),
)
def test_the_offset_is_wrong_by_half_of_the_quickest_round_trip_at_most(
    offset_s: float, trips: list[tuple[float, float]]
) -> None:
    clock = ClientClock()
    for number, (there_s, back_s) in enumerate(trips):
        sent_at = 1e6 + 10.0 * number
        client_us = round((sent_at + there_s + offset_s) * 1e6)
        clock.note(client_us, sent_at=sent_at, answered_at=sent_at + there_s + back_s)
    quickest_s = min(there_s + back_s for there_s, back_s in trips[-MAX_SAMPLES:])
    assert clock.offset_s is not None
    assert abs(clock.offset_s + offset_s) <= quickest_s / 2 + 1e-5
