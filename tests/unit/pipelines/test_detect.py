from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipelines.boxes import MAX_CANDIDATES, Placement
from pipelines.detect import DetectOptions, ObjectReader, anchors_last, decode_candidates

pytestmark = pytest.mark.unit

LABELS = ("person", "bicycle", "car")
PLACEMENT = Placement(width=1280, height=720, scale_x=0.5, scale_y=0.5)  # a 640x640 letterbox


def output(*anchors: tuple[float, ...], num_anchors: int = 100) -> NDArray[np.float32]:
    """``[4 + C, N]`` with the given (cx, cy, w, h, scores…) and silence behind them."""
    array = np.zeros((4 + len(LABELS), num_anchors), np.float32)
    for column, anchor in enumerate(anchors):
        array[:, column] = anchor
    return array


def read(array: NDArray[np.float32], **options: float) -> list[tuple[str, float]]:
    reader = ObjectReader(LABELS, DetectOptions(**options))  # type: ignore[arg-type]
    return [(thing.label, thing.score) for thing in reader.read([array], PLACEMENT).objects]


def test_anchor_becomes_a_box_in_the_picture() -> None:
    array = output((100, 50, 40, 20, 0.0, 0.0, 0.75))
    (thing,) = ObjectReader(LABELS, DetectOptions()).read([array], PLACEMENT).objects
    assert (thing.label, thing.score) == ("car", 0.75)
    assert thing.box == (160.0, 80.0, 240.0, 120.0)
    assert thing.landmarks is None


def test_best_class_of_an_anchor_counts() -> None:
    assert read(output((100, 50, 40, 20, 0.5, 0.75, 0.25))) == [("bicycle", 0.75)]


def test_score_must_exceed_the_threshold() -> None:
    array = output((100, 50, 40, 20, 0.25, 0.0, 0.0), (300, 50, 40, 20, 0.5, 0.0, 0.0))
    assert read(array) == [("person", 0.5)]
    assert read(array, score_threshold=0.125) == [("person", 0.5), ("person", 0.25)]


def test_overlap_suppresses_inside_a_class_only() -> None:
    array = output(
        (100, 50, 40, 20, 0.5, 0.0, 0.0),
        (101, 50, 40, 20, 0.75, 0.0, 0.0),
        (100, 50, 40, 20, 0.0, 0.0, 0.625),
    )
    assert read(array) == [("person", 0.75), ("car", 0.625)]


def test_boxes_are_clipped_and_padding_is_not_answered() -> None:
    array = output(
        (0, 0, 40, 20, 0.5, 0, 0), (100, 500, 40, 20, 0.5, 0, 0), (100, 50, 0, 20, 0.5, 0, 0)
    )
    things = ObjectReader(LABELS, DetectOptions()).read([array], PLACEMENT).objects
    assert [thing.box for thing in things] == [(0.0, 0.0, 40.0, 20.0)]


def test_transposed_layout_is_recognised() -> None:
    array = output((100, 50, 40, 20, 0.0, 0.0, 0.75))
    assert read(array.T) == [("car", 0.75)]
    assert anchors_last(array.T, 0).shape == array.shape
    assert anchors_last(array, 0).shape == array.shape


def test_labels_decide_when_there_are_fewer_anchors_than_classes() -> None:
    wide = np.zeros((84, 50), np.float32)
    assert anchors_last(wide, 80).shape == (84, 50)
    assert anchors_last(wide.T, 80).shape == (84, 50)


@pytest.mark.parametrize("shape", [(84, 8400), (8400, 6)])
def test_labels_must_match_the_channels(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="3 labels"):
        anchors_last(np.zeros(shape, np.float32), 3)


@pytest.mark.parametrize("shape", [(4, 100), (10,), (1, 84, 8400)])
def test_output_of_another_network_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected an output"):
        anchors_last(np.zeros(shape, np.float32), 0)


def test_class_without_label_is_numbered() -> None:
    array = output((100, 50, 40, 20, 0.0, 0.0, 0.75))
    (thing,) = ObjectReader((), DetectOptions()).read([array], PLACEMENT).objects
    assert thing.label == "class 2"


def test_candidates_and_objects_are_bounded() -> None:
    array = np.full((4 + len(LABELS), 8400), 0.5, np.float32)
    array[:2] = np.arange(8400) % 600
    array[2:4] = 1.0
    assert len(decode_candidates(array, 0.25).boxes) == MAX_CANDIDATES
    assert len(read(array, max_objects=5)) == 5
