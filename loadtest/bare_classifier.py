"""EfficientNet-Lite without a server: decode, crop, resize, run, sort."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnxruntime as ort

SIDE, CROP = 224, 0.875
TOP = 5


class BareClassifier:
    """``classifier(jpeg) -> class numbers``, most probable first. One picture at a time."""

    def __init__(self, path: Path | str, threads: int = 1) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        cv2.setNumThreads(1)

    def __call__(self, jpeg: bytes) -> list[int]:
        picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert picture is not None
        height, width = picture.shape[:2]
        side = round(CROP * min(height, width))
        top, left = (height - side) // 2, (width - side) // 2
        crop = picture[top : top + side, left : left + side]
        small = cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        pixels = (small[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32) - 127.0) / 128.0
        (scores,) = self._session.run(None, {self._input: pixels})
        best: list[int] = np.argsort(-scores[0])[:TOP].tolist()
        return best
