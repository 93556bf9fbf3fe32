"""Real JPEGs taken apart, to make ones that no encoder writes."""

from __future__ import annotations

import re

_FRAME = re.compile(rb"\xff[\xc0-\xc2]\x00\x11\x08")
_END_OF_CODED_DATA = re.compile(rb"\xff[^\x00\xd0-\xd7]")


def with_frame_size(jpeg: bytes, width: int, height: int) -> bytes:
    """The same data under another size."""
    found = _FRAME.search(jpeg)
    assert found is not None
    at = found.end()
    return jpeg[:at] + height.to_bytes(2) + width.to_bytes(2) + jpeg[at + 4 :]


def repeated_scan(jpeg: bytes, count: int, *, before: bytes = b"") -> bytes:
    """``count`` more copies of the last scan, each with ``before`` in front."""
    start = jpeg.rindex(b"\xff\xda")
    header_end = start + 2 + int.from_bytes(jpeg[start + 2 : start + 4])
    found = _END_OF_CODED_DATA.search(jpeg, header_end)
    assert found is not None
    end = found.start()
    return jpeg[:end] + (before + jpeg[start:end]) * count + jpeg[end:]
