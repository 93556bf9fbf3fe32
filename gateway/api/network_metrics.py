"""Samples about the network, of WebSockets and event streams together (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from gateway.api.sse import EventStreams
from gateway.metrics import Samples, counter, gauge
from gateway.net.admission import ConnectionStatistics
from gateway.stream.network_state import NetworkState


def network_families(now: ConnectionStatistics, event_streams: EventStreams) -> Iterator[Metric]:
    """Of all connections together: a label for each would never end."""
    networks = (*now.networks, *event_streams.networks)
    rtt, jitter, loss = _rtt_s(networks), _jitter_s(networks), [each.loss for each in networks]
    yield gauge("network_rtt_seconds", "Smoothed round trips.", _spread(rtt))
    yield gauge("network_jitter_seconds", "Jitter of round trips.", _spread(jitter))
    yield gauge("network_loss_ratio", "Share of segments sent again, lately.", _spread(loss))
    num_out, num_again = event_streams.segments
    segments: Samples = [({}, now.segments_out + num_out)]
    yield counter("tcp_segments", "TCP segments with data sent.", segments)
    again: Samples = [({}, now.segments_again + num_again)]
    yield counter("tcp_retransmits", "TCP segments sent again.", again)


def _rtt_s(networks: Sequence[NetworkState]) -> list[float]:
    return [1e-3 * each.rtt_ms for each in networks]


def _jitter_s(networks: Sequence[NetworkState]) -> list[float]:
    return [1e-3 * each.jitter_ms for each in networks]


def _spread(values: Sequence[float]) -> Samples:
    """Of one quantity over the connections; 0 when there are none."""
    ordered = sorted(values) or [0.0]
    last = len(ordered) - 1
    return [
        ({"statistic": "median"}, ordered[round(0.5 * last)]),
        ({"statistic": "p95"}, ordered[round(0.95 * last)]),
        ({"statistic": "max"}, ordered[last]),
    ]
