"""Shared memory between the host and its workers: one anonymous file, divided into extents.

The host owns the allocation; workers map the file read-only and learn from a message where an
item lies. An extent is ``[header | payload | meta | options]``; the header is its generation
number. A reader compares it before and after use, so that bytes which were overwritten meanwhile
are noticed and never mistaken for the item's own.

Why not ``multiprocessing.shared_memory``: its resource tracker unlinks the segment when any
process of the tree dies, and names stay behind after a kill. A memory file has no name, goes with
its last descriptor, and ``posix_fallocate`` takes its pages at the start: a sparse segment would
raise SIGBUS at the first touch that finds no memory.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.workers.extents import ALIGNMENT, NO_GENERATION, Extent, ExtentAllocator

HEADER = struct.Struct("<Q")  # generation; padded to ALIGNMENT so that payloads are aligned
HEADER_BYTES = ALIGNMENT


class Span(NamedTuple):
    """Where one item's three parts lie, and under which generation they are valid."""

    offset: int
    generation: int
    payload_bytes: int
    meta_bytes: int
    options_bytes: int


def extent_bytes(content_bytes: int) -> int:
    """Size of the extent that holds so much content, header and padding included."""
    return HEADER_BYTES + -(-content_bytes // ALIGNMENT) * ALIGNMENT


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that can be had without swapping."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(errno.ENODATA, f"{meminfo} has no MemAvailable")


class Slab:
    """The host's side: owns the memory file and writes items into it. One thread only."""

    def __init__(self, capacity: int) -> None:
        """Raises ``OSError`` (ENOMEM, ENOSPC) when the machine cannot back ``capacity`` bytes."""
        capacity = -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE
        if capacity > available_bytes():
            # The kernel would not refuse: it would kill processes until there is room.
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.fd = os.memfd_create("clawstream-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.fd, 0, capacity)
            # Nobody can cut the file below a mapping of it: no SIGBUS, in any process.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            self._map = mmap.mmap(self.fd, capacity)
        except BaseException:
            os.close(self.fd)
            raise
        self._view = memoryview(self._map)
        self._allocator = ExtentAllocator(capacity)
        self._is_closed = False

    @property
    def used_bytes(self) -> int:
        return self._allocator.used_bytes

    def try_write(
        self, payload: bytes | memoryview, meta: bytes, options: bytes
    ) -> tuple[Extent, Span] | None:
        """Copy one item in (its only copy on the way to the worker); None when there is no room."""
        view = memoryview(payload).cast("B")
        parts = (view, meta, options)
        extent = self._allocator.try_reserve(extent_bytes(sum(map(len, parts))))
        if extent is None:
            return None
        HEADER.pack_into(self._view, extent.offset, extent.generation)
        end = extent.offset + HEADER_BYTES
        for part in parts:
            start, end = end, end + len(part)
            self._view[start:end] = part
        return extent, Span(extent.offset, extent.generation, len(view), len(meta), len(options))

    def release(self, extent: Extent) -> None:
        """Free an item's extent; late readers see that it is no longer theirs."""
        self._allocator.release(extent)
        HEADER.pack_into(self._view, extent.offset, NO_GENERATION)

    def check_integrity(self) -> None:
        self._allocator.check_integrity()

    def close(self) -> None:
        """Unmap and close; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._view.release()
        self._map.close()
        os.close(self.fd)


class SlabReader:
    """The worker's side: a read-only mapping of the inherited descriptor. Any thread."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def is_valid(self, span: Span) -> bool:
        """Whether the extent still belongs to the item that ``span`` was written for."""
        return bool(HEADER.unpack_from(self._map, span.offset)[0] == span.generation)

    def payload(self, span: Span) -> memoryview:
        """The payload itself, not a copy.

        Its ``obj`` is an array of its own, which lives exactly as long as any view of the payload:
        a weak reference to it tells whether somebody kept one.
        """
        start = span.offset + HEADER_BYTES
        return self._bytes[start : start + span.payload_bytes].data

    def meta(self, span: Span) -> bytes:
        start = span.offset + HEADER_BYTES + span.payload_bytes
        return self._map[start : start + span.meta_bytes]

    def options(self, span: Span) -> bytes:
        start = span.offset + HEADER_BYTES + span.payload_bytes + span.meta_bytes
        return self._map[start : start + span.options_bytes]
