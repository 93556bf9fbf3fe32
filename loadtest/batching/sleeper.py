"""A pipeline whose device sleeps; imported in worker processes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from engine.manifest import Manifest
from engine.pipeline import Output, Resources


class Sleeper:
    """A run of n items takes ``fixed_ms + per_item_ms * n``; the answer is the payload."""

    def __init__(self, fixed_ms: float, per_item_ms: float) -> None:
        self._fixed_s = fixed_ms / 1000
        self._per_item_s = per_item_ms / 1000

    def warm_up(self, batch_size: int) -> None:
        self.run([b"0"] * batch_size)

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> bytes:
        return bytes(payload)

    def run(self, batch: Sequence[bytes]) -> Sequence[bytes]:
        time.sleep(self._fixed_s + self._per_item_s * len(batch))
        return batch

    def interpret(self, prepared: bytes, raw: bytes, options: bytes) -> Output:
        return Output(data=raw)


def build(manifest: Manifest, resources: Resources) -> Sleeper:
    """Options: ``fixed_ms`` and ``per_item_ms``."""
    return Sleeper(manifest.options["fixed_ms"], manifest.options["per_item_ms"])
