"""Mosec over a device that sleeps; needs Mosec alone.

``SLEEPER="MAX_BATCH_SIZE FIXED_MS PER_ITEM_MS" python mosec_server.py --port PORT`` serves
``POST /inference`` with any JSON (Mosec owns the command line). One worker; a batch waits for
company for 10 ms at most.
"""

from __future__ import annotations

import os
import time
from typing import Any

from mosec import Server, Worker  # type: ignore[import-not-found]

MAX_WAIT_MS = 10


def settings() -> tuple[int, float, float]:
    """Batch size, seconds per batch, seconds per item."""
    size, fixed_ms, per_item_ms = os.environ["SLEEPER"].split()
    return int(size), float(fixed_ms) / 1000, float(per_item_ms) / 1000


class Sleeper(Worker):  # type: ignore[misc]
    """At module level: Mosec's worker processes import it."""

    def __init__(self) -> None:
        super().__init__()
        _, self._fixed_s, self._per_item_s = settings()

    def forward(self, data: Any) -> Any:
        size = len(data) if isinstance(data, list) else 1
        time.sleep(self._fixed_s + self._per_item_s * size)
        return data


def main() -> None:
    server = Server()
    server.append_worker(Sleeper, num=1, max_batch_size=settings()[0], max_wait_time=MAX_WAIT_MS)
    server.run()


if __name__ == "__main__":
    main()
