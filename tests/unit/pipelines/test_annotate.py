from __future__ import annotations

import json

import numpy as np
import pytest

from engine.types import AttachmentKind
from pipelines.annotate import MAX_SIDE, PALETTE, annotate, blur_regions, shrink
from pipelines.answers import Classification, ClassScore, DetectedObject, Detections
from tests.fakes.pictures import decode, gradient, noise

pytestmark = pytest.mark.unit

LANDMARKS = ((30.0, 30.0), (50.0, 30.0), (40.0, 40.0), (33.0, 50.0), (47.0, 50.0))


def detections(width: int, height: int, *boxes: tuple[float, float, float, float]) -> Detections:
    things = tuple(DetectedObject("face", 0.9, box, LANDMARKS) for box in boxes)
    return Detections(width, height, things)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1, 1), (1, 1)),
        ((176, 144), (176, 144)),
        ((1920, 1080), (1280, 720)),
        ((1080, 1920), (720, 1280)),
        ((4000, 2), (1280, 1)),
    ],
)
@pytest.mark.parametrize("mode", ["boxes", "blur"])
def test_frame_is_a_jpeg_of_bounded_size(
    size: tuple[int, int], expected: tuple[int, int], mode: str
) -> None:
    answer = detections(*size, (0.0, 0.0, float(size[0]), float(size[1])))
    attachment = annotate(shrink(gradient(*size)), answer, mode)  # type: ignore[arg-type]
    assert attachment.kind is AttachmentKind.ANNOTATED_FRAME
    width, height = expected
    assert json.loads(attachment.meta) == {"width": width, "height": height, "codec": "jpeg"}
    assert decode(attachment.payload).shape == (height, width, 3)
    assert max(width, height) <= MAX_SIDE


def test_only_a_picture_that_is_too_large_is_copied() -> None:
    small, large = gradient(1280, 720), gradient(1281, 720)
    assert shrink(small) is small
    assert shrink(large).shape == (719, 1280, 3)
    assert np.array_equal(large, gradient(1281, 720))


@pytest.mark.parametrize("size", [(160, 120), (640, 480), (1280, 720), (2560, 1440)])
def test_box_is_drawn_where_the_object_is(size: tuple[int, int]) -> None:
    width, height = size
    box = (width * 0.25, height * 0.25, width * 0.75, height * 0.75)
    thing = DetectedObject("face", 0.9, box)
    canvas = shrink(np.zeros((height, width, 3), np.uint8))
    attachment = annotate(canvas, Detections(width, height, (thing,)), "boxes")
    drawn = decode(attachment.payload)
    rows, columns = drawn.shape[:2]
    for fraction in (0.25, 0.75):
        edge = round(columns * fraction)
        assert drawn[rows // 2, edge - 1 : edge + 2].max() > 100  # left and right edges
        edge = round(rows * fraction)
        assert drawn[edge - 1 : edge + 2, columns // 2].max() > 100  # top and bottom edges
    assert drawn[rows // 2, columns // 2].max() < 30
    assert drawn[: rows // 16].max() < 30


def test_label_is_inside_the_frame_for_an_object_in_a_corner() -> None:
    black = np.zeros((144, 176, 3), np.uint8)
    thing = DetectedObject("face", 0.9, (170.0, 0.0, 176.0, 6.0))
    drawn = decode(annotate(black, Detections(176, 144, (thing,)), "boxes").payload)
    assert (drawn[:14, 100:].max(axis=2) > 60).sum() > 200


def test_blurred_region_has_at_most_six_by_six_colours() -> None:
    canvas = noise(200, 200)
    blur_regions(canvas, [(50.0, 40.0, 130.0, 150.0)])
    region = canvas[40:150, 50:130].reshape(-1, 3)
    assert len(np.unique(region, axis=0)) <= 36


def test_blur_reaches_beyond_the_box_and_not_further() -> None:
    canvas = noise(200, 200)
    blur_regions(canvas, [(50.0, 50.0, 100.0, 100.0)])
    changed = np.flatnonzero((canvas != noise(200, 200)).any(axis=(1, 2)))
    assert (changed.min(), changed.max()) == (40, 110)


@pytest.mark.parametrize(
    "box", [(0.0, 0.0, 200.0, 200.0), (199.0, 199.0, 200.0, 200.0), (10.0, 10.0, 10.5, 190.0)]
)
def test_blur_handles_boxes_of_any_shape(box: tuple[float, float, float, float]) -> None:
    canvas = noise(200, 200)
    blur_regions(canvas, [box])
    assert canvas.shape == (200, 200, 3)
    assert (canvas != noise(200, 200)).any()


def test_blur_on_a_shrunk_frame_covers_the_object() -> None:
    picture = noise(2560, 1440)
    answer = detections(2560, 1440, (1000.0, 400.0, 1400.0, 900.0))
    drawn = decode(annotate(shrink(picture), answer, "blur").payload).astype(int)
    inside = drawn[220:430, 520:680]
    assert np.abs(np.diff(inside, axis=1)).mean() < 2.0  # flat
    assert np.abs(np.diff(drawn[:100], axis=1)).mean() > 10.0  # untouched


def test_classes_are_listed_one_below_the_other() -> None:
    black = np.zeros((240, 320, 3), np.uint8)
    answer = Classification(320, 240, (ClassScore("cat", 3, 0.8), ClassScore("cat", 4, 0.1)))
    drawn = decode(annotate(black, answer, "boxes").payload).astype(int)
    edge = drawn[:60, 1]  # beside the text: the plates' own colours, green then orange
    plates = [np.flatnonzero(np.abs(edge - colour).max(axis=1) < 60) for colour in PALETTE[:2]]
    assert all(len(rows) >= 10 for rows in plates)
    assert plates[0].min() == 0
    assert plates[0].max() < plates[1].min()
