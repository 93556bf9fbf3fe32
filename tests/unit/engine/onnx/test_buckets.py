from __future__ import annotations

import pytest

from engine.onnx.buckets import bucket_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6), (7, 7), (100, 100)]
)
def test_rows_take_the_smallest_size_that_holds_them(rows: int, size: int) -> None:
    assert bucket_of(rows, (1, 2, 4, 6)) == size
