"""Everybody is looked at once a second, few at a time."""

from __future__ import annotations

import pytest

from gateway.net.network_sampler import MAX_PER_TICK, ROUND_S, TICK_S, NetworkSampler
from gateway.session.clock import Clock
from tests.fakes.virtual_loop import VirtualLoop

pytestmark = pytest.mark.unit


class Counted:
    def __init__(self) -> None:
        self.num_samples = 0

    def sample_network(self) -> None:
        self.num_samples += 1


class Sampling:
    def __init__(self, num_connections: int) -> None:
        self.connections = [Counted() for _ in range(num_connections)]
        self.loop = VirtualLoop()
        half = num_connections // 2
        groups = self.connections[:half], self.connections[half:]
        self.sampler = NetworkSampler(Clock(self.loop), *groups)
        self.sampler.start()

    @property
    def num_samples(self) -> int:
        return sum(connection.num_samples for connection in self.connections)

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.loop.advance(TICK_S)


@pytest.mark.parametrize("num_connections", [1, 7, 300])
def test_each_connection_is_looked_at_about_once_a_second(num_connections: int) -> None:
    sampling = Sampling(num_connections)
    sampling.advance(10 * ROUND_S)
    for connection in sampling.connections:
        assert 8 <= connection.num_samples <= 11  # the first of them at once


def test_a_few_connections_are_looked_at_in_one_tick() -> None:
    sampling = Sampling(8)
    for _ in range(20):
        before = sampling.num_samples
        sampling.advance(TICK_S)
        assert sampling.num_samples - before in (0, 8)


def test_a_tick_is_short_however_many_connections_there_are() -> None:
    sampling = Sampling(5_000)
    sampling.advance(TICK_S)
    assert sampling.num_samples == MAX_PER_TICK
    sampling.advance(5_000 / MAX_PER_TICK * TICK_S)
    assert min(connection.num_samples for connection in sampling.connections) >= 1


def test_a_connection_that_fails_keeps_nobody_else_from_being_looked_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise RuntimeError("broken connection")

    sampling = Sampling(8)
    sampling.connections[0].sample_network = fail  # type: ignore[method-assign]
    sampling.advance(3 * ROUND_S)
    assert min(connection.num_samples for connection in sampling.connections[1:]) >= 2
    assert "broken connection" in caplog.text


def test_nobody_is_looked_at_after_the_end() -> None:
    sampling = Sampling(10)
    sampling.sampler.stop()
    sampling.sampler.stop()
    sampling.advance(2 * ROUND_S)
    assert sampling.num_samples == 0
