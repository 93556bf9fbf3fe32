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


def detected(
    label: str, score: float, box: Floats, landmarks: Floats | None = None
) -> DetectedObject:
    """One object from ``box [4]`` and ``landmarks [N, 2]`` in picture pixels, rounded."""
    x1, y1, x2, y2 = np.round(box.astype(np.float64), PIXEL_DECIMALS).tolist()
    points = None
    if landmarks is not None:
        rows = np.round(landmarks.astype(np.float64), PIXEL_DECIMALS).tolist()
        points = tuple((x, y) for x, y in rows)
    return DetectedObject(label, rounded_score(score), (x1, y1, x2, y2), points)


def rounded_score(score: float) -> float:
    """JSON-ready probability."""
    return round(float(score), SCORE_DECIMALS)
