"""When a reader has had its time, from what its kernel has acknowledged."""

from __future__ import annotations

import pytest

from gateway.net.network_sampler import ROUND_S
from gateway.net.send_backlog import LONGEST_S, SendBacklog
from gateway.stream.network_estimate import PathSample

pytestmark = pytest.mark.unit

TIMEOUT_S = 10.0


class Rig:
    """Looks once a round."""

    def __init__(self) -> None:
        self.backlog = SendBacklog(TIMEOUT_S)
        self.now = 100.0

    def look(self, acked: int, held: int, after_s: float = ROUND_S) -> bool:
        self.now += after_s
        sample = PathSample(
            rtt_s=0.01,
            rttvar_s=0.0,
            num_segments=0,
            num_retransmitted=0,
            num_bytes_acked=acked,
            num_bytes_held=held,
        )
        return self.backlog.is_overdue(sample, self.now)

    def seconds_until_overdue(self, acked: int, held: int) -> float:
        began = self.now
        while not self.look(acked, held):
            assert self.now < began + 100, "never"
        return self.now - began


def test_bytes_that_nobody_acknowledges_are_overdue_at_the_time_out_and_a_look_or_two() -> None:
    took_s = Rig().seconds_until_overdue(acked=1_000, held=1)
    assert TIMEOUT_S <= took_s <= TIMEOUT_S + 2 * ROUND_S


def test_a_reader_that_owes_nothing_is_never_overdue() -> None:
    rig = Rig()
    assert not any(rig.look(acked=1_000, held=0) for _ in range(100))


def test_a_reader_that_has_taken_what_was_held_at_the_last_look_has_its_time_again() -> None:
    rig = Rig()
    assert not any(rig.look(acked=500 * number, held=500) for number in range(100))
    assert rig.seconds_until_overdue(acked=49_999, held=500) >= TIMEOUT_S - ROUND_S


def test_a_trickle_is_no_excuse() -> None:
    rig = Rig()
    looks = [rig.look(acked=1_000 * number, held=60_000) for number in range(12)]
    assert looks.index(True) in (10, 11)


def test_a_handler_that_blocks_for_a_while_is_forgiven() -> None:
    rig = Rig()
    assert not any(rig.look(acked=1_000, held=50_000) for _ in range(9))
    assert not any(rig.look(acked=51_000 + number, held=50_000) for number in range(9))


def test_a_suspended_process_costs_the_reader_little_of_its_time() -> None:
    rig = Rig()
    rig.look(acked=1_000, held=500)
    assert not rig.look(acked=1_000, held=500, after_s=60.0)
    took_s = rig.seconds_until_overdue(acked=1_000, held=500)
    assert TIMEOUT_S - LONGEST_S - ROUND_S <= took_s <= TIMEOUT_S


@pytest.mark.parametrize("round_s", [0.5, 1.0, 3.0, 6.0])
def test_nobody_gets_away_because_there_are_many_to_look_at(round_s: float) -> None:
    rig = Rig()
    looks = [rig.look(acked=1_000, held=500, after_s=round_s) for _ in range(30)]
    took_s = looks.index(True) * round_s
    assert TIMEOUT_S - ROUND_S <= took_s <= max(TIMEOUT_S, TIMEOUT_S / LONGEST_S * round_s)
