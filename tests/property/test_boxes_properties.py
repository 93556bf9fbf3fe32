from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.manifest import InputSpec
from pipelines import images
from pipelines.boxes import Placement, strongest, suppress
from tests.reference.geometry import intersection_over_union

pytestmark = pytest.mark.property

Box = tuple[float, float, float, float]
Scored = list[tuple[Box, float, int]]

coordinates = st.integers(-30, 60).map(float)
sides = st.integers(1, 40).map(float)
boxes = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), coordinates, coordinates, sides, sides)
scored = st.lists(
    st.tuples(boxes, st.integers(1, 20).map(lambda n: n / 20), st.integers(0, 3)), max_size=25
)
overlaps = st.sampled_from((0.1, 0.3, 0.45, 0.7))


def greedy(rows: Sequence[Box], scores: Sequence[float], max_overlap: float) -> list[int]:
    """The definition: strongest first, of equals the earlier; drop what overlaps a kept one."""
    kept: list[int] = []
    for index in sorted(range(len(rows)), key=lambda i: (-scores[i], i)):
        if all(intersection_over_union(rows[index], rows[k]) <= max_overlap for k in kept):
            kept.append(index)
    return kept


def clear_cut(rows: Sequence[Box], max_overlap: float) -> bool:
    """No pair overlaps so exactly at the threshold that rounding would decide."""
    return all(
        abs(intersection_over_union(a, b) - max_overlap) > 1e-6
        for index, a in enumerate(rows)
        for b in rows[:index]
    )


@given(scored, overlaps)
def test_suppression_equals_its_definition(items: Scored, max_overlap: float) -> None:
    rows, scores = [item[0] for item in items], [item[1] for item in items]
    assume(clear_cut(rows, max_overlap))
    kept = suppress(np.array(rows).reshape(-1, 4), np.array(scores), max_overlap)
    assert kept.tolist() == greedy(rows, scores, max_overlap)


@given(scored, overlaps)
def test_classes_do_not_suppress_one_another(items: Scored, max_overlap: float) -> None:
    rows, scores = [item[0] for item in items], [item[1] for item in items]
    classes = [item[2] for item in items]
    assume(clear_cut(rows, max_overlap))
    kept = suppress(
        np.array(rows).reshape(-1, 4), np.array(scores), max_overlap, np.array(classes, np.intp)
    )
    expected: set[int] = set()
    for wanted in set(classes):
        members = [index for index, found in enumerate(classes) if found == wanted]
        survivors = greedy([rows[i] for i in members], [scores[i] for i in members], max_overlap)
        expected.update(members[index] for index in survivors)
    assert set(kept.tolist()) == expected
    assert np.all(np.diff(np.array(scores)[kept]) <= 0)


@given(st.lists(st.floats(0, 1, width=32), max_size=60), st.integers(1, 40))
def test_strongest_keeps_the_highest_scores_in_order(scores: list[float], limit: int) -> None:
    all_scores = np.repeat(scores, 2)  # of which the odd ones are candidates
    kept = strongest(np.arange(1, len(all_scores), 2), all_scores, limit)
    assert len(kept) == min(limit, len(scores))
    assert np.all(kept % 2 == 1)
    assert np.all(np.diff(kept) > 0)
    assert sorted(all_scores[kept]) == sorted(scores, reverse=True)[:limit][::-1]


sizes = st.tuples(st.integers(1, 900), st.integers(1, 900))
specs = st.builds(
    InputSpec,
    width=st.sampled_from((32, 224, 320, 640)),
    height=st.sampled_from((32, 224, 256, 640)),
    fit=st.sampled_from(("letterbox", "stretch", "centre_crop")),
    crop_fraction=st.sampled_from((0.5, 0.875, 1.0)),
)
fractions = st.tuples(st.floats(0, 1), st.floats(0, 1))


def placed(size: tuple[int, int], spec: InputSpec) -> Placement:
    width, height = size
    return images.fit(np.zeros((height, width, 3), np.uint8), spec)[1]


@given(sizes, specs, fractions)
def test_points_of_the_picture_come_back(
    size: tuple[int, int], spec: InputSpec, at: tuple[float, float]
) -> None:
    placement = placed(size, spec)
    x, y = at[0] * size[0], at[1] * size[1]
    forward = np.array(
        [
            [
                x * placement.scale_x + placement.offset_x,
                y * placement.scale_y + placement.offset_y,
            ]
        ]
    )
    assert np.allclose(placement.to_picture(forward), [[x, y]], atol=1e-6)


@given(sizes, specs, boxes)
def test_mapped_boxes_lie_in_the_picture(size: tuple[int, int], spec: InputSpec, box: Box) -> None:
    (mapped,) = placed(size, spec).to_picture(np.reshape(box, (1, 2, 2))).reshape(-1, 4)
    x1, y1, x2, y2 = mapped.tolist()
    assert 0 <= x1 <= x2 <= size[0]
    assert 0 <= y1 <= y2 <= size[1]


@given(sizes, specs)
def test_fit_shows_the_whole_picture_or_fills_the_input(
    size: tuple[int, int], spec: InputSpec
) -> None:
    placement = placed(size, spec)
    shown_width, shown_height = size[0] * placement.scale_x, size[1] * placement.scale_y
    if spec.fit == "letterbox":
        assert shown_width <= spec.width + 1e-6
        assert shown_height <= spec.height + 1e-6
        touches = (shown_width > spec.width - 1e-6, shown_height > spec.height - 1e-6)
        assert any(touches)
    else:
        assert shown_width >= spec.width - 1e-6
        assert shown_height >= spec.height - 1e-6
