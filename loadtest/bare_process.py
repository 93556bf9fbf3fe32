"""The bare inference loop in its own pinned process, the yardstick of the benches."""

from __future__ import annotations

import os
import pickle  # between the two halves of this file only, never from a socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from loadtest.bare_centerface import BareCenterFace
from loadtest.bare_classifier import BareClassifier

LOOPS = {"centerface": BareCenterFace, "classifier": BareClassifier}


class BareProcess:
    """Runs one of ``LOOPS`` over ``pictures``, on request; a thread of the runtime per core."""

    def __init__(
        self, model: Path, pictures: list[bytes], *, core: int | None, loop: str = "centerface"
    ) -> None:
        """``core`` None: all of them."""
        self._model = model
        self._pictures = pictures
        self._arguments = [loop, "" if core is None else str(core)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BareProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.bare_process", str(self._model), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        pickle.dump(self._pictures, self._process.stdin)
        self._process.stdin.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate(timeout=10)

    def measure(self, seconds: float) -> float:
        """Frames per second over about ``seconds``."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n".encode())
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def main() -> None:
    model, loop, core = sys.argv[1:4]
    cores = {int(core)} if core else os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    pictures: list[bytes] = pickle.load(sys.stdin.buffer)
    detector = LOOPS[loop](model, threads=len(cores))
    for _ in range(10):
        detector(pictures[0])
    for line in sys.stdin.buffer:
        seconds = float(line)
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            detector(pictures[count % len(pictures)])
            count += 1
        print(count / (time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main()
