"""Faces with five landmarks, from a CenterFace network.

Xu, Yan, Sun, Cai, "CenterFace: Joint Face Detection and Alignment Using Face as Point",
arXiv:1911.03599. Input: RGB 0..255, ``[B, 3, H, W]``, H and W multiples of 32. Outputs, in this
order, on a grid of one cell per 4x4 pixels: heatmap ``[B, 1, H/4, W/4]`` (probability that a face's
centre is in the cell), scale ``[B, 2, ...]`` (log of height and width in cells), offset
``[B, 2, ...]`` (of the centre inside the cell, down and right) and landmarks ``[B, 10, ...]``
(five times down and right, as fractions of the box from its top left corner).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import StartupError
from engine.manifest import Manifest
from engine.pipeline import Resources
from pipelines.answers import Detections, detected
from pipelines.base import PicturePipeline, Probability, read_options
from pipelines.boxes import Placement, has_area, strongest, suppress

STRIDE = 4  # pixels of the network's input per cell of its output
NUM_LANDMARKS = 5
_CHANNELS = [1, 2, 2, 2 * NUM_LANDMARKS]

Array = NDArray[np.floating[Any]]


class FaceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest's ``[options]`` for kind ``faces``."""

    score_threshold: Probability = 0.5
    max_overlap: Probability = 0.3
    max_faces: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200


class Faces(NamedTuple):
    """``boxes [N, 4]``, ``scores [N]``, ``landmarks [N, 5, 2]`` (x, y), in input pixels."""

    boxes: Array
    scores: Array
    landmarks: Array


def decode_faces(
    heatmap: Array, scale: Array, offset: Array, landmarks: Array, score_threshold: float
) -> Faces:
    """Turn one item's four maps, ``[channels, H/4, W/4]`` each, into candidates.

    Neighbouring cells find the same face: the caller suppresses. Boxes may reach beyond the input.
    """
    grid_width = heatmap.shape[-1]
    heat = heatmap.reshape(-1)
    cells = strongest(np.flatnonzero(heat > score_threshold), heat)
    sizes = np.exp(scale.reshape(2, -1)[::-1, cells].T) * STRIDE  # [N, 2] width, height
    rows, columns = np.divmod(cells, grid_width)
    corners = np.array((columns, rows)).T  # [N, 2] x, y of the cell
    inside = offset.reshape(2, -1)[::-1, cells].T
    centres = (corners + inside + 0.5) * STRIDE
    top_left = centres - sizes / 2
    fractions = landmarks.reshape(NUM_LANDMARKS, 2, -1)[:, ::-1, cells].transpose(2, 0, 1)
    return Faces(
        boxes=np.concatenate((top_left, top_left + sizes), axis=1),
        scores=heat[cells],
        landmarks=top_left[:, None] + fractions * sizes[:, None],
    )


class FaceReader:
    """Reads CenterFace's outputs for one picture."""

    finds_regions = True

    def __init__(self, options: FaceOptions) -> None:
        self._options = options

    def read(self, outputs: Sequence[Array], placement: Placement) -> Detections:
        """Raises ValueError when the outputs are not CenterFace's."""
        _check_outputs(outputs)
        options = self._options
        heatmap, scale, offset, points = outputs
        faces = decode_faces(heatmap, scale, offset, points, options.score_threshold)
        kept = suppress(faces.boxes, faces.scores, options.max_overlap)[: options.max_faces]
        corners = faces.boxes[kept].reshape(-1, 2, 2)
        points = placement.to_picture(np.concatenate((corners, faces.landmarks[kept]), axis=1))
        visible = has_area(points[:, :2].reshape(-1, 4))
        objects = map(detected, repeat("face"), faces.scores[kept][visible], points[visible])
        return Detections(placement.width, placement.height, tuple(objects))


def _check_outputs(outputs: Sequence[Array]) -> None:
    shapes = [output.shape for output in outputs]
    grid = shapes[0][1:] if shapes else ()
    if len(grid) != 2 or shapes != [(channels, *grid) for channels in _CHANNELS]:
        raise ValueError(f"expected heatmap, scale, offset and landmarks, got shapes {shapes}")


def build(manifest: Manifest, resources: Resources) -> PicturePipeline:
    """Raises StartupError when the manifest does not describe a CenterFace model."""
    spec = manifest.input
    if spec is not None and (spec.width % 32 or spec.height % 32):
        raise StartupError(
            f"model {manifest.name!r}: input.width and input.height must be multiples of 32, "
            f"got {spec.width}x{spec.height}"
        )
    return PicturePipeline(manifest, resources, FaceReader(read_options(manifest, FaceOptions)))
