"""A model that does nothing, so that what is left is the price of the path itself."""

from __future__ import annotations

from collections.abc import Sequence

from engine.manifest import Manifest
from engine.pipeline import Output, Resources


class NullPipeline:
    """Answers every item with ``{}`` and does not look at it."""

    def warm_up(self, batch_size: int) -> None:
        pass

    def prepare(self, payload: memoryview, meta: bytes, options: bytes) -> None:
        return None

    def run(self, batch: Sequence[None]) -> Sequence[None]:
        return batch

    def interpret(self, prepared: None, raw: None, options: bytes) -> Output:
        return Output(data=b"{}")


def build(manifest: Manifest, resources: Resources) -> NullPipeline:
    return NullPipeline()
