"""The JSON that pictures are answered with; ``docs/pipelines.md`` shows the shapes.

Coordinates are pixels of the sent picture as a browser draws it (EXIF orientation applied).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from pipelines.boxes import Floats

# Three decimals keep the overlap of a two-pixel face with its exact box above 0.99.
PIXEL_DECIMALS = 3
SCORE_DECIMALS = 5

Point = tuple[float, float]
Box = tuple[float, float, float, float]


class DetectedObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """``box`` is x1, y1, x2, y2 and has an area; ``landmarks`` is left out where there are none."""

    label: str
    score: float
    box: Box
    landmarks: tuple[Point, ...] | None = None


class Detections(msgspec.Struct, frozen=True):
    """Objects of a picture of ``width`` x ``height``, highest score first."""

    width: int
    height: int
    objects: tuple[DetectedObject, ...]


class ClassScore(msgspec.Struct, frozen=True):
    label: str
    index: int
    score: float


class Classification(msgspec.Struct, frozen=True):
    """The most probable classes of a picture of ``width`` x ``height``, highest score first."""

    width: int
    height: int
    classes: tuple[ClassScore, ...]


Answer = Detections | Classification


def label_of(labels: Sequence[str], index: int) -> str:
    """The class's label, or ``class 123`` when the model came without labels."""
    return labels[index] if index < len(labels) else f"class {index}"


def detected(label: str, score: float, points: Floats) -> DetectedObject:
    """One object from ``points [2 + N, 2]`` in picture pixels, which are rounded: the box's top
    left and bottom right, then its landmarks, if it has any."""
    # All in one array: each call of numpy is slow where a network has just emptied the caches.
    (x1, y1), (x2, y2), *rest = points.astype(np.float64).round(PIXEL_DECIMALS).tolist()
    landmarks = tuple((x, y) for x, y in rest) or None
    return DetectedObject(label, rounded_score(score), (x1, y1, x2, y2), landmarks)


def rounded_score(score: float) -> float:
    """JSON-ready probability."""
    return round(float(score), SCORE_DECIMALS)
