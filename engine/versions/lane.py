"""A caller's lane, whichever version serves it at the moment."""

from __future__ import annotations

import asyncio
from typing import Protocol

from engine.errors import Unavailable
from engine.types import Emit, Item, LaneSpec, Outcome, Progress
from engine.versions.track import Track


class Router(Protocol):
    """Says where a lane's next item goes."""

    def route(self, spec: LaneSpec) -> Track:
        """Raises ``Unavailable`` when nothing serves it now."""

    def forget(self, lane: RoutedLane) -> None:
        """The lane is closed."""


class RoutedLane:
    """Implements :class:`engine.base.Lane` over the tracks of one model.

    New items go to the track that the router names; what an earlier track still holds is answered
    there. So a switch of versions costs no item.
    """

    def __init__(self, router: Router, spec: LaneSpec, emit: Emit) -> None:
        self._router = router
        self._spec = spec
        self._emit = emit
        self._leg: _Leg | None = None
        self._former: list[_Leg] = []  # of tracks that drain: a few at most
        self._is_closed = False

    def offer(self, item: Item) -> None:
        if self._is_closed:
            raise Unavailable("the lane is closed")
        track = self._router.route(self._spec)
        if self._leg is None or self._leg.track is not track:
            self._move_to(track)
        assert self._leg is not None
        self._leg.offer(item)

    def cancel(self, item_id: int) -> None:
        for leg in [*self._former, *([self._leg] if self._leg is not None else [])]:
            leg.lane.cancel(item_id)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        legs, self._former = self._former, []
        if self._leg is not None:
            legs.append(self._leg)
            self._leg = None
        for leg in legs:
            leg.lane.close()
        self._router.forget(self)

    def leave(self, track: Track) -> None:
        """The track ends: hold on to it only for what it still owes."""
        if self._leg is not None and self._leg.track is track:
            self._part_from(self._leg)
            self._leg = None

    def _move_to(self, track: Track) -> None:
        leg = _Leg(track, self._spec, self._emit, self._note_empty)
        if self._leg is not None:
            self._part_from(self._leg)
        self._leg = leg

    def _part_from(self, leg: _Leg) -> None:
        if leg.unanswered:
            self._former.append(leg)
        else:
            leg.lane.close()

    def _note_empty(self, leg: _Leg) -> None:
        if leg in self._former:
            self._former.remove(leg)
            leg.lane.close()


class _EmptyListener(Protocol):
    def __call__(self, leg: _Leg, /) -> None: ...


class _Leg:
    """The part of a lane that lies in one track."""

    __slots__ = ("_emit", "_on_empty", "lane", "track", "unanswered")

    def __init__(self, track: Track, spec: LaneSpec, emit: Emit, on_empty: _EmptyListener) -> None:
        self.track = track
        self.unanswered = 0
        self._emit = emit
        self._on_empty = on_empty
        self.lane = track.batcher.open_lane(spec, self._tell)

    def offer(self, item: Item) -> None:
        self.unanswered += 1
        try:
            self.lane.offer(item)
        except BaseException:
            self.unanswered -= 1
            raise

    def _tell(self, item_id: int, outcome: Progress | Outcome) -> None:
        if not isinstance(outcome, Progress):
            self.unanswered -= 1
            self.track.figures.observe(outcome, asyncio.get_running_loop().time())
        self._emit(item_id, outcome)
        if self.unanswered == 0:
            self._on_empty(self)
