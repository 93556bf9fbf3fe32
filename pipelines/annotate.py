"""The annotated frame: what was found, drawn over the picture or made unrecognisable in it."""

from __future__ import annotations

import zlib
from typing import Literal, NamedTuple, cast

import cv2
import msgspec

from engine.types import Attachment, AttachmentKind
from pipelines.answers import Answer, Box, Classification, DetectedObject, Detections
from pipelines.images import Picture

MAX_SIDE = 1280  # pixels; bounds the width of landscape and the height of portrait pictures
JPEG_QUALITY = 80
BLUR_MARGIN = 0.2  # of the box, on every side: hair, ears and chin identify too
BLUR_CELLS = 6  # along the longer side; coarser than what face recognition works with

Mode = Literal["boxes", "blur"]
Colour = tuple[int, int, int]

# Blue, green, red. Okabe and Ito's palette: distinguishable with any kind of colour vision.
PALETTE: tuple[Colour, ...] = (
    (115, 158, 0),
    (0, 159, 230),
    (233, 180, 86),
    (66, 228, 240),
    (178, 114, 0),
    (0, 94, 213),
    (167, 121, 204),
)
_BLACK: Colour = (0, 0, 0)
_WHITE: Colour = (255, 255, 255)
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_PLATE_MARGIN = 2  # pixels around a label's text


def shrink(picture: Picture) -> Picture:
    """``picture`` if it has at most ``MAX_SIDE`` pixels a side, else a smaller copy.

    Done before an item waits for its answer: 8K frames in waiting would hold 100 MB each.
    """
    height, width = picture.shape[:2]
    ratio = min(1.0, MAX_SIDE / max(width, height))
    if ratio == 1.0:
        return picture
    size = (max(1, round(width * ratio)), max(1, round(height * ratio)))
    return cast(Picture, cv2.resize(picture, size, interpolation=cv2.INTER_AREA))


