"""Makes the outflow of each answer, and keeps what outlives answers: priors, buckets, the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.base import Lane
from gateway.config_sections import PacingConfig
from gateway.session.clock import Clock
from gateway.session.outflow import Outflow, Receiver
from gateway.session.release_table import ReleaseTable
from gateway.session.tenants import TenantCeilings
from gateway.session.text_options import PACE_OFF
from gateway.session.text_totals import TextTotals
from gateway.stream.congestion import Congestion
from gateway.stream.leaky_bucket import LeakyBucket
from gateway.stream.pacer import Ceiling, TokenPacer
from gateway.stream.pacer_settings import PacerSettings
from gateway.stream.pacer_source import SourcePrior
from gateway.stream.rate_ceiling import RateCeiling
from gateway.stream.release import Decider
from gateway.stream.release_unpaced import Unpaced

STEADY_AHEAD, OFF_AHEAD = 5, 8
DELAY_JUMP = "delay_jump"  # a trigger's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """What an outflow has to know of the answer that it carries."""

    model: str
    tenant: str
    pace: str  # one of PACES
    lane: Lane
    item_id: int
    congestion: Congestion  # of its connection
    ceiling: RateCeiling | None  # the stream's own


def max_ahead(pace: str) -> int:
    """Events of one answer that may wait for its socket; what is behind them stays in the reserve,
    where it can still be slowed down, withdrawn or overtaken."""
    return OFF_AHEAD if pace == PACE_OFF else STEADY_AHEAD


class Pacing:
    """One per process. Priors are kept per model, of which the engine knows a few."""

    def __init__(self, config: PacingConfig, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._settings = PacerSettings(
            fastest_s=1.0 / config.max_rate,
            slowest_s=1.0 / config.min_rate,
            lag_cap_s=config.lag_cap_ms / 1e3,
        )
        self._priors: dict[str, SourcePrior] = {}
        self._table = ReleaseTable(clock)
        self._tenants: TenantCeilings | None = None
        if config.tenant_fill_rate > 0:
            rate = config.tenant_fill_rate
            self._tenants = TenantCeilings(partial(self._ceiling, config.tenant_capacity, rate))

    def stream_ceiling(self) -> RateCeiling | None:
        """The bucket of one stream, if streams have one."""
        if not self.config.limit_streams:
            return None
        return self._ceiling(self.config.capacity, self.config.fill_rate)

    def start(
        self,
        answering: Answering,
        totals: TextTotals,
        receiver: Receiver,
    ) -> Outflow:
        """An answer begins; the model is known to exist."""
        decider: Decider
        if answering.pace == PACE_OFF:
            decider = Unpaced(LeakyBucket(self.config.transfer_rate, self.config.burst))
            on_over: Callable[[], None] = _nothing
        else:
            decider = pacer = self._pacer(answering)
            on_over = partial(self._learn, answering, pacer, totals)
        return Outflow(
            decider,
            self._clock,
            self._table,
            totals.start_delivery(decider.reserve),
            receiver,
            lane=answering.lane,
            item_id=answering.item_id,
            on_over=on_over,
        )

    def _pacer(self, answering: Answering) -> TokenPacer:
        ceilings: Sequence[Ceiling] = [] if answering.ceiling is None else [answering.ceiling]
        if self._tenants is not None:
            ceilings = [*ceilings, self._tenants.join(answering.tenant)]
        return TokenPacer(
            self._settings,
            self._priors.setdefault(answering.model, SourcePrior()),
            ceilings=ceilings,
            congestion=answering.congestion,
        )

    def _learn(self, answering: Answering, pacer: TokenPacer, totals: TextTotals) -> None:
        self._priors[answering.model].learn(pacer.source)
        totals.triggers.update(pacer.triggers)
        if self._tenants is not None:
            self._tenants.leave(answering.tenant)

    def _ceiling(self, capacity: float, fill_rate: float) -> RateCeiling:
        fastest_hz = self.config.max_rate
        return RateCeiling(capacity=capacity, fill_rate=fill_rate, fastest_hz=fastest_hz)


def _nothing() -> None:
    """Nothing is learnt from an answer that was not paced."""
