"""A pipeline that obeys ``Item.options`` as ``tests.fakes.pipelines`` says, and whose answers
depend on the payload alone: ``{"bytes": n, "sum": s}``."""

from __future__ import annotations

import json
from typing import Any

from engine.manifest import Manifest
from engine.pipeline import Output, Resources
from tests.fakes.pipelines import Scripted


class Quiet(Scripted):
    def interpret(self, prepared: Any, raw: Any, options: bytes) -> Output:
        super().interpret(prepared, raw, options)
        answer = prepared["answer"]
        return Output(data=json.dumps({"bytes": answer["bytes"], "sum": answer["sum"]}).encode())


def build(manifest: Manifest, resources: Resources) -> Quiet:
    return Quiet(manifest.options)
