"""Prompts that wait for a place at the upstream server: fair between tenants. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from engine.batching.cost import CostModel
from engine.batching.policy import BatchPolicy
from engine.lane import Entry
from engine.llm.messages import Submit
from engine.types import Item, LaneSpec, Policy, Priority

_BY_RANK = {priority.rank: priority for priority in Priority}


class _Flow(NamedTuple):
    """What shares one place in the order."""

    tenant: str
    rank: int
    weight: float


@dataclass(slots=True)
class _Line:
    lane_id: int
    flow: _Flow
    length: int = 0


class WaitingPrompts:
    """Holds at most ``capacity`` prompts, which the caller sees to. ``take`` picks by class with
    ageing, then between tenants by weight, then by age: the policy of batches, with batches of 1.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._policy = BatchPolicy(
            max_batch_size=1, window_s=0.0, max_queued=capacity, cost=CostModel()
        )
        self._lines: dict[_Flow, _Line] = {}
        self._lane_ids = itertools.count()
        self._waiting: dict[int, tuple[Submit, Entry, _Line]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, submit: Submit, now: float) -> None:
        line = self._line(_Flow(submit.tenant, submit.rank, submit.weight))
        entry = Entry(
            key=submit.key,
            lane_id=line.lane_id,
            item=Item(id=submit.key, payload=submit.payload),
            offered_at=now,
        )
        self._policy.offer(entry)
        self._waiting[submit.key] = submit, entry, line
        line.length += 1

    def take(self, now: float) -> Submit | None:
        """The next to be sent."""
        batch = self._policy.next_batch(now)
        return None if batch is None else self._forget(batch[0].key)

    def remove(self, key: int) -> bool:
        """Whether it was waiting."""
        if key not in self._waiting:
            return False
        self._policy.cancel(self._waiting[key][1])
        self._forget(key)
        return True

    def _line(self, flow: _Flow) -> _Line:
        line = self._lines.get(flow)
        if line is None:
            line = self._lines[flow] = _Line(next(self._lane_ids), flow)
            spec = LaneSpec(
                model="",
                policy=Policy.FIFO,
                capacity=self._capacity,
                weight=flow.weight,
                priority=_BY_RANK[flow.rank],
            )
            self._policy.add_lane(line.lane_id, spec)
        return line

    def _forget(self, key: int) -> Submit:
        submit, _, line = self._waiting.pop(key)
        line.length -= 1
        if line.length == 0:  # so that tenants who come and go leave nothing behind
            del self._lines[line.flow]
            self._policy.remove_lane(line.lane_id)
        return submit
