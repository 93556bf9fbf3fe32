"""Box geometry, spelled out rather than fast."""

from __future__ import annotations

from collections.abc import Sequence


def intersection_over_union(a: Sequence[float], b: Sequence[float]) -> float:
    """0..1 for two boxes x1, y1, x2, y2; 0 when either has no area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    return shared / (area_a + area_b - shared)


def clipped(box: Sequence[float], width: int, height: int) -> tuple[float, ...]:
    """The part of the box that lies in the picture."""
    limits = (width, height, width, height)
    return tuple(min(max(value, 0.0), limit) for value, limit in zip(box, limits, strict=True))
