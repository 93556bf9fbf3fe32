"""CenterFace without a server: decode, resize, run, decode the maps, suppress.

Written from the paper (arXiv:1911.03599) and the network's outputs alone, so that it can disagree
with ``pipelines``. Also the bare loop of the benches: as fast as one would write it inline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray


class Face(NamedTuple):
    """Pixels of the picture; ``landmarks`` are eyes, nose and corners of the mouth."""

    box: tuple[float, float, float, float]
    score: float
    landmarks: tuple[tuple[float, float], ...]


class Prepared(NamedTuple):
    """The network's input for one picture, and how much larger the picture is."""

    pixels: NDArray[np.float32]  # [1, 3, height, width]
    grown: tuple[float, float]


class BareCenterFace:
    """``detector(jpeg) -> faces``, strongest first, on one thread; in two steps for batches."""

    def __init__(
        self,
        path: Path | str,
        threads: int = 1,
        width: int = 320,
        height: int = 256,
        score_threshold: float = 0.5,
        max_overlap: float = 0.3,
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._width, self._height = width, height
        self._score_threshold, self._max_overlap = score_threshold, max_overlap
        cv2.setNumThreads(1)

    def __call__(self, jpeg: bytes) -> list[Face]:
        return self.run([self.prepare(jpeg)])[0]

    def prepare(self, jpeg: bytes) -> Prepared:
        picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None
        picture_height, picture_width = picture.shape[:2]
        ratio = min(self._width / picture_width, self._height / picture_height)
        width, height = round(picture_width * ratio), round(picture_height * ratio)
        canvas = np.zeros((self._height, self._width, 3), np.uint8)
        canvas[:height, :width] = cv2.resize(picture, (width, height))
        pixels = canvas[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32, order="C")
        return Prepared(pixels, (picture_width / width, picture_height / height))

    def run(self, batch: Sequence[Prepared]) -> list[list[Face]]:
        arrays = [prepared.pixels for prepared in batch]
        pixels = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        heat, scale, offset, points = self._session.run(None, {self._input: pixels})
        return [
            self._faces(heat[row, 0], scale[row], offset[row], points[row], prepared.grown)
            for row, prepared in enumerate(batch)
        ]

    def _faces(
        self,
        heat: NDArray[Any],
        scale: NDArray[Any],
        offset: NDArray[Any],
        points: NDArray[Any],
        grown: tuple[float, float],
    ) -> list[Face]:
        ys, xs = np.where(heat > self._score_threshold)
        order = np.argsort(-heat[ys, xs])
        ys, xs = ys[order], xs[order]
        box_h, box_w = np.exp(scale[0, ys, xs]) * 4, np.exp(scale[1, ys, xs]) * 4
        left = (xs + offset[1, ys, xs] + 0.5) * 4 - box_w / 2
        top = (ys + offset[0, ys, xs] + 0.5) * 4 - box_h / 2
        boxes = np.stack([left, top, left + box_w, top + box_h], axis=1)
        faces = []
        for i in self._suppress(boxes):
            marks = points[:, ys[i], xs[i]]
            mark_x = (left[i] + marks[1::2] * box_w[i]) * grown[0]
            mark_y = (top[i] + marks[0::2] * box_h[i]) * grown[1]
            x1, y1, x2, y2 = (boxes[i] * (grown * 2)).tolist()
            marks_xy = tuple(zip(mark_x.tolist(), mark_y.tolist(), strict=True))
            faces.append(Face((x1, y1, x2, y2), float(heat[ys[i], xs[i]]), marks_xy))
        return faces

    def _suppress(self, boxes: NDArray[Any]) -> list[int]:
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        waiting, kept = np.arange(len(boxes)), []
        while len(waiting):
            best, waiting = waiting[0], waiting[1:]
            kept.append(int(best))
            corner = np.minimum(boxes[best, 2:], boxes[waiting, 2:])
            sides = np.maximum(corner - np.maximum(boxes[best, :2], boxes[waiting, :2]), 0)
            shared = sides[:, 0] * sides[:, 1]
            union = areas[best] + areas[waiting] - shared
            waiting = waiting[shared <= self._max_overlap * union]
        return kept
