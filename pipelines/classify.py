"""The most probable classes of a picture, from any network with one score per class.

Output: ``[B, C]`` (or ``[B, C, 1, 1]``) logits, or probabilities when ``softmax = false``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.manifest import Manifest
from engine.pipeline import Resources
from pipelines.answers import Classification, ClassScore, label_of, rounded_score
from pipelines.base import PicturePipeline, read_options
from pipelines.boxes import Placement

Array = NDArray[np.floating[Any]]


class ClassifyOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest's ``[options]`` for kind ``classify``."""

    top_k: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 5
    softmax: bool = True  # false: the network ends with its own softmax


def softmax(logits: Array) -> NDArray[np.float64]:
    """Probabilities ``[C]`` of logits ``[C]``, safe for any finite logits."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max())
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum()
    return probabilities


def top_classes(scores: Array, k: int) -> NDArray[np.intp]:
    """Indices of the ``k`` highest of ``scores [C]``, highest first; of equals, the lower index."""
    return np.argsort(-scores, kind="stable")[:k]


class ClassReader:
    """Reads one picture's class scores."""

    finds_regions = False

    def __init__(self, labels: Sequence[str], options: ClassifyOptions) -> None:
        self._labels = labels
        self._options = options

    def read(self, outputs: Sequence[Array], placement: Placement) -> Classification:
        """Raises ValueError when the first output is not one score per class, or labels differ."""
        shape = outputs[0].shape
        if not shape or any(size != 1 for size in shape[1:]):
            raise ValueError(
                f"expected an output [batch, classes], got {['batch', *shape]}; "
                "kind must be another for a network that does not score whole pictures"
            )
        scores = outputs[0].reshape(-1)
        if self._labels and len(self._labels) != len(scores):
            raise ValueError(f"{len(self._labels)} labels, but {len(scores)} classes")
        probabilities = softmax(scores) if self._options.softmax else scores
        classes = tuple(
            ClassScore(label_of(self._labels, index), index, rounded_score(probabilities[index]))
            for index in top_classes(probabilities, self._options.top_k).tolist()
        )
        return Classification(placement.width, placement.height, classes)


def build(manifest: Manifest, resources: Resources) -> PicturePipeline:
    """Raises StartupError when manifest and network do not fit."""
    reader = ClassReader(manifest.labels, read_options(manifest, ClassifyOptions))
    return PicturePipeline(manifest, resources, reader)
