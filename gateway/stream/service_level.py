"""How much of its service a gateway gives up under pressure, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

UP_AFTER_S = 1.0  # so long above the limit, for each step
RELIEVES_AFTER_S = 3.0  # instead, where a level first has to take effect
DOWN_AFTER_S = 5.0  # so long well below it, for each step
LEAVE_LOAD = 0.7  # well below


class Level(IntEnum):
    """What is given up; each level includes those before it."""

    NORMAL = 0
    NO_EXTRAS = 1  # no annotated frames, no timing per hop
    LESS_INPUT = 2  # cameras are asked for fewer and smaller frames
    CHEAPER_MODEL = 3  # engines may use a cheaper variant
    SHED_BACKGROUND = 4  # nothing new of class ``background``
    SHED_STANDARD = 5  # nothing new but ``realtime``

    @property
    def up_after_s(self) -> float:
        """How long the load must stay too high at this level before the next one."""
        return RELIEVES_AFTER_S if self in _RELIEVING else UP_AFTER_S

    @property
    def label(self) -> str:
        """The name on the wire and in metrics."""
        return self.name.lower()


# They change what work costs, which shows only after cameras have heard of it, or steps have run
# with other weights.
_RELIEVING = frozenset({Level.LESS_INPUT, Level.CHEAPER_MODEL})
_URGENT = ("realtime", "outbox", "loop")
_ALL = (*_URGENT, "standard", "prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Each is used ÷ allowed: 1 is the limit.

    ``realtime`` and ``standard``: how long items of that class waited for their answer ÷ their
    deadline, of the worst model; ``prompts``: wait of prompts for their start, or the promised
    rate of an answer ÷ its rate; ``outbox``: bytes that wait for readers; ``loop``: mean delay of
    the event loop's timers. What ``background`` waits is no pressure.
    """

    realtime: float = 0.0
    standard: float = 0.0
    prompts: float = 0.0
    outbox: float = 0.0
    loop: float = 0.0

    def load(self, level: Level) -> float:
        """The load that calls for this level. A class is shed for the sake of others: however
        long ``standard`` waits, that alone does not shed it."""
        return max(float(getattr(self, name)) for name in _names(level))

    def cause(self, level: Level) -> str:
        """The name of the signal that is nearest to its limit, or furthest beyond."""
        return max(_names(level), key=lambda name: float(getattr(self, name)))


def _names(level: Level) -> tuple[str, ...]:
    return _URGENT if level >= Level.SHED_STANDARD else _ALL


class ServiceLevel:
    """Decides the level from the signals: up one step after the level's ``up_after_s`` at or above
    1, down one step for each ``DOWN_AFTER_S`` at or below ``LEAVE_LOAD``; in between it stays.

    ``update`` is to be called several times a second; ``now`` never falls.
    """

    def __init__(self, now: float) -> None:
        self.level = Level.NORMAL
        self.seconds = dict.fromkeys(Level, 0.0)  # spent at each level, until the last update
        self._updated_at = now
        self._side = 0
        self._since = now  # the load is on this side of its limits, or the level has changed

    def update(self, signals: Signals, now: float) -> Level:
        """The level from ``now`` on."""
        self.seconds[self.level] += now - self._updated_at
        self._updated_at = now
        above, below = min(self.level + 1, max(Level)), max(self.level - 1, min(Level))
        side = self._side_of(signals, Level(above))
        if side != self._side:
            self._side, self._since = side, now
        lasts_s = now - self._since
        if side > 0 and lasts_s >= self.level.up_after_s:
            self._move(Level(above), now)
        elif side < 0 and lasts_s >= DOWN_AFTER_S:
            self._move(Level(below), now)
        return self.level

    def _side_of(self, signals: Signals, above: Level) -> int:
        """1: too much; -1: well below; 0: in between."""
        if signals.load(above) >= 1.0:
            return 1
        return -1 if signals.load(self.level) <= LEAVE_LOAD else 0

    def _move(self, level: Level, now: float) -> None:
        self.level, self._since = level, now
