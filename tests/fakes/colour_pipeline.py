"""A pipeline that says what colours it saw, so that an answer tells whose picture it is about.

The answer is ``{"width": w, "height": h, "left": [b, g, r], "right": [b, g, r]}``: the size as
drawn, and the mean colours of the two halves. A batch runs as one array, as in a network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.manifest import InputSpec, Manifest
from engine.pipeline import Output, Resources
from pipelines import images

SPEC = InputSpec(width=32, height=32, fit="stretch", interpolation="area")


class Colours:
    """Implements :class:`engine.pipeline.Pipeline`."""

    def warm_up(self, batch_size: int) -> None:
        self.run([(1, 1, np.zeros((32, 32, 3), np.uint8))] * batch_size)

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> Any:
        picture = images.decode(payload)
        height, width = picture.shape[:2]
        return width, height, images.fit(picture, SPEC)[0]

    def run(self, batch: Sequence[Any]) -> Sequence[Any]:
        pixels = np.stack([tile for _, _, tile in batch]).astype(np.float64)
        left, right = pixels[:, :, :16], pixels[:, :, 16:]
        return list(zip(left.mean(axis=(1, 2)), right.mean(axis=(1, 2)), strict=True))

    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        width, height, _ = prepared
        left, right = (_rounded(colour) for colour in raw)
        answer = {"width": width, "height": height, "left": left, "right": right}
        return Output(data=json.dumps(answer).encode())


def build(manifest: Manifest, resources: Resources) -> Colours:
    return Colours()


def _rounded(colour: NDArray[np.float64]) -> list[int]:
    return [round(float(channel)) for channel in colour]
