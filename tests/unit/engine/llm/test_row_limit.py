"""Smaller steps after one did not fit into memory."""

from __future__ import annotations

import pytest

from engine.llm.row_limit import GROW_EVERY, RowLimit

pytestmark = pytest.mark.unit


def test_there_is_no_limit_before_memory_runs_out() -> None:
    limit = RowLimit()
    limit.note_success()
    assert limit.max_rows is None


def test_each_failure_leaves_out_a_fifth() -> None:
    limit = RowLimit()
    assert limit.try_shrink(100)
    assert limit.max_rows == 80
    assert limit.try_shrink(80)
    assert limit.max_rows == 64


def test_a_single_row_cannot_get_smaller() -> None:
    limit = RowLimit()
    assert limit.try_shrink(2)
    assert limit.max_rows == 1
    assert not limit.try_shrink(1)


def test_the_limit_grows_back_and_goes() -> None:
    limit = RowLimit()
    for num_rows in (100, 80, 64):
        limit.try_shrink(num_rows)
    seen = []
    while limit.max_rows is not None:
        for _ in range(GROW_EVERY):
            assert limit.max_rows is not None
            seen.append(limit.max_rows)
            limit.note_success()
    assert seen == [51] * GROW_EVERY + [63] * GROW_EVERY
