"""Who waits for a client, and who has to go."""

from __future__ import annotations

import pytest

from gateway.session.detached import DetachedSessions

pytestmark = pytest.mark.unit


class Waiter:
    """A session that notes why it was closed."""

    def __init__(self, name: str, waiting: DetachedSessions) -> None:
        self.id = name
        self.closed = ""
        self._waiting = waiting

    def close(self, reason: str) -> None:
        self.closed = reason
        self._waiting.remove(self.id)


def waiters(waiting: DetachedSessions, *sizes: int) -> list[Waiter]:
    sessions = [Waiter(f"s{number}", waiting) for number in range(len(sizes))]
    for session, size_bytes in zip(sessions, sizes, strict=True):
        waiting.add(session, size_bytes)
        waiting.enforce()
        waiting.check_integrity()
    return sessions


def test_over_the_number_the_oldest_is_given_up() -> None:
    waiting = DetachedSessions(max_sessions=2, max_bytes=100)
    sessions = waiters(waiting, 1, 1, 1)
    assert [bool(session.closed) for session in sessions] == [True, False, False]
    assert waiting.statistics().given_up == 1


def test_over_the_bytes_the_oldest_are_given_up() -> None:
    waiting = DetachedSessions(max_sessions=9, max_bytes=100)
    sessions = waiters(waiting, 40, 40, 90)
    assert [bool(session.closed) for session in sessions] == [True, True, False]
    assert waiting.statistics().size_bytes == 90


def test_one_that_grows_counts() -> None:
    waiting = DetachedSessions(max_bytes=100)
    first, second = waiters(waiting, 40, 40)
    waiting.grow(second.id, 30)
    waiting.grow("unknown", 1000)
    assert waiting.is_over
    waiting.enforce()
    assert (bool(first.closed), bool(second.closed)) == (True, False)
    waiting.check_integrity()


def test_each_way_out_is_counted_once() -> None:
    waiting = DetachedSessions()
    back, late, ended = waiters(waiting, 1, 2, 3)
    waiting.resume(back.id)
    waiting.expire(late)
    waiting.end_all()
    now = waiting.statistics()
    assert (now.resumed, now.expired, now.given_up) == (1, 1, 1)
    assert (now.detached, now.size_bytes) == (0, 0)
    assert (back.closed, late.closed, ended.closed) == ("", "nobody came back", "restarting")
    assert not waiting.is_open
