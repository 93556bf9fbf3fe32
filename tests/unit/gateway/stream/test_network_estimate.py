from __future__ import annotations

import pytest

from gateway.stream.network_estimate import NetworkEstimate, PathSample

pytestmark = pytest.mark.unit


def a_path(segments: int, again: int = 0, *, rtt_s: float = 0.02) -> PathSample:
    return PathSample(rtt_s=rtt_s, rttvar_s=0.004, num_segments=segments, num_retransmitted=again)


def test_nothing_known_is_a_network_without_faults() -> None:
    state = NetworkEstimate().state
    assert (state.rtt_ms, state.rttvar_ms, state.jitter_ms, state.loss) == (0, 0, 0, 0)


def test_the_kernel_tells_the_round_trip_and_stands_in_for_the_jitter() -> None:
    estimate = NetworkEstimate()
    estimate.note_path(a_path(10))
    assert (estimate.state.rtt_ms, estimate.state.rttvar_ms) == (20, 4)
    assert estimate.state.jitter_ms == 4


def test_loss_is_the_share_of_what_was_sent_since_the_last_look() -> None:
    estimate = NetworkEstimate()
    estimate.note_path(a_path(1_000, 500))
    assert estimate.state.loss == 0
    for step in range(1, 40):
        estimate.note_path(a_path(1_000 + 100 * step, 500 + 5 * step))
    assert estimate.state.loss == pytest.approx(0.05, rel=0.01)
    for step in range(1, 40):
        estimate.note_path(a_path(5_000 + 100 * step, 695))
    assert estimate.state.loss < 0.001


def test_an_idle_connection_keeps_what_was_known_of_its_loss() -> None:
    estimate = NetworkEstimate()
    estimate.note_path(a_path(0))
    estimate.note_path(a_path(100, 50))
    before = estimate.state.loss
    estimate.note_path(a_path(100, 50))
    assert estimate.state.loss == before > 0


def test_more_segments_again_than_sent_is_all_of_them() -> None:
    estimate = NetworkEstimate()
    estimate.note_path(a_path(0))
    for step in range(1, 30):
        estimate.note_path(a_path(step, 10 * step))
    assert estimate.state.loss == pytest.approx(1.0, abs=0.01)


def test_pings_measure_jitter_once_two_are_answered() -> None:
    estimate = NetworkEstimate()
    estimate.note_path(a_path(10))
    estimate.note_ping(0.050)
    assert estimate.state.jitter_ms == 4
    estimate.note_ping(0.070)
    assert estimate.state.jitter_ms == pytest.approx(20)
    for _ in range(100):
        estimate.note_ping(0.050)
    assert estimate.state.jitter_ms < 0.1


def test_without_the_kernel_pings_tell_the_round_trip() -> None:
    estimate = NetworkEstimate()
    estimate.note_ping(0.050)
    assert estimate.state.rtt_ms == 50
