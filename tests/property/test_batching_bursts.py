"""Ten minutes of bursts with deadlines, in virtual time, each minute with bursts of its own."""

from __future__ import annotations

import pytest

from loadtest.batching import scenarios
from loadtest.batching.virtual import WINDOW_S

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("minute", range(10))
def test_no_worker_is_idle_while_work_waits_for_longer_than_a_window(minute: int) -> None:
    longest_s = scenarios.longest_idle_wait_s(seconds=60.0, seed=100 * minute)
    assert longest_s <= WINDOW_S + scenarios.IdleWatch.STEP_S
