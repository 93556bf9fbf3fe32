"""Gaps less their announced pace."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.delivery.evenness import evenness

pytestmark = pytest.mark.unit


def test_a_gap_that_was_announced_is_even_whatever_its_length() -> None:
    gaps = np.array([20.0, 30.0, 50.0])
    found = evenness(gaps, gaps)
    assert float(found.relative_std) == 0.0
    assert float(found.raw_std) == pytest.approx(float(gaps.std()))
    assert found.is_within.all()


def test_a_gap_within_15_percent_of_its_pace_is_near_enough() -> None:
    found = evenness(np.array([34.4, 34.6, 25.6, 25.4]), np.full(4, 30.0))
    assert found.is_within.tolist() == [True, False, True, False]


def test_answers_in_rows_are_judged_one_by_one() -> None:
    gaps, paces = np.array([[10.0, 20.0], [30.0, 30.0]]), np.full((2, 2), 20.0)
    found = evenness(gaps, paces)
    assert found.relative_std.tolist() == [5.0, 0.0]
    assert found.is_within.shape == (2, 2)
