"""A classifier without a server: decode, resize the short side, cut the middle, run, soft-max."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort

_INTERPOLATIONS = {"linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC, "area": cv2.INTER_AREA}


class ClassifyReference:
    """``reference(jpeg) -> [(class index, probability)]``, most probable first, all classes."""

    def __init__(
        self,
        path: Path | str,
        threads: int = 1,
        side: int = 224,
        mean: float = 127.0,
        scale: float = 1 / 128,
        crop_fraction: float = 0.875,
        interpolation: str = "cubic",
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._side, self._mean, self._scale = side, mean, scale
        self._crop_fraction = crop_fraction
        self._interpolation = _INTERPOLATIONS[interpolation]

    def __call__(self, jpeg: bytes) -> list[tuple[int, float]]:
        picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None
        height, width = picture.shape[:2]
        cut = round(min(height, width) * self._crop_fraction)
        top, left = (height - cut) // 2, (width - cut) // 2
        middle = picture[top : top + cut, left : left + cut]
        small = cv2.resize(middle, (self._side, self._side), interpolation=self._interpolation)
        rgb = cv2.cvtColor(small, cv2.COLOR_BGR2RGB).astype(np.float32)
        inputs = ((rgb - self._mean) * self._scale).transpose(2, 0, 1)[None]
        (logits,) = self._session.run(
            None, {self._input: np.ascontiguousarray(inputs, dtype=np.float32)}
        )
        powers = np.exp(logits[0].ravel() - logits[0].max())
        probabilities = powers / powers.sum()
        order = np.argsort(-probabilities)
        return [(int(index), float(probabilities[index])) for index in order]
