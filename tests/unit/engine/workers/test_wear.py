from __future__ import annotations

import pytest

from engine.workers.wear import Patience, Wear, WearLimits

pytestmark = pytest.mark.unit

LIMITS = WearLimits(max_memory_bytes=1000, max_age_s=60.0)


@pytest.mark.parametrize(
    ("age_s", "memory_bytes", "wear"),
    [
        (59.9, 999, None),
        (0.0, 1000, Wear.MEMORY),
        (60.0, 0, Wear.AGE),
        (60.0, 1000, Wear.MEMORY),  # the one that gets worse is named
    ],
)
def test_a_worker_is_worn_out_at_its_limits(
    age_s: float, memory_bytes: int, wear: Wear | None
) -> None:
    assert LIMITS.judge(age_s=age_s, memory_bytes=memory_bytes) is wear


def test_the_share_of_the_ceiling_is_told_before_it_is_reached() -> None:
    assert LIMITS.memory_share(800) == pytest.approx(0.8)


def test_without_limits_a_worker_never_wears_out() -> None:
    limits = WearLimits(max_memory_bytes=0, max_age_s=0.0)
    assert limits.judge(age_s=1e9, memory_bytes=1 << 40) is None
    assert limits.memory_share(1 << 40) == 0.0


def test_workers_that_wear_out_young_are_replaced_ever_less_often() -> None:
    patience = Patience()
    now, waits_s = 0.0, []
    for _ in range(8):
        assert patience.allows(now)
        patience.note_replaced(now, age_s=1.0)
        began = now
        while not patience.allows(now):
            now += 0.25
        waits_s.append(now - began)
    assert waits_s == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert patience.num_young == 8


def test_a_worker_that_served_for_long_is_replaced_without_a_wait() -> None:
    patience = Patience()
    patience.note_replaced(0.0, age_s=1.0)
    patience.note_replaced(1.0, age_s=3600.0)
    assert patience.num_young == 0
    assert patience.allows(1.0)
