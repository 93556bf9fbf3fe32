"""Mosec over CenterFace; needs Mosec, ONNX Runtime and OpenCV.

``CENTERFACE="MAX_BATCH_SIZE MODEL" python mosec_centerface.py --port PORT`` serves
``POST /inference`` with the bytes of a JPEG (Mosec owns the command line). One worker that decodes,
runs and answers; a batch waits for company for 10 ms at most.
"""

from __future__ import annotations

import os
from typing import Any

from mosec import Server, Worker  # type: ignore[import-not-found]

from loadtest.bare_centerface import BareCenterFace

MAX_WAIT_MS = 10


def settings() -> tuple[int, str]:
    """Batch size, path of the model."""
    size, model = os.environ["CENTERFACE"].split(" ", 1)
    return int(size), model


class Faces(Worker):  # type: ignore[misc]
    """At module level: Mosec's worker processes import it."""

    def __init__(self) -> None:
        super().__init__()
        self._detector = BareCenterFace(settings()[1])

    def deserialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: Any) -> Any:
        pictures = data if isinstance(data, list) else [data]
        answers = self._detector.run([self._detector.prepare(picture) for picture in pictures])
        return answers if isinstance(data, list) else answers[0]


def main() -> None:
    server = Server()
    server.append_worker(Faces, num=1, max_batch_size=settings()[0], max_wait_time=MAX_WAIT_MS)
    server.run()


if __name__ == "__main__":
    main()
