"""``GET /metrics``: every component's ``statistics()`` in Prometheus' words (docs/metrics.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client.core import HistogramMetricFamily, Metric

from engine.base import Engine, ModelStatistics
from gateway.api.hop_metrics import hop_families
from gateway.api.network_metrics import network_families
from gateway.api.pressure_metrics import pressure_families
from gateway.api.sse import EventStreams
from gateway.api.text_metrics import llm_families, prompt_families
from gateway.api.version_metrics import version_families
from gateway.metrics import PREFIX, LoopLag, Samples, counter, gauge, render
from gateway.net.admission import ConnectionTable
from gateway.session.detached import DetachedStatistics
from gateway.session.pressure import Pressure
from gateway.session.registry import (
    LATENCY_BOUNDS_S,
    LatencyStatistics,
    ModelReceipts,
    SessionRegistry,
    SessionStatistics,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsApi:
    """Takes the snapshot on the loop, where nothing changes meanwhile, and renders it elsewhere."""

    def __init__(
        self,
        engine: Engine,
        sessions: SessionRegistry,
        connections: ConnectionTable,
        loop_lag: LoopLag,
        authenticate: Callable[[web.Request], str],
        pressure: Pressure | None = None,
        event_streams: EventStreams | None = None,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._connections = connections
        self._loop_lag = loop_lag
        self._pressure = Pressure() if pressure is None else pressure
        self._event_streams = EventStreams() if event_streams is None else event_streams
        self._authenticate = authenticate

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        body = await asyncio.to_thread(render, list(self.families()))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    def families(self) -> Iterator[Metric]:
        yield from self._loop_families()
        yield from pressure_families(self._pressure.statistics())
        yield from self._connection_families()
        sessions = self._sessions.statistics()
        yield from _session_families(sessions)
        models = self._engine.statistics().models
        yield from _engine_families(models)
        yield from hop_families(models, sessions.models)
        yield from version_families(models)
        yield from llm_families(models)

    def _loop_families(self) -> Iterator[Metric]:
        lag = self._loop_lag.statistics()
        help_text = "How late the event loop ran its timers over the last seconds."
        samples: Samples = [({"statistic": "mean"}, lag.mean_s), ({"statistic": "max"}, lag.max_s)]
        yield gauge("loop_lag_seconds", help_text, samples)

    def _connection_families(self) -> Iterator[Metric]:
        now = self._connections.statistics()
        yield gauge("connections", "Open WebSocket connections.", [({}, now.open)])
        yield gauge("connections_limit", "limits.max_connections.", [({}, now.limit)])
        yield counter("connections_accepted", "Handshakes answered with 101.", [({}, now.accepted)])
        yield counter("connections_refused", "Handshakes without a place.", [({}, now.refused)])
        closed: Samples = [({"code": str(code)}, n) for code, n in sorted(now.closed.items())]
        yield counter("connections_closed", "Connections over, by close code.", closed)
        messages: Samples = [
            ({"direction": "in"}, now.messages_in),
            ({"direction": "out"}, now.messages_out),
        ]
        yield counter("messages", "WebSocket messages.", messages)
        sizes: Samples = [
            ({"direction": "in"}, now.bytes_in),
            ({"direction": "out"}, now.bytes_out),
        ]
        yield counter("message_bytes", "Payload bytes of WebSocket messages.", sizes)
        help_text = "How often the fullest outbox made room for the others."
        yield counter("outboxes_relieved", help_text, [({}, now.outboxes_relieved)])
        help_text = "Answers over HTTP that are being sent event by event."
        yield gauge("event_streams", help_text, [({}, len(self._event_streams.networks))])
        yield from network_families(now, self._event_streams)


def _session_families(now: SessionStatistics) -> Iterator[Metric]:
    yield gauge("sessions", "Open sessions, also before their hello.", [({}, now.sessions)])
    yield counter("sessions_opened", "Sessions opened.", [({}, now.sessions_opened)])
    yield counter("sessions_refused", "Sessions over the limit.", [({}, now.sessions_refused)])
    yield from _detached_families(now.detached)
    yield gauge("streams", "Open streams.", [({}, now.streams)])
    yield gauge("outbox_bytes", "Bytes waiting for slow readers.", [({}, now.outbox_bytes)])
    yield gauge("input_bytes", "Bytes of unanswered frames.", [({}, now.input_bytes)])
    yield from _receipt_families(now.models)
    yield from prompt_families(now)


def _detached_families(now: DetachedStatistics) -> Iterator[Metric]:
    detached: Samples = [({}, now.detached)]
    yield gauge("sessions_detached", "Sessions that wait for their client.", detached)
    yield gauge("detached_bytes", "Bytes of the events they keep.", [({}, now.size_bytes)])
    yield counter("sessions_resumed", "Sessions that went on.", [({}, now.resumed)])
    help_text = "Sessions whose client did not come back in time."
    yield counter("sessions_expired", help_text, [({}, now.expired)])
    help_text = "Sessions that were not waited for any longer."
    yield counter("sessions_given_up", help_text, [({}, now.given_up)])


def _receipt_families(models: dict[str, ModelReceipts]) -> Iterator[Metric]:
    """``accepted = results + dropped + errors + cancelled + in_flight``, per model."""

    def each(read: Callable[[ModelReceipts], float]) -> Samples:
        return [({"model": name}, read(model)) for name, model in models.items()]

    yield counter("frames_received", "Frames that arrived.", each(lambda m: m.received))
    yield counter("frames_refused", "Frames refused on arrival.", each(lambda m: m.refused))
    yield counter("frames_accepted", "Frames owed a receipt.", each(lambda m: m.accepted))
    yield counter("frame_results", "Frames answered by a result.", each(lambda m: m.results))
    yield counter("frame_errors", "Frames answered by an error.", each(lambda m: m.errors))
    yield counter("frames_cancelled", "Frames withdrawn.", each(lambda m: m.cancelled))
    yield gauge("frames_in_flight", "Frames not answered yet.", each(lambda m: m.in_flight))
    dropped: Samples = [
        ({"model": name, "reason": reason}, count)
        for name, model in models.items()
        for reason, count in sorted(model.dropped.items())
    ]
    yield counter("frames_dropped", "Frames given up, by reason.", dropped)
    yield _latency_family(models)


def _latency_family(models: dict[str, ModelReceipts]) -> Metric:
    family = HistogramMetricFamily(
        f"{PREFIX}frame_latency_seconds",
        "Arrival of a frame until its result was handed to the writer.",
        labels=["model"],
    )
    for name, model in models.items():
        buckets = _cumulative(model.latency)
        family.add_metric([name], buckets=buckets, sum_value=model.latency.sum_s)
    return family


def _cumulative(latency: LatencyStatistics) -> list[tuple[str, float]]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), latency.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _engine_families(models: tuple[ModelStatistics, ...]) -> Iterator[Metric]:
    def each(read: Callable[[ModelStatistics], float]) -> Samples:
        return [({"model": model.model}, read(model)) for model in models]

    yield gauge("model_ready", "1 when the model serves.", each(lambda m: m.ready))
    providers: Samples = [
        ({"model": model.model, "provider": provider}, 1)
        for model in models
        for provider in model.providers
    ]
    yield gauge("model_provider", "1 for what a model runs on.", providers)
    yield gauge("workers_alive", "Worker processes that serve.", each(lambda m: m.workers_alive))
    yield gauge("workers_wanted", "Worker processes wanted.", each(lambda m: m.workers_wanted))
    yield counter("worker_restarts", "Workers started again.", each(lambda m: m.worker_restarts))
    rss = each(lambda m: sum(m.worker_rss_bytes))
    yield gauge("worker_rss_bytes", "Resident memory of a model's workers.", rss)
    yield gauge("lanes", "Open lanes.", each(lambda m: m.lanes))
    yield gauge("items_queued", "Items waiting in lanes.", each(lambda m: m.queued))
    yield gauge("items_in_flight", "Items not answered yet.", each(lambda m: m.in_flight))
    yield counter("items_accepted", "Items taken into a lane.", each(lambda m: m.accepted))
    yield counter("item_results", "Items answered by a result.", each(lambda m: m.results))
    yield counter("items_failed", "Items answered by an error.", each(lambda m: m.failed))
    yield counter("items_cancelled", "Items withdrawn.", each(lambda m: m.cancelled))
    yield counter("items_retried", "Items run again alone.", each(lambda m: m.retried))
    dropped: Samples = [
        ({"model": model.model, "reason": reason}, count)
        for model in models
        for reason, count in sorted(model.dropped.items())
    ]
    yield counter("items_dropped", "Items given up, by reason.", dropped)
    yield counter("batches", "Batches run.", each(lambda m: m.batches))
    predicted = each(lambda m: m.predicted_run_s)
    yield gauge("predicted_run_seconds", "Predicted run time of a batch.", predicted)
