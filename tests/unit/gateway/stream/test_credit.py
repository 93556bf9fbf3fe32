from __future__ import annotations

import pytest

from gateway.stream.credit import CreditWindow, Grant

pytestmark = pytest.mark.unit


def receive(window: CreditWindow, num_bytes: int, now: float = 0.0) -> bool:
    window.receive_bytes(num_bytes)
    return window.receive_frame(now)


def test_frames_are_covered_up_to_the_window() -> None:
    window = CreditWindow(2, 1000)
    assert receive(window, 10)
    assert receive(window, 10)
    assert not receive(window, 10)


def test_bytes_are_covered_up_to_the_window() -> None:
    window = CreditWindow(10, 100)
    assert receive(window, 60)
    assert not receive(window, 60)


def test_one_frame_is_always_allowed_when_none_is_in_flight() -> None:
    window = CreditWindow(1, 100)
    assert receive(window, 5000)
    window.settle(1, 5000)
    assert receive(window, 5000)


def test_receipts_make_the_limits_grow() -> None:
    window = CreditWindow(2, 100)
    receive(window, 40)
    window.settle(1, 40)
    assert window.grant == Grant(3, 140)
    assert (window.frames_in_flight, window.bytes_in_flight) == (0, 0)


def test_no_more_can_be_settled_than_is_in_flight() -> None:
    window = CreditWindow(2, 100)
    receive(window, 40)
    with pytest.raises(ValueError, match="in flight"):
        window.settle(2, 0)
    with pytest.raises(ValueError, match="in flight"):
        window.settle(1, 41)
    assert window.grant == Grant(2, 100)


def test_a_client_that_ignores_credit_is_noticed() -> None:
    window = CreditWindow(2, 100)
    for _ in range(4):
        receive(window, 1)
        assert not window.is_far_exceeded
    receive(window, 1)
    assert window.is_far_exceeded


def overrun(window: CreditWindow, now: float) -> bool:
    """A frame too large for what is left, refused and told at once; whether it was covered."""
    is_covered = receive(window, 100, now)
    window.settle(1, 100)
    return is_covered


def test_two_windows_refused_within_a_second_are_noticed_though_each_was_settled() -> None:
    window = CreditWindow(4, 100)
    for _ in range(4):
        receive(window, 20)
    for _ in range(8):
        assert not overrun(window, 0.5)
        assert not window.is_far_exceeded
    overrun(window, 0.5)
    assert window.is_far_exceeded


def test_a_client_that_overruns_its_credit_now_and_then_is_only_refused() -> None:
    window = CreditWindow(4, 100)
    for _ in range(4):
        receive(window, 20)
    for step in range(100):
        assert not overrun(window, step * 0.2)
        assert not window.is_far_exceeded


def test_a_grant_is_announced_once_half_the_window_is_used() -> None:
    window = CreditWindow(4, 1000)
    receive(window, 1)
    window.settle(1, 1)
    assert window.next_announcement() is None
    receive(window, 1)
    window.settle(1, 1)
    assert window.next_announcement() == Grant(6, 1002)
    assert window.next_announcement() is None


def test_the_last_receipt_of_a_full_window_is_announced() -> None:
    window = CreditWindow(4, 1000)
    for _ in range(4):
        receive(window, 1)
    for settled in range(1, 5):
        window.settle(1, 1)
        grant = window.next_announcement()
        if settled <= 2:
            assert grant is not None
    assert window.grant.max_frames == 8


def test_bytes_alone_are_reason_enough_to_announce() -> None:
    window = CreditWindow(100, 100)
    receive(window, 60)
    window.settle(1, 60)
    assert window.next_announcement() == Grant(101, 160)


def test_an_empty_window_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="admits nothing"):
        CreditWindow(0, 1)


def serve(window: CreditWindow, *, rate_hz: float, in_flight_s: float, seconds: float) -> None:
    """Results at a steady rate, none of whose frames meets the end of the credit."""
    for step in range(int(seconds * rate_hz)):
        receive(window, 1)
        window.settle(1, 1)
        window.note_answer(in_flight_s, step / rate_hz)
        window.next_announcement()


def test_the_window_shrinks_to_what_keeps_the_stream_busy() -> None:
    window = CreditWindow(16, 1000)
    serve(window, rate_hz=30, in_flight_s=0.1, seconds=20)
    assert window.window_frames == 3 + 2  # 30 a second, each a tenth of a second, and some slack


def test_the_window_shrinks_by_one_frame_a_second_and_not_in_the_first() -> None:
    window = CreditWindow(16, 1000)
    serve(window, rate_hz=30, in_flight_s=0.03, seconds=1)
    assert window.window_frames == 16
    serve(window, rate_hz=30, in_flight_s=0.03, seconds=2.5)
    assert window.window_frames in (14, 15)


def test_a_client_that_has_used_up_its_credit_gets_more() -> None:
    window = CreditWindow(8, 1000)
    serve(window, rate_hz=10, in_flight_s=0.02, seconds=20)
    assert window.window_frames == 3
    before = window.grant.max_frames
    while window.grant.max_frames == before and window.frames_in_flight < 8:
        assert receive(window, 1, 20.0)
        if window.window_frames > 3:
            break
    assert window.window_frames == 4


def test_what_was_granted_stays_granted_while_the_window_shrinks() -> None:
    window = CreditWindow(16, 10_000)
    granted = window.grant.max_frames
    for step in range(600):
        receive(window, 1)
        window.settle(1, 1)
        window.note_answer(0.01, step / 30)
        announced = window.next_announcement()
        assert window.grant.max_frames >= granted
        if announced is not None:
            assert announced.max_frames >= granted
            granted = announced.max_frames
        assert granted > step + 1, "the client may always go on"


def test_the_window_never_exceeds_what_was_configured() -> None:
    window = CreditWindow(4, 1000)
    serve(window, rate_hz=100, in_flight_s=2.0, seconds=5)
    assert window.window_frames == 4
