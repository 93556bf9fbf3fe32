"""LitServe over a device that sleeps; needs LitServe alone.

``python litserve_server.py PORT MAX_BATCH_SIZE FIXED_MS PER_ITEM_MS`` serves ``POST /predict``
with ``{"input": number}``. One worker; a batch waits for company for 10 ms at most.
"""

import sys
import time
from typing import Any

import litserve  # type: ignore[import-not-found]
from fastapi import Request

BATCH_TIMEOUT_S = 0.010


class Sleeper(litserve.LitAPI):  # type: ignore[misc]
    """At module level: LitServe's worker processes import it."""

    def __init__(self, max_batch_size: int, fixed_s: float, per_item_s: float) -> None:
        super().__init__(max_batch_size=max_batch_size, batch_timeout=BATCH_TIMEOUT_S)
        self._fixed_s = fixed_s
        self._per_item_s = per_item_s

    def setup(self, device: str) -> None:
        """There is nothing to load."""

    # LitServe reads this annotation, as an object: no postponed evaluation in this file.
    def decode_request(self, request: Request) -> Any:
        return request["input"]

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, x: Any) -> Any:
        size = len(x) if isinstance(x, list) else 1
        time.sleep(self._fixed_s + self._per_item_s * size)
        return x

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"output": output}


def main() -> None:
    port, max_batch_size = int(sys.argv[1]), int(sys.argv[2])
    fixed_s, per_item_s = (float(each) / 1000 for each in sys.argv[3:5])
    api = Sleeper(max_batch_size, fixed_s, per_item_s)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    main()
