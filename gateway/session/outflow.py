"""One answer's text on its way from the engine to its reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.base import Lane, TextLane
from gateway.session.clock import EARLY_S, Clock, Timer
from gateway.session.delivery_totals import DeliveryTimer
from gateway.session.release_table import REFRESH_S, TOLD_EVERY_S, ReleaseTable
from gateway.stream.release import Decider, Departure
from gateway.wire.messages import TokenTiming

_NEVER = float("-inf")


class Receiver(Protocol):
    """Who gets the texts of one answer, and may ``drop`` its outflow meanwhile.

    An object, not callbacks: a partial is three more things that are in no cache when a token
    leaves.
    """

    def has_room(self) -> bool:
        """Whether it takes any more; while it does not, texts are held, until ``resume``."""

    def receive(self, departure: Departure) -> None:
        """The next text."""

    def on_drained(self) -> None:
        """Everything has left, after ``finish``."""


class Outflow:
    """Lets texts leave when its ``Decider`` says so; on the loop's thread, and it never waits.

    How much is held is for the caller to bound. ``on_over`` is called once, when nothing more is
    going to leave.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_clock",
        "_decider",
        "_delivery",
        "_departed_at",
        "_is_blocked",
        "_is_finished",
        "_is_over",
        "_lane",
        "_now",
        "_on_over",
        "_receiver",
        "_reserve",
        "_table",
        "_timer",
        "_told_at",
        "item_id",
    )

    def __init__(
        self,
        decider: Decider,
        clock: Clock,
        table: ReleaseTable,
        timer: DeliveryTimer,
        receiver: Receiver,
        *,
        lane: Lane,
        item_id: int,
        on_over: Callable[[], None],
    ) -> None:
        self.item_id = item_id
        self._decider = decider
        self._reserve = decider.reserve
        self._clock = clock
        self._now = clock.now
        self._table = table
        self._delivery = timer
        self._lane = lane if isinstance(lane, TextLane) else None  # a check of 9 us: once
        self._receiver = receiver
        self._on_over = on_over
        self._timer: Timer | None = None
        self._departed_at = 0.0  # the newest departure
        self._told_at = _NEVER  # when the engine heard of the reader
        self._is_blocked = False
        self._is_finished = False
        self._is_over = False
        if self._lane is not None:
            table.add(self)

    @property
    def num_chars(self) -> int:
        """Characters that are held."""
        return self._reserve.num_chars

    def timing(self, departure: Departure) -> TokenTiming:
        """Where the time of the newest departure went."""
        return TokenTiming(
            engine_us=round((self._departed_at - departure.lag_s) * 1e6),
            held_us=round(departure.lag_s * 1e6),
            reserve=len(self._reserve),
        )

    def refresh_release(self, now: float) -> None:
        """Tell the engine how far the reader is, and how fast, unless it was told lately."""
        if now - self._told_at >= REFRESH_S / 2:
            self._tell_release(now)

    def push(self, text: str) -> int:
        """A token came from the engine; returns how many characters are held now."""
        if not self._is_over:
            self._decider.push(text, self._now())
            if self._timer is None and not self._is_blocked:
                self._advance()
        return self._reserve.num_chars

    def finish(self) -> None:
        """The engine has said everything: ``on_drained`` follows the last text, perhaps now."""
        self._is_finished = True
        self._decider.finish(self._now())
        if not self._is_blocked:
            self._stop_timer()  # the decider may be in more of a hurry now
            self._advance()

    def flush(self) -> None:
        """Everything that is held leaves now, whatever the pace and the room."""
        self._stop_timer()
        while self._reserve and not self._is_over:
            self._depart(self._now())
        self._is_blocked = False
        self._advance()

    def resume(self) -> None:
        """There is room again."""
        if self._is_blocked:
            self._is_blocked = False
            self._told_at = _NEVER  # it was told of a reader that takes nothing
            self._advance()

    def drop(self) -> None:
        """Nothing more leaves, and nothing more is told; idempotent."""
        if self._is_over:
            return
        self._is_over = True
        self._stop_timer()
        self._table.remove(self)
        self._delivery.end()
        self._on_over()

    def _advance(self) -> None:
        self._timer = None
        now, decider = self._now(), self._decider
        while not self._is_over:
            send_at = decider.next_send_time(now)
            if send_at is None:
                break
            if send_at > now + EARLY_S:
                self._timer = self._clock.call_at(send_at, self._advance)
                return
            if not self._receiver.has_room():
                self._is_blocked = True
                self._tell_release(now)
                return
            self._depart(now)
        if self._is_finished and not self._is_over:
            self.drop()
            self._receiver.on_drained()

    def _depart(self, now: float) -> None:
        self._departed_at = now
        departure = self._decider.take(now)
        self._delivery.depart(departure)
        if now - self._told_at >= TOLD_EVERY_S:
            self._tell_release(now)
        self._receiver.receive(departure)

    def _tell_release(self, now: float) -> None:
        self._told_at = now
        if self._lane is not None:
            rate = 0.0 if self._is_blocked else self._decider.tokens_per_s
            self._lane.note_release(self.item_id, self._reserve.num_released, rate)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
