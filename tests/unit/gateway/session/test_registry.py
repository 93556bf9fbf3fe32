from __future__ import annotations

import pytest

from engine.types import DropReason
from gateway.session.registry import LATENCY_BOUNDS_S, SessionRegistry
from tests.fakes.session_client import SessionClient

pytestmark = pytest.mark.unit


def test_totals_outlive_their_sessions() -> None:
    registry = SessionRegistry(8)
    for _ in range(3):
        client = SessionClient(registry=registry).hello()
        lane = client.open()
        client.send_frame(1)
        lane.answer(1)
        client.receive()
        client.session.close("done")
    statistics = registry.statistics()
    assert (statistics.sessions, statistics.sessions_opened) == (0, 3)
    assert statistics.models["fake"].results == 3
    assert sum(statistics.models["fake"].latency.counts) == 3


def test_what_is_open_is_seen() -> None:
    registry = SessionRegistry(8)
    client = SessionClient(registry=registry).hello()
    client.open(1)
    client.open(2)
    statistics = registry.statistics()
    assert (statistics.sessions, statistics.streams) == (1, 2)
    assert statistics.outbox_bytes == client.outbox.size_bytes > 0


def test_latencies_fall_into_their_buckets() -> None:
    registry = SessionRegistry(8)
    for latency_s in (0.001, 0.005, 0.3, 100.0):
        registry.observe_latency("m", latency_s)
    latency = registry.statistics().models["m"].latency
    assert latency.counts[0] == 2
    assert latency.counts[LATENCY_BOUNDS_S.index(0.35)] == 1
    assert latency.counts[-1] == 1
    assert latency.sum_s == pytest.approx(100.306)


def test_a_receipt_that_no_stream_knows_of_is_noticed() -> None:
    registry = SessionRegistry(8)
    tally = registry.tally_of("m")
    tally.count_accepted()
    with pytest.raises(AssertionError):
        registry.check_integrity()
    tally.count_dropped(DropReason.DISCONNECTED)
    registry.check_integrity()
