from __future__ import annotations

import os
import weakref

import numpy as np
import pytest

from engine.workers.extents import ALIGNMENT, ExtentAllocator
from engine.workers.slab import (
    HEADER_BYTES,
    Slab,
    SlabReader,
    available_bytes,
    extent_bytes,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("content", "size"), [(0, HEADER_BYTES), (1, HEADER_BYTES + 64), (64, HEADER_BYTES + 64)]
)
def test_an_extent_is_header_and_padded_content(content: int, size: int) -> None:
    assert extent_bytes(content) == size


@pytest.mark.parametrize("size", [0, -64, 1, 65])
def test_only_aligned_sizes_can_be_reserved(size: int) -> None:
    with pytest.raises(ValueError, match="multiple"):
        ExtentAllocator(1024).try_reserve(size)


def test_neighbours_are_merged_whatever_the_order_of_release() -> None:
    allocator = ExtentAllocator(3 * ALIGNMENT)
    extents = [allocator.try_reserve(ALIGNMENT) for _ in range(3)]
    assert allocator.try_reserve(ALIGNMENT) is None
    for index in (0, 2, 1):
        extent = extents[index]
        assert extent is not None
        allocator.release(extent)
    assert allocator.try_reserve(3 * ALIGNMENT) is not None


def test_an_extent_cannot_be_released_by_an_earlier_owner() -> None:
    allocator = ExtentAllocator(ALIGNMENT)
    first = allocator.try_reserve(ALIGNMENT)
    assert first is not None
    allocator.release(first)
    allocator.try_reserve(ALIGNMENT)
    with pytest.raises(ValueError, match="not reserved"):
        allocator.release(first)


def test_a_reader_sees_the_item_and_cannot_write() -> None:
    slab = Slab(4096)
    written = slab.try_write(memoryview(b"picture"), b"meta", b"options")
    assert written is not None
    extent, span = written
    reader = SlabReader(slab.fd)
    payload = reader.payload(span)
    assert (bytes(payload), reader.meta(span), reader.options(span)) == (
        b"picture",
        b"meta",
        b"options",
    )
    with pytest.raises(TypeError, match="read-only"):
        payload[0] = 0
    slab.release(extent)
    assert not reader.is_valid(span)
    slab.close()


def test_a_kept_view_of_a_payload_is_noticed() -> None:
    slab = Slab(4096)
    written = slab.try_write(b"picture", b"", b"")
    assert written is not None
    payload = SlabReader(slab.fd).payload(written[1])
    owner = weakref.ref(payload.obj)
    kept = np.frombuffer(payload, np.uint8)[2:]
    copied = kept.copy()
    del payload
    assert owner() is not None
    del kept
    assert owner() is None
    assert copied.tobytes() == b"cture"
    slab.close()


def test_the_file_cannot_be_cut_below_its_readers() -> None:
    slab = Slab(4096)
    with pytest.raises(PermissionError):
        os.ftruncate(slab.fd, 0)
    slab.close()
    slab.close()


@pytest.mark.parametrize(
    ("capacity", "words"), [(-4096, "Invalid argument"), (1 << 62, "Cannot allocate memory")]
)
def test_a_size_that_cannot_be_had_leaves_no_descriptor(capacity: int, words: str) -> None:
    assert capacity < 0 or capacity > 2 * available_bytes()  # else the kernel would try
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=words):
        Slab(capacity)
    assert set(os.listdir("/proc/self/fd")) <= before
