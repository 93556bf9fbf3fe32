from __future__ import annotations

import pytest

from engine.batching.flights import Flights

pytestmark = pytest.mark.unit


def depart(flights: Flights, *keys: int, run_s: float, now: float, is_idle: bool) -> None:
    flights.depart(keys, bucket=0, run_s=run_s, now=now, is_idle=is_idle)


def test_an_idle_worker_begins_at_once() -> None:
    assert Flights().wait_s(5.0, is_idle=True) == 0.0


def test_a_busy_worker_is_waited_for_until_its_batches_have_run() -> None:
    flights = Flights()
    depart(flights, 1, 2, run_s=0.030, now=1.0, is_idle=True)
    assert flights.wait_s(1.010, is_idle=False) == pytest.approx(0.020)
    depart(flights, 3, run_s=0.010, now=1.010, is_idle=False)
    assert flights.wait_s(1.010, is_idle=False) == pytest.approx(0.030)
    assert flights.wait_s(9.0, is_idle=False) == pytest.approx(0.010)  # overdue: any moment now


def test_of_two_workers_the_one_that_is_free_first_counts() -> None:
    flights = Flights()
    depart(flights, 1, run_s=0.050, now=1.0, is_idle=True)
    depart(flights, 2, run_s=0.020, now=1.0, is_idle=True)
    assert flights.wait_s(1.0, is_idle=False) == pytest.approx(0.020)
    depart(flights, 3, run_s=0.020, now=1.0, is_idle=False)
    assert flights.wait_s(1.0, is_idle=False) == pytest.approx(0.040)


def test_the_first_answer_shows_that_the_batch_has_run() -> None:
    flights = Flights()
    depart(flights, 1, 2, run_s=0.030, now=1.0, is_idle=True)
    depart(flights, 3, run_s=0.010, now=1.0, is_idle=False)
    landed = flights.land(1, 1.025)
    assert landed is not None
    assert landed.num_unanswered == 1
    assert flights.wait_s(1.025, is_idle=False) == pytest.approx(0.010)
    assert landed is flights.land(2, 1.026)
    assert landed.answer_by == pytest.approx(1.030)
    follower = flights.land(3, 1.036)
    assert follower is not None
    assert follower.answer_by == pytest.approx(1.040)
    assert len(flights) == 0
    assert flights.wait_s(2.0, is_idle=False) == 0.0


def test_an_unknown_item_has_no_batch() -> None:
    assert Flights().land(1, 0.0) is None
