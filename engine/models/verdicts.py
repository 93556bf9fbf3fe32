"""Which versions of a model lost their trial on this machine, kept over restarts.

The file lies in the store's ``home`` and not beside the model: folders of models are mounted
read-only and shared, and whether a version is slow depends on the machine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Against a version whose files had this ``fingerprint``."""

    fingerprint: str
    reason: str


class VerdictFile:
    """The verdicts of one model, by version; both calls may block for milliseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Verdict]:
        """Empty when there is no file, or none that can be read: then a version is tried again,
        which a trial makes safe."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, Verdict])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}

    def write(self, verdicts: Mapping[str, Verdict]) -> None:
        """Replace them all by one rename; raises OSError and leaves what was there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f"{self.path.name}.new")
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(verdicts)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.path)


def verdict_path(home: Path, name: str, folder: Path) -> Path:
    """Where the verdicts lie on what is served as ``name`` from ``folder``."""
    digest = hashlib.sha256(f"{name}\0{folder}".encode()).hexdigest()[:16]
    return home / "verdicts" / f"{folder.name[:64]}-{digest}.json"
