"""llama.cpp's own server through xllamacpp.

``python -m loadtest.peers.llama_cpp MODEL.gguf SLOTS`` prints its address, then llama.cpp's line
about the instruction sets in use, and serves until its standard input ends. One compute thread,
continuous batching, no prompt cache between requests.
"""

from __future__ import annotations

import sys

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
        xllamacpp.print_system_info() if hasattr(xllamacpp, "print_system_info") else "", flush=True
    )
    sys.stdin.read()


if __name__ == "__main__":
    main()