def annotate(canvas: Picture, answer: Answer, mode: Mode) -> Attachment:
    """Draw ``answer`` on ``canvas``, which is changed, and encode it as JPEG.

    ``canvas`` is the answer's picture after :func:`shrink`.
    """
    height, width = canvas.shape[:2]
    scale = _Scale(width / answer.width, height / answer.height)
    if isinstance(answer, Classification):
        _draw_classes(canvas, answer)
    elif mode == "blur":
        blur_regions(canvas, [scale.box(thing.box) for thing in answer.objects])
    else:
        _draw_objects(canvas, answer, scale)
    _, encoded = cv2.imencode(".jpg", canvas, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return Attachment(
        kind=AttachmentKind.ANNOTATED_FRAME,
        meta=msgspec.json.encode({"width": width, "height": height, "codec": "jpeg"}),
        payload=encoded.tobytes(),
    )


def blur_regions(canvas: Picture, boxes: list[Box]) -> None:
    """Replace every box, widened by ``BLUR_MARGIN``, with at most 6x6 flat cells, in place.

    Averaging destroys what it removes; a Gaussian of known width can be undone in part.
    """
    height, width = canvas.shape[:2]
    for x1, y1, x2, y2 in boxes:
        margin_x, margin_y = (x2 - x1) * BLUR_MARGIN, (y2 - y1) * BLUR_MARGIN
        left, top = max(0, int(x1 - margin_x)), max(0, int(y1 - margin_y))
        right, bottom = min(width, int(x2 + margin_x) + 1), min(height, int(y2 + margin_y) + 1)
        region = canvas[top:bottom, left:right]
        if region.size == 0:
            continue
        cell = max(2.0, max(right - left, bottom - top) / BLUR_CELLS)
        cells = (max(1, int((right - left) / cell)), max(1, int((bottom - top) / cell)))
        mosaic = cv2.resize(region, cells, interpolation=cv2.INTER_AREA)
        canvas[top:bottom, left:right] = cv2.resize(
            mosaic, (right - left, bottom - top), interpolation=cv2.INTER_NEAREST
        )


class _Scale(NamedTuple):
    """From the sent picture's pixels to the canvas's."""

    x: float
    y: float

    def box(self, box: Box) -> Box:
        x1, y1, x2, y2 = box
        return x1 * self.x, y1 * self.y, x2 * self.x, y2 * self.y


class _Pen(NamedTuple):
    """Sizes that stay readable from 160 to 1280 pixels."""

    line: int
    font_scale: float
    font_line: int

    @staticmethod
    def for_canvas(canvas: Picture) -> _Pen:
        side = max(canvas.shape[:2])
        return _Pen(
            line=max(1, round(side / 420)),
            font_scale=min(max(side / 1400, 0.4), 1.0),
            font_line=max(1, round(side / 900)),
        )


def _draw_objects(canvas: Picture, answer: Detections, scale: _Scale) -> None:
    pen = _Pen.for_canvas(canvas)
    for thing in reversed(answer.objects):  # the strongest on top
        # From the label alone, so that a colour does not change when other objects come and go.
        colour = PALETTE[zlib.crc32(thing.label.encode()) % len(PALETTE)]
        _draw_object(canvas, thing, scale, pen, colour)


def _draw_object(
    canvas: Picture, thing: DetectedObject, scale: _Scale, pen: _Pen, colour: Colour
) -> None:
    left, top, right, bottom = (round(value) for value in scale.box(thing.box))
    cv2.rectangle(canvas, (left, top), (right, bottom), colour, pen.line, cv2.LINE_AA)
    for x, y in thing.landmarks or ():
        centre = round(x * scale.x), round(y * scale.y)
        cv2.circle(canvas, centre, pen.line + 1, _BLACK, cv2.FILLED, cv2.LINE_AA)
        cv2.circle(canvas, centre, pen.line, colour, cv2.FILLED, cv2.LINE_AA)
    text = f"{thing.label} {thing.score:.2f}"
    plate_width, plate_height = _plate_size(text, pen)
    left = max(0, min(left, canvas.shape[1] - plate_width))
    top = top - plate_height if top >= plate_height else top  # on the box, or else inside it
    _draw_plate(canvas, text, (left, top), pen, colour)


def _draw_classes(canvas: Picture, answer: Classification) -> None:
    pen = _Pen.for_canvas(canvas)
    top = 0
    for rank, entry in enumerate(answer.classes):
        text = f"{entry.label} {entry.score:.2f}"
        _draw_plate(canvas, text, (0, top), pen, PALETTE[rank % len(PALETTE)])
        top += _plate_size(text, pen)[1]


def _plate_size(text: str, pen: _Pen) -> tuple[int, int]:
    """Width and height of the text with its plate."""
    (width, height), baseline = cv2.getTextSize(text, _FONT, pen.font_scale, pen.font_line)
    return width + 2 * _PLATE_MARGIN, height + baseline + 2 * _PLATE_MARGIN


def _draw_plate(
    canvas: Picture, text: str, top_left: tuple[int, int], pen: _Pen, colour: Colour
) -> None:
    left, top = top_left
    width, height = _plate_size(text, pen)
    cv2.rectangle(canvas, top_left, (left + width - 1, top + height - 1), colour, cv2.FILLED)
    _, baseline = cv2.getTextSize(text, _FONT, pen.font_scale, pen.font_line)
    origin = (left + _PLATE_MARGIN, top + height - baseline - _PLATE_MARGIN)
    ink = _ink_on(colour)
    cv2.putText(canvas, text, origin, _FONT, pen.font_scale, ink, pen.font_line, cv2.LINE_AA)


def _ink_on(colour: Colour) -> Colour:
    """Black or white, whichever contrasts more (ITU-R BT.601 luma)."""
    blue, green, red = colour
    return _BLACK if 0.114 * blue + 0.587 * green + 0.299 * red > 128 else _WHITE
