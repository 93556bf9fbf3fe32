"""A real gateway process that serves a scripted pipeline, for tests of what it promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.gateway_process import GatewayProcess


def serve_scripted(
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
    serving: Mapping[str, Any] | None = None,
    sections: str = "",
) -> GatewayProcess:
    """A gateway (not started) with one model, ``scripted``.

    ``options`` are those of ``tests.fakes.pipelines.build_scripted``, ``serving`` the model's
    keys in the configuration, ``sections`` more TOML.
    """
    model = folder / "scripted.onnx"
    model.touch()
    inline = ", ".join(f"{key} = {json.dumps(value)}" for key, value in (options or {}).items())
    model.with_suffix(".toml").write_text(
        f'pipeline = "tests.fakes.pipelines:build_scripted"\noptions = {{ {inline} }}\n'
    )
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in (serving or {}).items())
    return GatewayProcess(
        f'[models.scripted]\npath = "{model}"\n{keys}\n{sections}\n', start_s=60.0
    )
