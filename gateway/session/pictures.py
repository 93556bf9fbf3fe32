"""What is known of a picture before anything decodes it."""

from __future__ import annotations

from gateway.config_sections import LimitsConfig
from gateway.errors import ProblemKind, RequestProblem
from gateway.wire.picture import (
    PictureCodec,
    PictureError,
    PictureHeader,
    UnknownCodec,
    read_picture_header,
)
from gateway.wire.picture_body import Beginning, check_picture_body


class PictureGate:
    """Lets one stream's pictures in.

    A camera begins all of them alike, so the beginning of the last one is remembered: to read it
    again took a sixth of what a frame costs the gateway.
    """

    __slots__ = ("_beginning", "_codec", "_limits")

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._beginning: Beginning | None = None
        self._codec = PictureCodec.JPEG  # of ``_beginning``

    def check(self, payload: memoryview) -> PictureCodec:
        """See :func:`check_picture`."""
        if self._beginning is None or not self._beginning.fits(payload):
            header, self._beginning = _check(payload, self._limits)
            self._codec = header.codec
        return self._codec


def check_picture(payload: bytes | memoryview, limits: LimitsConfig) -> PictureHeader:
    """Read the picture's header, and refuse what must not reach a decoder.

    Raises:
        RequestProblem: unknown codec, damaged header, larger than the limits, or a body that
            does not suit the header's size.
    """
    return _check(payload, limits)[0]


def _check(
    payload: bytes | memoryview, limits: LimitsConfig
) -> tuple[PictureHeader, Beginning | None]:
    try:
        header = read_picture_header(payload)
    except UnknownCodec as error:
        raise RequestProblem(ProblemKind.UNKNOWN_CODEC, str(error)) from None
    except PictureError as error:
        raise RequestProblem(ProblemKind.INVALID_PICTURE, str(error)) from None
    if (
        header.width > limits.max_width
        or header.height > limits.max_height
        or header.pixels > limits.max_pixels
    ):
        detail = (
            f"{header.width}x{header.height} exceeds {limits.max_width}x{limits.max_height} "
            f"or {limits.max_pixels} pixels"
        )
        raise RequestProblem(ProblemKind.PICTURE_TOO_LARGE, detail)
    try:
        # After the size, which bounds the numbers in it.
        return header, check_picture_body(payload, header)
    except PictureError as error:
        raise RequestProblem(ProblemKind.INVALID_PICTURE, str(error)) from None
