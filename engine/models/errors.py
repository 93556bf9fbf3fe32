"""Errors of the model store, a branch of :mod:`engine.errors`:

StoreError             root; the text says what happened and what to do
├── MissingModel       not in the cache (or no such file); the text names the command that gets it
├── MissingPackage     what an import needs is not installed; the text names the extra
├── ManifestError      a model's description or file is wrong; the text names the file and the key
└── SourceError        a download failed, timed out or is not the file the catalogue promises
"""

from __future__ import annotations

from engine.errors import EngineError


class StoreError(EngineError):
    """Root of the branch."""

    code = "store_error"


class MissingModel(StoreError):
    """A file that is needed is not there."""

    code = "missing_model"


class MissingPackage(StoreError):
    """A package that is needed is not installed."""

    code = "missing_package"


class ManifestError(StoreError):
    """A model's description, or the file that it describes, cannot be used."""

    code = "invalid_manifest"


class SourceError(StoreError):
    """A source did not deliver what the catalogue promises."""

    code = "source_failed"
