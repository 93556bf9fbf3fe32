from __future__ import annotations

import pytest

from engine.errors import InvalidInput, StartupError
from engine.workers.placement import MAX_META_BYTES, Placement
from tests.fakes.pools import work

pytestmark = pytest.mark.unit


@pytest.fixture
def placement() -> object:
    placement = Placement("m", slab_bytes=1, max_item_bytes=1000)
    yield placement
    placement.check_integrity()
    placement.close()


def test_an_item_of_the_largest_size_always_fits_an_empty_slab(placement: Placement) -> None:
    assert placement.try_place(work(1, b"x" * 1000)) is not None


def test_a_second_attempt_finds_the_item_where_it_was(placement: Placement) -> None:
    first = placement.try_place(work(1, b"abc"))
    assert placement.try_place(work(1, b"abc")) == first
    assert placement.release(1)
    assert not placement.release(1)
    assert placement.used_bytes == 0


def test_a_full_slab_says_that_it_is_short(placement: Placement) -> None:
    key = 0
    while placement.try_place(work(key, b"x" * 1000)) is not None:
        key += 1
    assert placement.is_short


def test_what_can_never_fit_is_the_callers_fault(placement: Placement) -> None:
    assert isinstance(placement.check_size(work(1, b"x" * 1001)), InvalidInput)
    too_much = work(1, pad="x" * MAX_META_BYTES)
    assert isinstance(placement.check_size(too_much), InvalidInput)
    assert placement.check_size(work(1, b"x" * 1000)) is None


def test_memory_that_is_not_there_is_named() -> None:
    with pytest.raises(StartupError, match=r"model m: no .* lower slab_bytes"):
        Placement("m", slab_bytes=1 << 50, max_item_bytes=1)
