"""Why a connection ends, and what its peer still gets to hear."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.errors import ConnectionFault

NO_CODE, ABNORMAL = 1005, 1006  # never on the wire


class Farewell(Enum):
    """What the peer still gets to hear."""

    CLOSE = "close"  # the fault, if there is one, and our close frame
    REPLY = "reply"  # the answer to its own close frame
    NONE = "none"  # nobody listens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a connection ends. ``fault`` is told to the peer first; None: nothing to complain."""

    code: int
    reason: str
    fault: ConnectionFault | None = None
    farewell: Farewell = Farewell.CLOSE

    @property
    def is_loss(self) -> bool:
        """Whether the client may come back for what it has left behind."""
        return self.code == ABNORMAL or 4000 <= self.code <= 4499

    def __str__(self) -> str:
        return f"code {int(self.code)}, {self.reason}"


LOST = Ending(code=ABNORMAL, reason="connection lost", farewell=Farewell.NONE)
