from __future__ import annotations

import msgspec
import pytest

from pipelines.agreement import compare_answers, overlap
from pipelines.answers import Box, Classification, ClassScore, DetectedObject, Detections

pytestmark = pytest.mark.unit


def detections(*objects: tuple[str, float, Box]) -> bytes:
    found = tuple(DetectedObject(label, score, box) for label, score, box in objects)
    return msgspec.json.encode(Detections(100, 100, found))


def classes(*indexes: int, score: float = 0.5) -> bytes:
    scores = tuple(ClassScore(f"class {index}", index, score) for index in indexes)
    return msgspec.json.encode(Classification(100, 100, scores))


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ((0.0, 0.0, 10.0, 10.0), 1.0),
        ((5.0, 0.0, 15.0, 10.0), 1 / 3),
        ((10.0, 0.0, 20.0, 10.0), 0.0),
        ((2.0, 2.0, 4.0, 4.0), 0.04),
    ],
)
def test_overlap_is_intersection_over_union(second: Box, expected: float) -> None:
    first = (0.0, 0.0, 10.0, 10.0)
    assert overlap(first, second) == pytest.approx(expected)
    assert overlap(second, first) == pytest.approx(expected)


def test_objects_are_matched_by_label_and_place_and_each_once() -> None:
    box, near, far = (0.0, 0.0, 10.0, 10.0), (1.0, 0.0, 11.0, 10.0), (50.0, 50.0, 60.0, 60.0)
    first = detections(("car", 0.9, box), ("car", 0.8, near), ("bus", 0.7, far))
    second = detections(("car", 0.7, box), ("car", 0.6, far))
    agreement = compare_answers([(first, second)])
    assert agreement.measure == "objects found again"
    assert agreement.share == pytest.approx(1 / 3)
    assert agreement.details["more that were not there"] == 1
    assert agreement.details["mean overlap"] == 1.0
    assert agreement.details["mean change of score"] == pytest.approx(0.2)


def test_pictures_with_nothing_in_them_agree_only_when_both_are_empty() -> None:
    nothing, something = detections(), detections(("car", 0.9, (0.0, 0.0, 1.0, 1.0)))
    assert compare_answers([(nothing, nothing)]).share == 1.0
    assert compare_answers([(nothing, something)]).share == 0.0


def test_classes_agree_when_the_first_is_the_same() -> None:
    pairs = [(classes(1, 2), classes(1, 3, score=0.4)), (classes(1, 2), classes(2, 1))]
    agreement = compare_answers(pairs)
    assert (agreement.measure, agreement.share) == ("pictures with the same first class", 0.5)
    assert agreement.details["mean change of score"] == pytest.approx(0.05)


def test_answers_of_an_unknown_kind_must_be_equal() -> None:
    agreement = compare_answers([(b'{"a":1}', b'{"a":1}'), (b'{"a":1}', b'{"a":2}')])
    assert agreement.share == 0.5
