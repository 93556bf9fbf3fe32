"""Objects in boxes, from a detector exported in the manner of YOLOv8 (also v9 and 11).

Output: ``[B, 4 + C, N]``, or transposed ``[B, N, 4 + C]``: for each of N anchors the centre x and
y, width and height in pixels of the network's input, then one probability per class. There is no
objectness, and the network does not suppress overlapping boxes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.manifest import Manifest
from engine.pipeline import Resources
from pipelines.answers import Detections, detected, label_of
from pipelines.base import PicturePipeline, Probability, read_options
from pipelines.boxes import Placement, has_area, strongest, suppress

Array = NDArray[np.floating[Any]]


class DetectOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest's ``[options]`` for kind ``detect``."""

    score_threshold: Probability = 0.25
    max_overlap: Probability = 0.45
    max_objects: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200


class Candidates(NamedTuple):
    """``boxes [N, 4]`` in input pixels, ``scores [N]``, ``classes [N]``; not yet suppressed."""

    boxes: Array
    scores: Array
    classes: NDArray[np.intp]


def anchors_last(output: Array, num_classes: int) -> Array:
    """One item's output as ``[4 + C, N]``. ``num_classes`` is 0 when no labels are known; then
    the shorter axis must be the channels, since a detector has far more anchors than classes.

    Raises:
        ValueError: neither axis can be the channels.
    """
    if output.ndim != 2 or min(output.shape) < 5:
        raise ValueError(f"expected an output [4 + classes, anchors], got {output.shape}")
    rows, columns = output.shape
    channels = 4 + num_classes if num_classes else min(rows, columns)
    if rows == channels:
        return output
    if columns == channels:
        return output.T
    raise ValueError(f"{num_classes} labels, so {channels} channels, but got {output.shape}")


def decode_candidates(output: Array, score_threshold: float) -> Candidates:
    """Turn ``[4 + C, N]`` into the anchors whose best class scores above the threshold."""
    class_scores = output[4:]
    best = class_scores.max(axis=0)
    anchors = strongest(np.flatnonzero(best > score_threshold), best)
    centres, sizes = output[:2, anchors].T, output[2:4, anchors].T
    boxes = np.concatenate((centres - sizes / 2, centres + sizes / 2), axis=1)
    solid = has_area(boxes)
    anchors, boxes = anchors[solid], boxes[solid]
    return Candidates(boxes, best[anchors], class_scores[:, anchors].argmax(axis=0))


class ObjectReader:
    """Reads one picture's detections."""

    finds_regions = True

    def __init__(self, labels: Sequence[str], options: DetectOptions) -> None:
        self._labels = labels
        self._options = options

    def read(self, outputs: Sequence[Array], placement: Placement) -> Detections:
        """Raises ValueError when the first output is not a detector's, or labels do not fit."""
        options = self._options
        output = anchors_last(outputs[0], len(self._labels))
        found = decode_candidates(output, options.score_threshold)
        kept = suppress(found.boxes, found.scores, options.max_overlap, found.classes)
        kept = kept[: options.max_objects]
        corners = placement.to_picture(found.boxes[kept].reshape(-1, 2, 2))
        visible = has_area(corners.reshape(-1, 4))
        kept, corners = kept[visible], corners[visible]
        labels = [label_of(self._labels, index) for index in found.classes[kept].tolist()]
        objects = map(detected, labels, found.scores[kept], corners)
        return Detections(placement.width, placement.height, tuple(objects))


def build(manifest: Manifest, resources: Resources) -> PicturePipeline:
    """Raises StartupError when manifest and network do not fit."""
    reader = ObjectReader(manifest.labels, read_options(manifest, DetectOptions))
    return PicturePipeline(manifest, resources, reader)
