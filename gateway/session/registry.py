"""Every session of the process, and the totals that outlive them."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.histogram import HOP_BOUNDS_S, Histogram
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.detached import DetachedSessions, DetachedStatistics
from gateway.session.resume_tokens import ResumeTokens
from gateway.session.text_totals import TextTotals
from gateway.session.tiers import Tiers
from gateway.stream.byte_budget import ByteBudget
from gateway.stream.credit_pool import CreditPools
from gateway.stream.tally import Tally
from gateway.wire.messages import ServerEvent

MAX_INPUT_BYTES = 512 * 1024 * 1024
# Upper bounds of the latency histogram, seconds; the last bucket has none.
LATENCY_BOUNDS_S = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.35, 0.5, 1.0, 2.5)


class Registered(Protocol):
    """What the registry asks of a session."""

    @property
    def id(self) -> str: ...

    @property
    def num_streams(self) -> int: ...

    @property
    def outbox_bytes(self) -> int: ...

    def tallies(self) -> Iterator[tuple[str, Tally]]:
        """Model and tally of every open stream."""

    def say(self, event: ServerEvent) -> bool:
        """Tell the client; returns whether it can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStatistics:
    """Arrival of a frame until its result is handed to the writer."""

    counts: tuple[int, ...]  # per bucket, not cumulative; one more than LATENCY_BOUNDS_S
    sum_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipts:
    """Receipts for one model since the process began, as in ``Tally``."""

    received: int
    refused: int
    accepted: int
    results: int
    errors: int
    cancelled: int
    dropped: dict[str, int]
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReceipts(Receipts):
    """Those of frames and tensors."""

    latency: LatencyStatistics
    order: Histogram  # waits for earlier frames, seconds; live, not copied


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatistics:
    """Snapshot for metrics."""

    sessions: int  # with a connection
    detached: DetachedStatistics
    sessions_opened: int
    sessions_refused: int
    streams: int
    outbox_bytes: int
    input_bytes: int
    models: dict[str, ModelReceipts]  # of frames
    prompts: dict[str, Receipts]
    texts: dict[str, TextTotals]  # live, not copied: read them at once


@dataclass(slots=True)
class _Model:
    """One model's totals."""

    tally: Tally = field(default_factory=Tally)
    latency_counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    latency_sum_s: float = 0.0
    order: Histogram = field(default_factory=lambda: Histogram(HOP_BOUNDS_S))


class SessionRegistry:
    """At most ``max_sessions`` that have a connection; totals per model, of which the engine knows
    a few.

    ``input_budget`` bounds the bytes of accepted, unanswered frames over all sessions.
    """

    def __init__(
        self,
        max_sessions: int,
        max_input_bytes: int = MAX_INPUT_BYTES,
        *,
        detached: DetachedSessions | None = None,
        tiers: Tiers | None = None,
        credit: CreditPools | None = None,
    ) -> None:
        """Without ``tiers`` everybody may ask for everything, and nothing is shed; without
        ``credit`` no model's queue is known to have an end."""
        self.epoch = secrets.token_hex(8)
        self.input_budget = ByteBudget(max_input_bytes)
        self.detached = DetachedSessions() if detached is None else detached
        self.tokens = ResumeTokens()
        self.tiers = Tiers() if tiers is None else tiers
        self.credit = CreditPools() if credit is None else credit
        self._max_sessions = max_sessions
        self._sessions: dict[str, Registered] = {}
        self._models: dict[str, _Model] = {}
        self._prompts: dict[str, Tally] = {}
        self._texts: dict[str, TextTotals] = {}
        self._num_opened = 0
        self._num_refused = 0

    def __len__(self) -> int:
        """Sessions with a connection; a client that comes back brings one before it has its own."""
        return len(self._sessions) - len(self.detached)

    def add(self, session: Registered) -> None:
        """Raises RequestProblem(OVERLOADED) when there are too many."""
        if len(self) >= self._max_sessions:
            self._num_refused += 1
            detail = f"{self._max_sessions} sessions are open"
            raise RequestProblem(ProblemKind.OVERLOADED, detail, retry_after_ms=1000)
        self._sessions[session.id] = session
        self._num_opened += 1

    def remove(self, session_id: str) -> None:
        """Idempotent."""
        self._sessions.pop(session_id, None)
        self.detached.remove(session_id)
        self.tokens.forget(session_id)

    def say(self, event: ServerEvent, session: str | None = None) -> int:
        """Tell it to that session, or to all; returns to how many that can be told."""
        if session is None:
            return sum(each.say(event) for each in tuple(self._sessions.values()))
        found = self._sessions.get(session)
        return 0 if found is None else int(found.say(event))

    def tally_of(self, model: str) -> Tally:
        """The model's frames; only for models that the engine serves, which bounds them."""
        return self._models.setdefault(model, _Model()).tally

    def prompts_of(self, model: str) -> Tally:
        """The model's prompts over WebSocket; bounded as ``tally_of``."""
        return self._prompts.setdefault(model, Tally())

    def text_of(self, model: str) -> TextTotals:
        """The model's answers, over HTTP as well; bounded as ``tally_of``."""
        return self._texts.setdefault(model, TextTotals())

    def observe_latency(self, model: str, latency_s: float, order_s: float = 0.0) -> None:
        """A result was handed to the writer that long after its frame arrived; for ``order_s`` of
        it, the result waited for those of earlier frames."""
        totals = self._models.setdefault(model, _Model())
        totals.latency_counts[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        totals.latency_sum_s += latency_s
        totals.order.observe(order_s)

    def statistics(self) -> SessionStatistics:
        return SessionStatistics(
            sessions=len(self),
            detached=self.detached.statistics(),
            sessions_opened=self._num_opened,
            sessions_refused=self._num_refused,
            streams=sum(session.num_streams for session in self._sessions.values()),
            outbox_bytes=sum(session.outbox_bytes for session in self._sessions.values()),
            input_bytes=self.input_budget.used,
            models={
                name: ModelReceipts(
                    **_receipts(totals.tally),
                    latency=LatencyStatistics(
                        counts=tuple(totals.latency_counts), sum_s=totals.latency_sum_s
                    ),
                    order=totals.order,
                )
                for name, totals in self._models.items()
            },
            prompts={name: Receipts(**_receipts(tally)) for name, tally in self._prompts.items()},
            texts=dict(self._texts),
        )

    def check_integrity(self) -> None:
        """Assert that what is in flight in all is what the open streams have in flight."""
        self.detached.check_integrity()
        in_flight: Counter[int] = Counter()
        for session in self._sessions.values():
            for _, tally in session.tallies():
                tally.check_integrity()
                in_flight[id(tally.parent)] += tally.in_flight
        frames = {model: totals.tally for model, totals in self._models.items()}
        for model, tally in (*frames.items(), *self._prompts.items()):
            tally.check_integrity()
            assert tally.in_flight == in_flight[id(tally)], (model, in_flight[id(tally)])
        for model, totals in self._models.items():
            assert sum(totals.latency_counts) == totals.tally.results, model


def _receipts(tally: Tally) -> dict[str, Any]:
    return {
        "received": tally.received,
        "refused": tally.refused,
        "accepted": tally.accepted,
        "results": tally.results,
        "errors": tally.errors,
        "cancelled": tally.cancelled,
        "dropped": {reason.value: count for reason, count in tally.dropped.items()},
        "in_flight": tally.in_flight,
    }
