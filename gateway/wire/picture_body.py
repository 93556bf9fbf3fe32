"""Refuses a picture whose body would cost its decoder far more than the header's size explains.

``max_pixels`` bounds one pass over a picture, but a JPEG may have thousands of scans and a PNG
hundreds of compressed texts. A decoder in C cannot be interrupted, so what bounds it is counted
before it starts. The other lie, a large size with next to no data behind it, is refused as well:
decoders fill what is missing with grey, and a model finds things in grey too.

Nothing is decoded here. Work is bounded: a few segments for the usual JPEG of one scan, one pass
over the bytes for others, 4096 chunks for a PNG. A WebP has one pass and no such extras.

Sources: ITU-T T.81 annexes B, F and G; PNG specification (third edition) 5.3 and 11.3.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from gateway.wire.picture import PictureCodec, PictureError, PictureHeader

# Encoders write 10 scans for a progressive colour picture, at most about 20.
MAX_JPEG_SCANS = 64
# Pixels x scans. A refinement scan costs up to 1.3 ns a pixel (libjpeg-turbo 3.1): 1.4 s in all.
MAX_SCANNED_PIXELS = 1 << 30
_MAX_JPEG_SEGMENTS = 512  # from the frame header on
MAX_BEGINNING_BYTES = 4096  # worth remembering; without EXIF and profiles it is 600 bytes

MAX_PNG_CHUNKS = 4096  # encoders write 8 KiB a chunk or more
# Each may inflate to 8 MB, which takes libpng 40 ms and stays in memory until the end.
MAX_PNG_INFLATED_EXTRAS = 8
_PNG_INFLATED_EXTRAS = frozenset({b"zTXt", b"iTXt", b"iCCP"})
_PNG_MAX_PIXEL_BYTES = 9  # 16 bits in each of four channels, and what deflate may add
_PNG_SLACK_BYTES = 65536

# In coded data, 0xFF is followed by 0 or a restart marker.
_JPEG_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_JPEG_FIRST_WITH_LENGTH = 0xC0  # below are only TEM and reserved markers


class Beginning(NamedTuple):
    """All that decided about a picture: any other that begins with ``data`` and has at least
    ``least_bytes`` has the same header and passes as well."""

    data: bytes
    least_bytes: int

    def fits(self, payload: bytes | memoryview) -> bool:
        size = len(self.data)
        return len(payload) >= self.least_bytes and bytes(payload[:size]) == self.data


def check_picture_body(data: bytes | memoryview, header: PictureHeader) -> Beginning | None:
    """Check what follows ``header``, which :func:`read_picture_header` read from ``data``.

    A picture that ends before its first scan or chunk passes: decoders refuse that at once. Returns
    what was decisive, if that was the beginning: of a JPEG with one scan, as cameras make them.

    Raises:
        PictureError: too many scans, chunks or compressed texts; too little or too much data.
    """
    view = memoryview(data)
    if header.codec is PictureCodec.JPEG:
        return _check_jpeg(view, header)
    if header.codec is PictureCodec.PNG:
        _check_png(view, header)
    return None


class _Segment(NamedTuple):
    marker: int
    start: int  # of its parameters, behind the length
    end: int


def _check_jpeg(view: memoryview, header: PictureHeader) -> Beginning | None:
    num_blocks = _least_blocks(view, header)
    max_scans = min(MAX_JPEG_SCANS, max(1, MAX_SCANNED_PIXELS // header.pixels))
    num_scans = 0
    segment = _Segment(0xC0, header.frame_offset, header.frame_offset)
    for _ in range(_MAX_JPEG_SEGMENTS):
        following = _next_segment(view, segment.end)
        if following is None or following.marker == _JPEG_END:
            return None
        segment = following
        if segment.marker != _JPEG_SCAN:
            continue
        num_scans += 1
        if num_scans == 1:
            least_bytes = _check_amount(view, segment, num_blocks, header)
            if not header.progressive and view[segment.start] == header.components:
                # A decoder takes no further scan.
                if segment.end > MAX_BEGINNING_BYTES:
                    return None
                return Beginning(bytes(view[: segment.end]), segment.end + least_bytes)
        if num_scans > max_scans:
            raise PictureError(f"JPEG with too many scans for its size, more than {max_scans}")
    raise PictureError(f"JPEG with more than {_MAX_JPEG_SEGMENTS} segments")


def _next_segment(view: memoryview, offset: int) -> _Segment | None:
    """The first segment at or behind ``offset``, coded data skipped; None where the picture ends.

    Follows lengths as decoders do: neither hides a scan in what they skip, nor counts one there.
    """
    found = _JPEG_MARKER.search(view, offset)
    if found is None:
        return None
    marker, start = view[found.end() - 1], found.end()
    if marker in (_JPEG_END, 0xD8) or marker < _JPEG_FIRST_WITH_LENGTH:
        return _Segment(marker, start, start)
    if start + 3 > len(view):
        return None
    return _Segment(marker, start + 2, start + int.from_bytes(view[start : start + 2]))


def _check_amount(view: memoryview, scan: _Segment, num_blocks: int, header: PictureHeader) -> int:
    """The least that the scan must have. A sequential block takes at least two Huffman codes, one
    for its mean and one that ends it; of a progressive one only the mean is certain. A code has at
    least one bit."""
    least_bytes = num_blocks * (1 if header.progressive else 2) // 8
    size = max(0, len(view) - scan.end)
    if size < least_bytes:
        raise PictureError(
            f"JPEG is truncated: {size} bytes of coded data cannot hold "
            f"{header.width}x{header.height} pixels"
        )
    return least_bytes


def _least_blocks(view: memoryview, header: PictureHeader) -> int:
    """8x8 blocks of all components (T.81 A.1.1), without the padding of interleaved scans."""
    first = header.frame_offset + 8
    factors = [view[first + 3 * index + 1] for index in range(header.components)]
    across, down = [factor >> 4 for factor in factors], [factor & 15 for factor in factors]
    if not all(1 <= factor <= 4 for factor in (*across, *down)):
        raise PictureError("JPEG with an impossible sampling factor")
    return sum(
        _ceil(_ceil(header.width * x, max(across)), 8)
        * _ceil(_ceil(header.height * y, max(down)), 8)
        for x, y in zip(across, down, strict=True)
    )


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _check_png(view: memoryview, header: PictureHeader) -> None:
    offset, num_extras, data_bytes = 8, 0, 0
    max_data_bytes = header.pixels * _PNG_MAX_PIXEL_BYTES + _PNG_SLACK_BYTES
    for _ in range(MAX_PNG_CHUNKS):
        if offset + 8 > len(view):
            return
        length, kind = struct.unpack_from(">I4s", view, offset)
        if kind == b"IEND":
            return
        num_extras += kind in _PNG_INFLATED_EXTRAS
        data_bytes += length if kind == b"IDAT" else 0
        if num_extras > MAX_PNG_INFLATED_EXTRAS:
            raise PictureError(f"PNG with more than {MAX_PNG_INFLATED_EXTRAS} compressed texts")
        if data_bytes > max_data_bytes:
            raise PictureError(f"PNG with too much data for {header.width}x{header.height} pixels")
        offset += 12 + length
    raise PictureError(f"PNG with more than {MAX_PNG_CHUNKS} chunks")
