"""How evenly text is delivered, and what that costs. Parts are modules of ``loadtest.delivery``.

python -m loadtest.bench_delivery [--parts virtual …]
"""

from __future__ import annotations

import argparse
from importlib import import_module

from loadtest import machine

# Name -> what it measures. Each module has ``run() -> dict[str, float]``, which prints a table and
# returns its figures for the RESULT line.
PARTS = {
    "virtual": "pacing policies side by side, in virtual time",
    "laxity": "streams that stay smooth when the scheduler knows what readers hold, and when not",
    "sockets": "a thousand answers on a thousand sockets, and the cost of a token",
    "slow_reader": "clients that read too slowly or not at all",
    "resume": "answers whose connections break again and again",
    "live": "the real model: how even its answers are where they are read, and a burst of requests",
    "first_token": "from a worker's first token to its reader",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parts = parser.parse_args().parts
    print(machine.describe())
    figures: dict[str, float] = {}
    for part in parts:
        print(f"\n{part}: {PARTS[part]}\n", flush=True)
        figures |= import_module(f"loadtest.delivery.{part}").run()
    machine.print_result(**figures)


if __name__ == "__main__":
    main()
