from __future__ import annotations

import pytest

from gateway.stream.leaky_bucket import LeakyBucket
from gateway.stream.release_unpaced import Unpaced

pytestmark = pytest.mark.unit


def test_text_leaves_at_once_one_by_one_while_the_burst_lasts() -> None:
    unpaced = Unpaced(LeakyBucket(45, 3))
    for text in "abc":
        unpaced.push(text, 1.0)
        assert unpaced.next_send_time(1.0) == 1.0
        departure = unpaced.take(1.0)
        assert (departure.text, departure.pace_s, departure.lag_s) == (text, None, 0.0)


def test_what_comes_faster_leaves_together_one_interval_later() -> None:
    unpaced = Unpaced(LeakyBucket(45, 1))
    unpaced.push("a", 1.0)
    unpaced.take(1.0)
    for text in "bcd":
        unpaced.push(text, 1.001)
    at = unpaced.next_send_time(1.001)
    assert at == pytest.approx(1.0 + 1 / 45)
    departure = unpaced.take(at)
    assert (departure.text, departure.num_texts) == ("bcd", 3)
    assert unpaced.next_send_time(at) is None


def test_the_last_text_waits_for_nothing() -> None:
    unpaced = Unpaced(LeakyBucket(45, 1))
    unpaced.push("a", 1.0)
    unpaced.take(1.0)
    unpaced.push("b", 1.0)
    unpaced.finish(1.0)
    assert unpaced.next_send_time(1.0) == 1.0


def test_a_bucket_lets_its_rate_through_in_the_long_run() -> None:
    bucket = LeakyBucket(45, 80)
    now = 0.0
    for _ in range(80 + 450):
        now = max(now, bucket.next_time())
        bucket.add(now)
    assert now == pytest.approx(10.0, abs=0.05)
    with pytest.raises(ValueError, match="burst"):
        LeakyBucket(45, 0)
