"""llama.cpp's own server through xllamacpp.

``python -m loadtest.peers.llama_cpp MODEL.gguf SLOTS`` prints its address, then a line with its
settings and llama.cpp's own about the instruction sets in use, and serves until its standard input
ends. One compute thread, continuous batching, no prompt cache between requests.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

TOKENS_PER_SLOT = 256


def main() -> None:
    import xllamacpp

    slots = int(sys.argv[2])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.n_parallel = slots
    parameters.n_ctx = TOKENS_PER_SLOT * slots
    parameters.cont_batching = True
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    print(
        f"xllamacpp {version('xllamacpp')}, {Path(sys.argv[1]).name}, n_threads 1, "
        f"n_parallel {slots}, n_ctx {parameters.n_ctx}, n_batch {parameters.n_batch}, "
        f"cont_batching; {xllamacpp.get_system_info()}",
        flush=True,
    )
    sys.stdin.read()


if __name__ == "__main__":
    main()
