"""Buckets of tokens that all streams of one key share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.stream.rate_ceiling import RateCeiling

MAX_TENANTS = 1024  # without a stream; who stops and comes back finds the bucket as it was


@dataclass(slots=True)
class _Tenant:
    ceiling: RateCeiling
    num_streams: int = 0


class TenantCeilings:
    """One ``RateCeiling`` per tenant, made by ``make``; ``join`` and ``leave`` go in pairs.

    All with running answers are kept (those are bounded elsewhere), of the others the newest
    ``MAX_TENANTS``.
    """

    def __init__(self, make: Callable[[], RateCeiling]) -> None:
        self._make = make
        self._tenants: dict[str, _Tenant] = {}
        self._idle: dict[str, _Tenant] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._tenants) + len(self._idle)

    def join(self, name: str) -> RateCeiling:
        """One more answer runs for this tenant."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._idle.pop(name) if name in self._idle else _Tenant(self._make())
            self._tenants[name] = tenant
        tenant.num_streams += 1
        tenant.ceiling.num_sharing = tenant.num_streams
        return tenant.ceiling

    def leave(self, name: str) -> None:
        tenant = self._tenants[name]
        tenant.num_streams -= 1
        tenant.ceiling.num_sharing = max(1, tenant.num_streams)
        if tenant.num_streams == 0:
            self._idle[name] = self._tenants.pop(name)
            if len(self._idle) > MAX_TENANTS:
                del self._idle[next(iter(self._idle))]
