from __future__ import annotations

import pytest

from engine.workers.supervisor import TRANSITIONS, Event, HostState

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("state", HostState)
def test_every_state_can_be_closed(state: HostState) -> None:
    assert TRANSITIONS[state, Event.CLOSE] is HostState.CLOSED


def test_nothing_leads_out_of_closed() -> None:
    assert {event for state, event in TRANSITIONS if state is HostState.CLOSED} == {Event.CLOSE}


def test_every_state_can_be_reached() -> None:
    assert set(TRANSITIONS.values()) | {HostState.NEW} == set(HostState)


def test_only_a_probe_closes_an_open_circuit() -> None:
    ways = {next_ for (state, _), next_ in TRANSITIONS.items() if state is HostState.OPEN}
    assert ways == {HostState.PROBING, HostState.CLOSED}
