"""llama.cpp's own server in a process of its own: real, but of a model that fits into a test.

``python -m tests.fakes.llama_server MODEL.gguf`` prints its address and runs until its standard
input ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def llama_server(model: Path) -> Iterator[str]:
    """Yields the URL where the API begins."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.llama_server", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip() + "/v1"
        finally:
            process.stdin.close()
            process.wait(timeout=30.0)


def main() -> None:
    import xllamacpp  # only in the child: it is large, and not installed everywhere

    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 4096
    params.n_parallel = 2
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
