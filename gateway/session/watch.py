"""Ends connections that nobody lives at: no hello, no pong, no acks, frames never finished.

The answers to its pings also tell how far the client is, and what its clock says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import UNSET

from gateway.config_sections import LimitsConfig
from gateway.errors import CloseCode, ConnectionFault, ProblemKind
from gateway.session.clock import Clock, Timer
from gateway.session.ingest import Ingest
from gateway.session.stream_table import StreamTable
from gateway.session.telling import Telling
from gateway.stream.liveness import Liveness
from gateway.stream.network_estimate import NetworkEstimate
from gateway.wire.messages import ClientPong, Ping

# Time-outs are looked at this many times each, so they end at most a quarter late; that of acks,
# which alone tells a reader whose kernel reads from one that reads, ends on time.
_TICKS_PER_TIMEOUT = 4
# A look that comes so much later than it should: the process was suspended, or hung.
_LATE_S = 0.05
# Meanwhile the sockets are read; a process that is always late still has to judge.
_PUT_OFF_S, _MAX_PUT_OFFS = 0.25, 3


class Watch:
    """One timer per session: first for ``hello``, then a tick that looks at everything else.

    Faults go to ``on_fault``, after which there are no more ticks.
    """

    def __init__(
        self,
        *,
        limits: LimitsConfig,
        clock: Clock,
        streams: StreamTable,
        telling: Telling,
        ingest: Ingest,
        on_fault: Callable[[ConnectionFault], None],
    ) -> None:
        self.network = NetworkEstimate()
        self._limits = limits
        self._clock = clock
        self._streams = streams
        self._telling = telling
        self._ingest = ingest
        self._on_fault = on_fault
        self._liveness: Liveness | None = None  # from ``welcome`` on
        self._timer: Timer | None = None
        shortest_s = min(
            limits.ping_interval_s,
            limits.pong_timeout_s,
            limits.ack_deadline_s,
            limits.assembly_timeout_s,
        )
        self._tick_s = shortest_s / _TICKS_PER_TIMEOUT

    def await_hello(self) -> None:
        """The connection is accepted."""
        deadline = self._clock.now() + self._limits.hello_timeout_s
        self._look_at(deadline, self._give_up_hello)

    def welcome(self) -> None:
        """``hello`` has come."""
        now = self._clock.now()
        self.stop()
        self.network = NetworkEstimate()
        self._ingest.client_clock.forget()
        self._liveness = Liveness(
            ping_interval_s=self._limits.ping_interval_s,
            pong_timeout_s=self._limits.pong_timeout_s,
            now=now,
        )
        self._look_at(now + self._tick_s, self._tick)

    def receive_pong(self, pong: ClientPong) -> None:
        now = self._clock.now()
        sent_at = None if self._liveness is None else self._liveness.receive_pong(pong.t)
        if sent_at is None:
            return
        self.network.note_ping(now - sent_at)
        if pong.now_us is not UNSET:
            self._ingest.client_clock.note(pong.now_us, sent_at=sent_at, answered_at=now)

    def stop(self) -> None:
        """No more time-outs; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float, look: Callable[[], None], num_put_off: int = 0) -> None:
        again = partial(self._look_unless_late, when, look, num_put_off)
        self._timer = self._clock.call_at(when, again)

    def _look_unless_late(self, when: float, look: Callable[[], None], num_put_off: int) -> None:
        """If the process slept, or hung, until after ``when``, what the client has sent meanwhile
        is still to be read, since timers come before sockets, or on its way: the look is put off,
        for as long as it is late within bounds."""
        now = self._clock.now()
        late_s = now - when
        if late_s > _LATE_S and num_put_off < _MAX_PUT_OFFS:
            pause_s = max(_PUT_OFF_S, min(late_s, self._tick_s))
            self._look_at(now + pause_s, look, num_put_off + 1)
        else:
            look()

    def _give_up_hello(self) -> None:
        detail = f"no hello within {self._limits.hello_timeout_s:g} s"
        self._on_fault(ConnectionFault(CloseCode.HELLO_TIMEOUT, ProblemKind.TIMEOUT, detail))

    def _tick(self) -> None:
        now = self._clock.now()
        try:
            self._check_pong(now)
            stalls_at = self._check_acks(now)
            self._ingest.expire(now)
        except ConnectionFault as fault:
            self._on_fault(fault)
        else:
            self._look_at(min(now + self._tick_s, stalls_at), self._tick)

    def _check_pong(self, now: float) -> None:
        assert self._liveness is not None
        if self._liveness.is_dead(now):
            detail = f"no pong within {self._limits.pong_timeout_s:g} s"
            raise ConnectionFault(CloseCode.NO_PONG, ProblemKind.TIMEOUT, detail)
        ping = self._liveness.next_ping(now)
        if ping is not None:
            self._telling.tell(Ping(t=ping))

    def _check_acks(self, now: float) -> float:
        """Returns when the next stream will count as stalled, unless something is acknowledged."""
        next_at = float("inf")
        for stream in self._streams:
            stalls_at = stream.acks.stalls_at
            if stalls_at is None:
                continue
            if now >= stalls_at:
                detail = f"stream {stream.id}: no ack within {self._limits.ack_deadline_s:g} s"
                raise ConnectionFault(CloseCode.SLOW_READER, ProblemKind.SLOW_READER, detail)
            next_at = min(next_at, stalls_at)
        return next_at
