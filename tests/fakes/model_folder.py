"""A folder with numbered versions whose pipeline is ``tests.fakes.pipelines:build_scripted``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.networks import EMPTY_NETWORK


def add_version(folder: Path, version: int, **options: Any) -> None:
    """Write version ``version``; ``options`` (text, numbers) are the scripted pipeline's."""
    target = folder / str(version)
    target.mkdir(parents=True)
    lines = ['pipeline = "tests.fakes.pipelines:build_scripted"', "[options]"]
    lines += [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in options.items()
    ]
    (target / "model.toml").write_text("\n".join(lines))
    # Last: a folder without its model is no version yet.
    (target / "model.onnx").write_bytes(EMPTY_NETWORK)
