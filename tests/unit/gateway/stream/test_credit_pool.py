from __future__ import annotations

import pytest

from engine.errors import Overloaded
from gateway.stream.credit import CreditWindow
from gateway.stream.credit_pool import START_PLACES, CreditPool, CreditPools

pytestmark = pytest.mark.unit


class Client:
    """Sends all that it may; everything is answered."""

    def __init__(self, pool: CreditPool) -> None:
        self.window = CreditWindow(32, 1000, pool.open(32))
        self.num_sent = 0
        self._may_send = self.window.grant.max_frames

    @property
    def num_promised(self) -> int:
        return self.window.grant.max_frames - self.num_sent

    def use_up(self) -> None:
        num_frames = self._may_send - self.num_sent
        for _ in range(num_frames):
            assert self.window.receive_frame(0.0)
        self.num_sent += num_frames
        for _ in range(num_frames):
            self.window.settle(1, 0)
            grant = self.window.next_announcement()
            if grant is not None:
                self._may_send = grant.max_frames


def test_one_stream_that_uses_its_credit_up_gets_its_whole_window() -> None:
    client = Client(CreditPool(1024))
    assert client.num_promised == START_PLACES
    for _ in range(40):
        client.use_up()
    assert client.window.window_frames == 32


def test_places_are_never_promised_twice() -> None:
    pool = CreditPool(1024)
    clients = [Client(pool) for _ in range(200)]
    for _ in range(40):
        for client in clients:
            client.use_up()
        assert sum(client.num_promised for client in clients) + pool.num_free == 1024
        assert pool.num_free > 0
    sizes = {client.window.window_frames for client in clients}
    assert max(sizes) - min(sizes) <= 1


def test_streams_that_send_nothing_leave_room_for_two_hundred() -> None:
    pool = CreditPool(1024)
    for _ in range(200):
        Client(pool)
    assert pool.num_free > 0


def test_who_has_much_gives_back_when_others_come() -> None:
    pool = CreditPool(128)
    first = Client(pool)
    for _ in range(40):
        first.use_up()
    assert first.window.window_frames == 32
    for _ in range(20):
        Client(pool)
    for _ in range(10):
        first.use_up()
    assert first.window.window_frames <= 16


def test_the_smallest_model_serves_one_stream_and_refuses_the_second() -> None:
    pool = CreditPool(1)
    share = pool.open(32)
    assert share.fair == 1
    with pytest.raises(Overloaded, match="all 1 places"):
        pool.open(32)
    share.close()
    share.close()
    share.resize(1)
    assert pool.num_free == 1


def test_models_have_pools_of_their_own() -> None:
    pools = CreditPools({"small": 1})
    pools.of("small").open(1)
    assert pools.of("small").num_free == 0
    assert pools.of("other").num_free > 1000


def receive(window: CreditWindow) -> None:
    window.receive_bytes(1)
    window.receive_frame(0.0)


def test_who_takes_all_it_is_given_is_told_a_quarter_of_a_window_at_a_time() -> None:
    window = CreditWindow(8, 10_000, CreditPool(64).open(8))
    told, num_sent, steps = window.grant.max_frames, 0, []
    for _ in range(100):
        while num_sent < told:
            num_sent += 1
            receive(window)
        window.settle(1, 1)
        grant = window.next_announcement()
        if grant is not None:
            steps.append(grant.max_frames - told)
            told = grant.max_frames
    assert window.window_frames == 8
    assert set(steps[20:]) == {2}


@pytest.mark.parametrize("most", range(1, 33))
def test_who_has_used_its_credit_up_is_told_of_more_with_the_last_receipt_at_the_latest(
    most: int,
) -> None:
    window = CreditWindow(most, 10_000, CreditPool(64).open(most))
    told = window.grant.max_frames
    for _ in range(50):
        while window.frames_in_flight < told - window._settled_frames:
            receive(window)
        while window.frames_in_flight:
            window.settle(1, 1)
            grant = window.next_announcement()
            told = told if grant is None else grant.max_frames
        assert told > window._settled_frames
