"""Reads size and layout from the first bytes of a JPEG, PNG or WebP; decodes nothing.

Limits are checked on these numbers before a decoder sees the picture, so what a decoder would
read differently (a height that comes later, a second size, animation) is refused here. Work is
bounded: one step per JPEG segment, fixed offsets for the others. What follows the header is
:mod:`gateway.wire.picture_body`'s to check.

Sources: ITU-T T.81 annex B, PNG specification (third edition) 11.2.1, RFC 9649 and RFC 6386.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum


class PictureError(Exception):
    """The picture is malformed or of a kind that is not supported; the text says why."""


class UnknownCodec(PictureError):
    """The bytes are not the beginning of a JPEG, PNG or WebP."""


class PictureCodec(StrEnum):
    """Values of ``options.codec``."""

    JPEG = "jpeg"
    PNG = "png"
    WEBP = "webp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureHeader:
    """What the header claims; ``width`` and ``height`` are at least 1, in pixels."""

    codec: PictureCodec
    width: int
    height: int
    components: int  # 1 grey, 2 grey and alpha, 3 colour, 4 colour and alpha or CMYK
    progressive: bool  # progressive JPEG or interlaced PNG
    frame_offset: int = 0  # where a JPEG's frame header is, at its length; else 0

    @property
    def pixels(self) -> int:
        return self.width * self.height


_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_COMPONENTS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}  # by colour type; 3 is a palette of colours
_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}

# Room for the 255 segments that an ICC profile may take, and some more.
_MAX_JPEG_SEGMENTS = 512
_JPEG_FRAMES = {0xC0: False, 0xC1: False, 0xC2: True}  # marker: is progressive
_JPEG_OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}  # lossless, arithmetic, …
_JPEG_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
_JPEG_TOO_LATE = frozenset({0xD8, 0xD9, 0xDA, 0xDC})  # SOI, EOI, SOS, DNL before a frame header


def read_picture_header(data: bytes | memoryview) -> PictureHeader:
    """What the picture's header says.

    Raises:
        UnknownCodec: neither JPEG, PNG nor WebP.
        PictureError: truncated, malformed or unsupported.
    """
    view = memoryview(data)
    start = bytes(view[:12])
    if start.startswith(b"\xff\xd8"):
        return _read_jpeg(view)
    if start.startswith(_PNG_SIGNATURE):
        return _read_png(view)
    if start.startswith(b"RIFF") and start.endswith(b"WEBP"):
        return _read_webp(view)
    raise UnknownCodec("the payload does not begin as JPEG, PNG or WebP")


def _unpack(layout: str, view: memoryview, offset: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, view, offset)
    except struct.error:
        raise PictureError("the picture ends inside its header") from None


def _header(
    codec: PictureCodec,
    width: int,
    height: int,
    components: int,
    progressive: bool = False,
    frame_offset: int = 0,
) -> PictureHeader:
    if width < 1 or height < 1:
        raise PictureError(f"{codec} of {width}x{height} pixels")
    return PictureHeader(
        codec=codec,
        width=width,
        height=height,
        components=components,
        progressive=progressive,
        frame_offset=frame_offset,
    )


def _read_jpeg(view: memoryview) -> PictureHeader:
    offset = 2
    for _ in range(_MAX_JPEG_SEGMENTS):
        marker, offset = _next_jpeg_marker(view, offset)
        if marker in _JPEG_FRAMES:
            return _read_jpeg_frame(view, offset, progressive=_JPEG_FRAMES[marker])
        if marker in _JPEG_OTHER_FRAMES:
            raise PictureError(f"JPEG process SOF{marker - 0xC0} is not supported")
        if marker in _JPEG_TOO_LATE:
            raise PictureError("JPEG without a frame header")
        if marker not in _JPEG_WITHOUT_LENGTH:
            (length,) = _unpack(">H", view, offset)
            if length < 2:
                raise PictureError("JPEG segment of impossible length")
            offset += length
    raise PictureError(f"JPEG with more than {_MAX_JPEG_SEGMENTS} segments before its frame")


def _next_jpeg_marker(view: memoryview, offset: int) -> tuple[int, int]:
    """The marker at ``offset`` (after any fill bytes) and where its segment begins."""
    (prefix,) = _unpack("B", view, offset)
    if prefix != 0xFF:
        raise PictureError("JPEG marker expected")
    # Fill bytes are legal and unlimited; a few are enough for every real encoder.
    for position in range(offset + 1, offset + 17):
        (marker,) = _unpack("B", view, position)
        if marker != 0xFF:
            return marker, position + 1
    raise PictureError("JPEG with too many fill bytes")


def _read_jpeg_frame(view: memoryview, offset: int, *, progressive: bool) -> PictureHeader:
    length, precision, height, width, components = _unpack(">HBHHB", view, offset)
    if precision != 8:
        raise PictureError(f"JPEG of {precision} bits per sample is not supported")
    if components not in (1, 3, 4) or length != 8 + 3 * components:
        raise PictureError(f"JPEG frame header of {components} components is malformed")
    _unpack("B", view, offset + length - 1)
    # Height 0 means that a DNL segment after the scan tells it: unknown until decoded.
    return _header(PictureCodec.JPEG, width, height, components, progressive, offset)


def _read_png(view: memoryview) -> PictureHeader:
    length, kind, width, height, depth, colour, compression, filtering, interlace, crc = _unpack(
        ">IIIIBBBBBI", view, 8
    )
    if length != 13 or kind != int.from_bytes(b"IHDR"):
        raise PictureError("PNG without IHDR")
    if crc != zlib.crc32(view[12:29]):
        raise PictureError("PNG header with a wrong checksum")
    if depth not in _PNG_DEPTHS.get(colour, ()) or compression or filtering or interlace > 1:
        raise PictureError("PNG header with an impossible format")
    if max(width, height) >= 2**31:
        raise PictureError(f"PNG of {width}x{height} pixels")
    return _header(PictureCodec.PNG, width, height, _PNG_COMPONENTS[colour], interlace == 1)


def _read_webp(view: memoryview) -> PictureHeader:
    chunk = bytes(view[12:16])
    (size,) = _unpack("<I", view, 16)
    if chunk == b"VP8 ":
        return _read_vp8(view, size)
    if chunk == b"VP8L":
        return _read_vp8l(view, size)
    if chunk == b"VP8X":
        return _read_vp8x(view, size)
    raise PictureError("WebP without a picture chunk")


def _read_vp8(view: memoryview, size: int) -> PictureHeader:
    tag, _, _, code_0, code_1, code_2, width, height = _unpack("<BBBBBBHH", view, 20)
    if size < 10 or tag & 1 or (code_0, code_1, code_2) != (0x9D, 0x01, 0x2A):
        raise PictureError("WebP whose VP8 data does not begin with a key frame")
    # The two upper bits are a scaling hint that decoders ignore.
    return _header(PictureCodec.WEBP, width & 0x3FFF, height & 0x3FFF, 3)


def _read_vp8l(view: memoryview, size: int) -> PictureHeader:
    signature, bits = _unpack("<BI", view, 20)
    if size < 5 or signature != 0x2F or bits >> 29:
        raise PictureError("WebP with malformed lossless data")
    width, height, has_alpha = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, bits >> 28 & 1
    return _header(PictureCodec.WEBP, width, height, 3 + has_alpha)


def _read_vp8x(view: memoryview, size: int) -> PictureHeader:
    (flags,) = _unpack("B", view, 20)
    if size < 10 or len(view) < 30:
        raise PictureError("the picture ends inside its header")
    if flags & 0x02:
        raise PictureError("animated WebP is not supported")
    width = int.from_bytes(view[24:27], "little") + 1
    height = int.from_bytes(view[27:30], "little") + 1
    return _header(PictureCodec.WEBP, width, height, 4 if flags & 0x10 else 3)
