"""Proof that a client may go on with a session: tokens that are used once."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from dataclasses import dataclass
from typing import Protocol

from gateway.session.attachment import Attachment
from gateway.wire.messages import ResumeRequest

TOKEN_BYTES = 24
_TOKEN = re.compile(r"([0-9a-f]{8})\.[\w-]{1,64}", re.ASCII)

logger = logging.getLogger(__name__)


class Resumable(Protocol):
    """What is asked of a session that can be resumed."""

    @property
    def id(self) -> str: ...

    @property
    def principal(self) -> str | None: ...

    def take_over(self, attachment: Attachment, request: ResumeRequest) -> None:
        """Go on on that connection, whether or not there is an older one."""


@dataclass(slots=True)
class _Issued:
    """``previous`` is the token that was used last, until the client has shown that it has
    ``token``: the ``welcome`` that brought it may have been lost with its connection."""

    session: Resumable
    token: str
    previous: str | None = None


class ResumeTokens:
    """The valid tokens of every session that can be resumed.

    A token names its ``node``, one gateway process, which is all that may be read from it. It is
    good once, for the principal it was issued to. Why a token is refused is told to nobody.
    """

    def __init__(self) -> None:
        self.node = secrets.token_hex(4)
        self._issued: dict[str, _Issued] = {}  # by the session's id

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, session: Resumable, *, used: str | None = None) -> str:
        """A new token; the older ones are void, but ``used`` not before ``confirm``."""
        token = f"{self.node}.{secrets.token_urlsafe(TOKEN_BYTES)}"
        self._issued[session.id] = _Issued(session, token, used)
        return token

    def confirm(self, session_id: str) -> None:
        """The client has its newest token: the one before is void."""
        issued = self._issued.get(session_id)
        if issued is not None:
            issued.previous = None

    def claim(self, request: ResumeRequest, principal: str) -> Resumable | None:
        """The session, if the token is its own and the principal's; ``issue`` then voids it."""
        self._note_stranger(request.token)
        issued = self._issued.get(request.session)
        if issued is None or issued.session.principal != principal:
            return None
        valid = (issued.token,) if issued.previous is None else (issued.token, issued.previous)
        given = request.token.encode(errors="replace")
        is_valid = any(hmac.compare_digest(given, token.encode()) for token in valid)
        return issued.session if is_valid else None

    def forget(self, session_id: str) -> None:
        """The session cannot be resumed any more; idempotent."""
        self._issued.pop(session_id, None)

    def _note_stranger(self, token: str) -> None:
        """Without the token: a log is no place for it, even if it is worth nothing here."""
        match = _TOKEN.fullmatch(token)
        if match is not None and match[1] != self.node:
            logger.info("a session of node %s was asked for at node %s", match[1], self.node)
