from __future__ import annotations

import numpy as np
import pytest

from engine.batching.buckets import MAX_BUCKETS, ShapeBuckets
from engine.tensors import pack

pytestmark = pytest.mark.unit


def meta(*shape: int, name: str = "x") -> bytes:
    return pack({name: np.zeros(shape, np.float32)}).meta


def buckets() -> tuple[ShapeBuckets, list[int]]:
    forgotten: list[int] = []
    return ShapeBuckets(forgotten.append), forgotten


def test_encoded_pictures_share_one_bucket_whatever_their_size() -> None:
    assert buckets()[0].number(b"") == 0


def test_tensors_of_one_shape_share_a_bucket_whatever_their_rows() -> None:
    shapes = buckets()[0]
    first = shapes.number(meta(1, 3, 8))
    assert shapes.number(meta(4, 3, 8)) == first
    others = {shapes.number(meta(1, 3, 9)), shapes.number(meta(1, 3, 8, name="y"))}
    assert len(others | {first, 0}) == 4


@pytest.mark.parametrize("bad", [b"{", b"[]", b'{"tensors": []}', b"{" * 5000])
def test_what_describes_no_tensors_is_left_to_the_worker(bad: bytes) -> None:
    assert buckets()[0].number(bad) == 0


def test_the_shape_that_was_not_seen_for_longest_gives_up_its_number() -> None:
    shapes, forgotten = buckets()
    numbers = [shapes.number(meta(1, size)) for size in range(1, MAX_BUCKETS)]
    assert sorted(numbers) == list(range(1, MAX_BUCKETS))
    shapes.number(meta(1, 1))
    assert shapes.number(meta(1, 99)) == numbers[1]
    assert forgotten == [numbers[1]]
    assert shapes.number(meta(1, 1)) == numbers[0]
