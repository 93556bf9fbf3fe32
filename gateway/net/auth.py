"""Who may talk to the gateway: Host and Origin of the request, keys, one-time tickets.

Host and Origin keep web pages of others away (cross-site WebSocket hijacking, DNS rebinding);
keys and tickets tell callers apart. Nothing here logs or repeats what a caller presented.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.types import Priority
from gateway.config_sections import ServerConfig
from gateway.errors import ProblemKind, RequestProblem

ANONYMOUS = "anonymous"
TICKET_LIFETIME_S = 30.0
MAX_TICKETS = 4096
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class _Authority:
    """Host name without brackets, lower case, and port."""

    host: str
    port: int


class OriginPolicy:
    """Decides from ``Host`` and ``Origin`` whether a request may go on.

    The Host must be an address, a loopback name or a configured name: a page that rebinds its
    own name to our address arrives with that name. The Origin, when there is one, must be the
    gateway's own as named by that Host, or be listed exactly.
    """

    def __init__(
        self, *, host: str, hosts: Sequence[str] = (), origins: Sequence[str] = ()
    ) -> None:
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        named = [urlsplit(origin).hostname or "" for origin in self._origins]
        self._hosts = frozenset({"localhost", host.lower(), *map(str.lower, hosts), *named})

    def check(self, headers: Mapping[str, str], scheme: str) -> None:
        """Raise RequestProblem(FORBIDDEN) unless the request may go on."""
        authority = _parse_authority(headers.get("Host", ""), scheme)
        if authority is None or not self._is_known(authority.host):
            raise RequestProblem(
                ProblemKind.FORBIDDEN, "the Host is not one of this server (server.allowed_hosts)"
            )
        origin = headers.get("Origin")
        if origin is not None and not self._may_connect(origin, authority, scheme):
            raise RequestProblem(
                ProblemKind.FORBIDDEN, "the Origin is not allowed (server.allowed_origins)"
            )

    def _is_known(self, host: str) -> bool:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host in self._hosts
        return True

    def _may_connect(self, origin: str, authority: _Authority, scheme: str) -> bool:
        origin = origin.lower()
        if origin in self._origins:
            return True
        origin_scheme, separator, rest = origin.partition("://")
        return (
            separator != ""
            and origin_scheme == scheme
            and _parse_authority(rest, scheme) == authority
        )


def _parse_authority(text: str, scheme: str) -> _Authority | None:
    """``name``, ``name:port``, ``1.2.3.4:port`` or ``[::1]:port``; None for anything else."""
    if not text or any(character in text for character in "/\\@?#, \t"):
        return None
    try:
        parts = urlsplit(f"//{text}")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return _Authority(parts.hostname, _DEFAULT_PORTS[scheme] if port is None else port)


class Keyring:
    """The configured API keys. Comparison takes the same time wherever a key differs.

    Without keys everybody is ``anonymous``: the configuration allows that on loopback only.
    ``tiers`` has more keys, by the highest class of service that each may ask for; ``admins`` are
    keys of operators, who may ask for everything.
    """

    def __init__(
        self,
        keys: Sequence[str],
        *,
        tiers: Mapping[Priority, Sequence[str]] | None = None,
        admins: Sequence[str] = (),
    ) -> None:
        limited = [(_digest(key), tier) for tier, of in (tiers or {}).items() for key in of]
        operators = [_digest(key) for key in admins]
        self._digests = (*map(_digest, keys), *(digest for digest, _ in limited), *operators)
        self._tiers = {_principal(digest): tier for digest, tier in limited}
        self._admins = frozenset(map(_principal, operators))

    @property
    def is_required(self) -> bool:
        return bool(self._digests)

    def identify(self, token: str) -> str | None:
        """The principal behind ``token``, or None when it is no key of ours."""
        if not self._digests:
            return ANONYMOUS
        if not token:
            return None
        presented = _digest(token)
        # Every key is compared, so that the time does not tell which one came close.
        matches = [hmac.compare_digest(presented, digest) for digest in self._digests]
        return _principal(presented) if any(matches) else None

    def tier_of(self, principal: str) -> Priority:
        """The highest class of service that the principal may ask for."""
        return self._tiers.get(principal, Priority.REALTIME)

    def is_admin(self, principal: str) -> bool:
        """Whether the principal has one of the operators' keys."""
        return principal in self._admins

    def identify_headers(self, headers: Mapping[str, str]) -> str | None:
        """The principal named by ``Authorization`` or ``X-API-Key``; None without either.

        Raises:
            RequestProblem: a key was presented that is not ours.
        """
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else headers.get("X-API-Key", "")
        if not self._digests:
            return ANONYMOUS
        if not token:
            return None
        principal = self.identify(token)
        if principal is None:
            raise RequestProblem(ProblemKind.UNAUTHORIZED, "the key is not valid")
        return principal


class TicketBox:
    """One-time tickets for callers that cannot set headers, such as a browser's WebSocket.

    A ticket lives 30 s and opens one connection. At most 4096 are out; beyond that, ``issue``
    refuses until one is used or expires.
    """

    def __init__(
        self, *, lifetime_s: float = TICKET_LIFETIME_S, capacity: int = MAX_TICKETS
    ) -> None:
        self.lifetime_s = lifetime_s
        self._capacity = capacity
        self._tickets: dict[str, tuple[float, str]] = {}  # oldest first: all live equally long

    def issue(self, principal: str, now: float) -> str:
        """A new ticket for ``principal``."""
        self._forget_expired(now)
        if len(self._tickets) >= self._capacity:
            raise RequestProblem(
                ProblemKind.OVERLOADED, "too many unused tickets", retry_after_ms=1000
            )
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = (now + self.lifetime_s, principal)
        return ticket

    def redeem(self, ticket: str, now: float) -> str:
        """The principal that got ``ticket``, which is worthless from now on.

        Raises:
            RequestProblem: unknown, used or expired.
        """
        expires_at, principal = self._tickets.pop(ticket, (float("-inf"), ""))
        if expires_at <= now:
            raise RequestProblem(ProblemKind.UNAUTHORIZED, "the ticket is not valid any more")
        return principal

    def _forget_expired(self, now: float) -> None:
        while self._tickets:
            oldest = next(iter(self._tickets))
            if self._tickets[oldest][0] > now:
                return
            del self._tickets[oldest]


def _principal(digest: bytes) -> str:
    return f"key-{digest.hex()[:8]}"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def keyring_of(server: ServerConfig) -> Keyring:
    """As it is configured."""
    tiers = {Priority.STANDARD: server.standard_keys, Priority.BACKGROUND: server.background_keys}
    return Keyring(server.api_keys, tiers=tiers, admins=server.admin_keys)


def origin_policy_of(server: ServerConfig) -> OriginPolicy:
    """As it is configured."""
    return OriginPolicy(
        host=server.host, hosts=server.allowed_hosts, origins=server.allowed_origins
    )
