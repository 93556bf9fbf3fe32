"""Fair share of computed tokens between tenants."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_MAX_REMEMBERED = 1024  # tenants without work that used more than their share just now


@dataclass(slots=True)
class _Tenant:
    virtual_time: float
    num_sequences: int = 0


class FairShare:
    """Start-time fair queueing (Goyal, Vin, Cheng 1996): a tenant's virtual time moves on by
    ``tokens / weight``, and the smallest goes first.

    A tenant that was idle joins at the present virtual time: it can neither save up turns nor
    get rid of what it used by coming back a moment later.
    """

    def __init__(self) -> None:
        self._active: dict[str, _Tenant] = {}
        self._idle: OrderedDict[str, float] = OrderedDict()
        self._floor = 0.0  # virtual time of the least served active tenant; never falls

    def join(self, name: str) -> None:
        """One more sequence of that tenant."""
        tenant = self._active.get(name)
        if tenant is None:
            self._raise_floor()
            used = self._idle.pop(name, 0.0)
            tenant = self._active[name] = _Tenant(max(used, self._floor))
        tenant.num_sequences += 1

    def leave(self, name: str) -> None:
        """One sequence less."""
        tenant = self._active[name]
        tenant.num_sequences -= 1
        if tenant.num_sequences > 0:
            return
        self._raise_floor()
        del self._active[name]
        self._idle[name] = tenant.virtual_time
        if len(self._idle) > _MAX_REMEMBERED:
            self._idle.popitem(last=False)

    def charge(self, name: str, num_tokens: int, weight: float) -> None:
        self._active[name].virtual_time += num_tokens / weight

    def virtual_time(self, name: str) -> float:
        return self._active[name].virtual_time

    def check_integrity(self, num_sequences: int) -> None:
        """Assert that the counts agree; for tests."""
        assert sum(tenant.num_sequences for tenant in self._active.values()) == num_sequences
        assert all(tenant.num_sequences > 0 for tenant in self._active.values())
        assert not self._active.keys() & self._idle.keys()

    def _raise_floor(self) -> None:
        """O(tenants), but only when one comes or goes."""
        times = [tenant.virtual_time for tenant in self._active.values()]
        self._floor = max(self._floor, min(times, default=0.0))
