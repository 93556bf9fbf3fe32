"""What the session knows when a message arrives."""

from __future__ import annotations

import msgspec


class Moment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a message has to know of the session when it arrives."""

    now: float
    is_draining: bool
    tenant: str
