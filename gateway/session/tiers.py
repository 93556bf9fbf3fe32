"""What class of service a client may ask for, and whether that class is served at the moment."""

from __future__ import annotations

from collections.abc import Callable

from engine.types import Priority
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.pressure import Pressure


def within_tier(asked: Priority, tier: Priority) -> Priority:
    """The class in which a client whose key reaches up to ``tier`` is served.

    ``standard`` is what a client gets that says nothing, so it means at most that.

    Raises:
        RequestProblem: FORBIDDEN, ``realtime`` is above the tier.
    """
    if asked.rank >= tier.rank:
        return asked
    if asked is Priority.STANDARD:
        return tier
    raise RequestProblem(ProblemKind.FORBIDDEN, f"priority: this key has {tier.value} at most")


def _everything(_: str) -> Priority:
    return Priority.REALTIME


class Tiers:
    """Answers for every client of the process; ``tier_of`` knows the keys."""

    def __init__(
        self, pressure: Pressure | None = None, tier_of: Callable[[str], Priority] = _everything
    ) -> None:
        self.pressure = Pressure() if pressure is None else pressure
        self._tier_of = tier_of

    def of(self, principal: str) -> Priority:
        """The highest class that the principal may ask for."""
        return self._tier_of(principal)

    def admit(self, principal: str, asked: Priority) -> Priority:
        """The class in which a new request is served.

        Raises:
            RequestProblem: FORBIDDEN, it is above the principal's tier; OVERLOADED, it is shed.
        """
        priority = within_tier(asked, self._tier_of(principal))
        self.pressure.check(priority)
        return priority
