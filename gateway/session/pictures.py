"""What is known of a picture before anything decodes it."""

from __future__ import annotations

from gateway.config_sections import LimitsConfig
from gateway.errors import ProblemKind, RequestProblem
from gateway.wire.picture import PictureError, PictureHeader, UnknownCodec, read_picture_header
from gateway.wire.picture_body import check_picture_body


def check_picture(payload: bytes | memoryview, limits: LimitsConfig) -> PictureHeader:
    """Read the picture's header, and refuse what must not reach a decoder.

    Raises:
        RequestProblem: unknown codec, damaged header, larger than the limits, or a body that
            does not suit the header's size.
    """
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
        check_picture_body(payload, header)  # after the size, which bounds the numbers in it
    except PictureError as error:
        raise RequestProblem(ProblemKind.INVALID_PICTURE, str(error)) from None
    return header
