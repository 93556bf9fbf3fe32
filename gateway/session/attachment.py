"""A connection's hold on the session that it serves at the moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.errors import CloseCode, ConnectionFault, ProblemKind
from gateway.stream.entries import Outgoing
from gateway.stream.network_estimate import PathSample
from gateway.stream.network_state import NetworkState
from gateway.stream.outbox import Outbox, ignore_popped


class HeldSession(Protocol):
    """What a connection may ask of a session; ``gateway.session.session`` says what it does."""

    def receive_text(self, data: bytes) -> None: ...

    def receive_binary(self, data: bytes) -> None: ...

    @property
    def handle_sent(self) -> Callable[[Outgoing], None]: ...

    def note_path(self, sample: PathSample) -> None: ...

    @property
    def network(self) -> NetworkState: ...

    def drain(self, deadline_ms: int) -> None: ...

    def give_up(self) -> None: ...

    @property
    def is_idle(self) -> bool: ...

    def close(self, reason: str) -> None: ...

    def lose(self, reason: str) -> None: ...


class Attachment:
    """Passes a connection's calls on, to the new session or to the one that is resumed.

    Once it is let go, or fenced because another connection has taken the session over, its calls
    do nothing: whatever a dying connection still does, it cannot harm a session that lives on.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = ("_is_failed", "_on_fault", "_session", "handle_sent", "outbox")

    def __init__(self, outbox: Outbox, on_fault: Callable[[ConnectionFault], None]) -> None:
        self.outbox = outbox
        self._on_fault = on_fault
        self._is_failed = False
        self._session: HeldSession | None = None
        # The session's own: to pass it on would take two more calls, once per token.
        self.handle_sent: Callable[[Outgoing], None] = ignore_popped

    # --- for the session

    def hold(self, session: HeldSession) -> None:
        """From here on this is the connection's session."""
        self._session = session
        self.handle_sent = session.handle_sent

    def fail(self, fault: ConnectionFault) -> None:
        """End the connection, once."""
        if self._session is not None and not self._is_failed:
            self._is_failed = True
            self._on_fault(fault)

    def fence(self) -> None:
        """Another connection serves the session now: this one ends."""
        detail = "the session goes on on another connection"
        self.fail(ConnectionFault(CloseCode.SUPERSEDED, ProblemKind.SUPERSEDED, detail))
        self._let_go()

    # --- for the connection

    def receive_text(self, data: bytes) -> None:
        """May raise ConnectionFault."""
        if self._session is not None:
            self._session.receive_text(data)

    def receive_binary(self, data: bytes) -> None:
        """May raise ConnectionFault."""
        if self._session is not None:
            self._session.receive_binary(data)

    def note_path(self, sample: PathSample) -> None:
        if self._session is not None:
            self._session.note_path(sample)

    @property
    def network(self) -> NetworkState:
        return NetworkState() if self._session is None else self._session.network

    def drain(self, deadline_ms: int) -> None:
        if self._session is not None:
            self._session.drain(deadline_ms)

    def give_up(self) -> None:
        if self._session is not None:
            self._session.give_up()

    @property
    def is_idle(self) -> bool:
        return self._session is None or self._session.is_idle

    def close(self, reason: str) -> None:
        """The connection ended for good; idempotent."""
        session = self._let_go()
        if session is not None:
            session.close(reason)

    def lose(self, reason: str) -> None:
        """The connection is lost, its client may come back; idempotent."""
        session = self._let_go()
        if session is not None:
            session.lose(reason)

    def _let_go(self) -> HeldSession | None:
        session, self._session = self._session, None
        self.handle_sent = ignore_popped
        return session
