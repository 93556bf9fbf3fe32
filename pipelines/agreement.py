"""How far two answers to the same picture agree, in the words of their kind (pure).

Regions are matched greedily, the surest of the first answer first: same label, and an overlap
(intersection over union) of at least one half, as object detection benchmarks count a hit.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pipelines.answers import Box, Classification, DetectedObject, Detections

MIN_OVERLAP = 0.5

_Answer = TypeVar("_Answer")

Pair = tuple[bytes, bytes]
"""Two answers as JSON, the one to be compared with first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Shares and means over all pairs. ``measure`` says in words what ``share`` counts."""

    measure: str
    share: float
    details: dict[str, float]


def compare_answers(pairs: Iterable[Pair]) -> Agreement:
    """Compare pairs of one kind; answers of a kind that is not known here must be equal."""
    pairs = list(pairs)
    try:
        return _compare_detections([_decoded(pair, Detections) for pair in pairs])
    except msgspec.ValidationError:
        pass
    try:
        return _compare_classes([_decoded(pair, Classification) for pair in pairs])
    except msgspec.ValidationError:
        equal = [first == second for first, second in pairs]
        return Agreement(measure="answers that are equal", share=_mean(equal), details={})


def overlap(first: Box, second: Box) -> float:
    """Intersection over union of two boxes that have an area."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / (_area(first) + _area(second) - width * height)


def _compare_detections(pairs: list[tuple[Detections, Detections]]) -> Agreement:
    overlaps: list[float] = []
    score_changes: list[float] = []
    num_first = num_second = 0
    for first, second in pairs:
        num_first += len(first.objects)
        num_second += len(second.objects)
        for ours, theirs in _matched(first.objects, second.objects):
            overlaps.append(overlap(ours.box, theirs.box))
            score_changes.append(abs(ours.score - theirs.score))
    share = len(overlaps) / num_first if num_first else float(num_second == 0)
    return Agreement(
        measure="objects found again",
        share=share,
        details={
            "objects": float(num_first),
            "more that were not there": float(num_second - len(overlaps)),
            "mean overlap": _mean(overlaps),
            "mean change of score": _mean(score_changes),
        },
    )


def _matched(
    first: Iterable[DetectedObject], second: Iterable[DetectedObject]
) -> Iterable[tuple[DetectedObject, DetectedObject]]:
    free = list(second)
    for ours in first:
        same = [each for each in free if each.label == ours.label]
        best = max(same, key=lambda each: overlap(ours.box, each.box), default=None)
        if best is not None and overlap(ours.box, best.box) >= MIN_OVERLAP:
            free.remove(best)
            yield ours, best


def _compare_classes(pairs: list[tuple[Classification, Classification]]) -> Agreement:
    best = [(first.classes[0], second.classes[0]) for first, second in pairs if first.classes]
    return Agreement(
        measure="pictures with the same first class",
        share=_mean([ours.index == theirs.index for ours, theirs in best]),
        details={"mean change of score": _mean([abs(a.score - b.score) for a, b in best])},
    )


def _decoded(pair: Pair, kind: type[_Answer]) -> tuple[_Answer, _Answer]:
    first, second = pair
    return msgspec.json.decode(first, type=kind), msgspec.json.decode(second, type=kind)


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
