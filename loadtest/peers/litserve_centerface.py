"""LitServe over CenterFace; needs LitServe, ONNX Runtime and OpenCV.

``python litserve_centerface.py PORT MAX_BATCH_SIZE MODEL`` serves ``POST /predict`` with the bytes
of a JPEG in base64, ``{"input": text}``. One worker that decodes, runs and answers; a batch waits
for company for 10 ms at most.
"""

import base64
import sys
from pathlib import Path
from typing import Any

import litserve  # type: ignore[import-not-found]
from fastapi import Request

from loadtest.bare_centerface import BareCenterFace, Face, Prepared

BATCH_TIMEOUT_S = 0.010


class Faces(litserve.LitAPI):  # type: ignore[misc]
    """At module level: LitServe's worker processes import it."""

    def __init__(self, max_batch_size: int, model: Path) -> None:
        super().__init__(max_batch_size=max_batch_size, batch_timeout=BATCH_TIMEOUT_S)
        self._model = model

    def setup(self, device: str) -> None:
        self._detector = BareCenterFace(self._model)

    # LitServe reads this annotation, as an object: no postponed evaluation in this file.
    def decode_request(self, request: Request) -> Prepared:
        return self._detector.prepare(base64.b64decode(request["input"]))

    def batch(self, inputs: list[Prepared]) -> list[Prepared]:
        return inputs

    def predict(self, x: Any) -> Any:
        is_batch = not isinstance(x, Prepared)
        answers = self._detector.run(x if is_batch else [x])
        return answers if is_batch else answers[0]

    def unbatch(self, output: list[list[Face]]) -> list[list[Face]]:
        return output

    def encode_response(self, output: list[Face]) -> dict[str, Any]:
        return {"faces": output}


def main() -> None:
    port, max_batch_size, model = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    api = Faces(max_batch_size, model)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
