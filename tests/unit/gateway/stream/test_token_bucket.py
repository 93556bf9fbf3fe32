from __future__ import annotations

import pytest

from gateway.stream.token_bucket import TokenBucket

pytestmark = pytest.mark.unit


def test_a_burst_passes_up_to_the_capacity() -> None:
    bucket = TokenBucket(10.0, 3)
    assert [bucket.try_take(0.0) for _ in range(4)] == [True, True, True, False]


def test_tokens_come_back_at_the_rate() -> None:
    bucket = TokenBucket(10.0, 1)
    taken = sum(bucket.try_take(step * 0.01) for step in range(1000))
    assert taken == pytest.approx(100, abs=1)


def test_tokens_do_not_pile_up_beyond_the_capacity() -> None:
    bucket = TokenBucket(10.0, 2)
    assert bucket.try_take(0.0)
    assert [bucket.try_take(1000.0) for _ in range(3)] == [True, True, False]


def test_an_earlier_time_adds_nothing() -> None:
    bucket = TokenBucket(10.0, 1)
    assert bucket.try_take(5.0)
    assert not bucket.try_take(4.0)
    assert not bucket.try_take(5.05)
    assert bucket.try_take(5.1)


@pytest.mark.parametrize(("rate_hz", "capacity"), [(0.0, 1), (-1.0, 1), (1.0, 0.5)])
def test_a_bucket_that_never_fills_makes_no_sense(rate_hz: float, capacity: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        TokenBucket(rate_hz, capacity)
