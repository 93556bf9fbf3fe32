"""Which versions of a model lie on disk, and which of them are to be served.

A folder holds one numbered folder per version, with a ``model.onnx`` and perhaps its TOML::

    models/helmets/3/model.onnx     models/helmets/4/model.onnx
                     model.toml                      model.int8.onnx

Any other model has the one version that its manifest names. Beside a version's ONNX file lie its
variants, ``STEM.VARIANT.onnx``, which ``clawstream models quantize`` makes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from engine.errors import UnknownModel
from engine.manifest import Manifest
from engine.models.description import load_model_file
from engine.models.errors import MissingModel
from engine.models.verdicts import Verdict, VerdictFile

logger = logging.getLogger(__name__)

ORIGINAL = "fp32"  # the variant that is the model's own file
LATEST, ALL = "latest", "all"
_MAX_VERSIONS = 1000
_MODEL_FILE = "model.onnx"

Variants = tuple[Manifest, ...]
"""One version in each of its configured variants, best first."""
Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of every file that belongs to a model."""


def find_versions(folder: Path) -> list[str]:
    """The version folders in ``folder``, oldest first; empty when it has none."""
    if not folder.is_dir():
        return []
    names = [entry.name for entry in folder.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return sorted(names, key=int)[-_MAX_VERSIONS:]


def variant_path(model_path: Path, variant: str) -> Path:
    """Where a model's variant lies."""
    if variant == ORIGINAL:
        return model_path
    return model_path.with_name(f"{model_path.stem}.{variant}{model_path.suffix}")


class Repository:
    """Reads one model's versions; every call touches the disk and may block for milliseconds.

    Args:
        folder: that holds the version folders, or None: ``resolve`` names the only version.
        policy: ``("latest",)``, ``("all",)`` or version numbers.
        variants: best first; each version must have them all.
        verdicts: where it is kept which version folders lost their trial; None: nowhere.
    """

    def __init__(
        self,
        name: str,
        *,
        folder: Path | None,
        resolve: Callable[[], Manifest],
        policy: tuple[str, ...] = (LATEST,),
        variants: tuple[str, ...] = (ORIGINAL,),
        verdicts: VerdictFile | None = None,
    ) -> None:
        self._name = name
        self._folder = folder
        self._resolve = resolve
        self._policy = policy
        self._variants = variants
        self._verdicts = verdicts if folder is not None else None

    def versions(self) -> tuple[str, ...]:
        """Every version that is there, oldest first."""
        if self._folder is None:
            return (self._resolve().version,)
        return tuple(find_versions(self._folder))

    def read(self, version: str | None = None) -> tuple[Variants, ...]:
        """What is to be served, oldest first: what the policy says, or one ``version``.

        Raises:
            UnknownModel: there is no such version.
            MissingModel: there is no version, or one lacks a variant.
            ManifestError: a version's files cannot be used.
        """
        there = self.versions()
        return self._read(self._wanted(there) if version is None else (version,), there)

    def read_accepted(self) -> tuple[Variants, ...]:
        """As ``read``, but ``latest`` and ``all`` pass over what is ``rejected``, unless nothing
        else is there."""
        there, rejected = self.versions(), self.rejected()
        accepted = tuple(version for version in there if version not in rejected)
        return self._read(self._wanted(accepted or there), there)

    def _read(self, wanted: tuple[str, ...], there: tuple[str, ...]) -> tuple[Variants, ...]:
        if not there:
            raise MissingModel(f"model {self._name}: {self._folder} holds no version folder")
        for each in wanted:
            if each not in there:
                raise UnknownModel(
                    f"model {self._name!r} has no version {each!r}; it has {', '.join(there)}"
                )
        return tuple(self._variants_of(each) for each in wanted)

    def stamp(self) -> Stamp:
        """Changes when a file does. Two equal ones a while apart: nobody is copying any more."""
        if self._folder is None:
            files = [Path(path) for path in self._resolve().files.values()]
            paths = [path for file in files for path in sorted(file.parent.glob(f"{file.stem}.*"))]
        else:
            folders = [self._folder / version for version in find_versions(self._folder)]
            paths = [path for folder in folders for path in sorted(folder.iterdir())]
        return tuple(_stamp_of(path) for path in paths)

    # --- versions that lost their trial

    def fingerprint(self, version: str) -> str:
        """Changes when a file of the version does, by name, size and time of change."""
        if self._folder is None:
            return ""
        try:
            paths = sorted((self._folder / version).iterdir())
        except OSError:
            paths = []  # it is gone
        stamps = [(path.name, *_stamp_of(path)[1:]) for path in paths]
        lines = [f"{name}\0{size}\0{time_ns}" for name, size, time_ns in stamps]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def rejected(self) -> dict[str, str]:
        """Versions that lost their trial, and why. It holds until their files change."""
        return {version: verdict.reason for version, verdict in self._standing().items()}

    def reject(self, version: str, fingerprint: str, reason: str) -> None:
        """Keep that ``version`` lost its trial when its files had this ``fingerprint``."""
        verdict = Verdict(fingerprint=fingerprint, reason=reason)
        self._keep({**self._standing(), version: verdict})

    def forgive(self, version: str) -> None:
        """Somebody wants it tried again."""
        standing = self._standing()
        if standing.pop(version, None) is not None:
            self._keep(standing)

    def _standing(self) -> dict[str, Verdict]:
        if self._verdicts is None:
            return {}
        return {
            version: verdict
            for version, verdict in self._verdicts.read().items()
            if verdict.fingerprint == self.fingerprint(version)
        }

    def _keep(self, verdicts: Mapping[str, Verdict]) -> None:
        if self._verdicts is None:
            return
        try:
            self._verdicts.write(verdicts)
        except OSError as error:
            logger.warning(
                "%s: a restart will not know which versions lost their trial: %s", self._name, error
            )

    # --- helpers

    def _wanted(self, there: tuple[str, ...]) -> tuple[str, ...]:
        if self._policy == (LATEST,):
            return there[-1:]
        if self._policy == (ALL,):
            return there
        return tuple(sorted(self._policy, key=lambda version: (len(version), version)))

    def _variants_of(self, version: str) -> Variants:
        manifest = self._manifest(version)
        return tuple(_in_variant(manifest, variant) for variant in self._variants)

    def _manifest(self, version: str) -> Manifest:
        if self._folder is None:
            return msgspec.structs.replace(self._resolve(), name=self._name)
        manifest = load_model_file(self._folder / version / _MODEL_FILE)
        return msgspec.structs.replace(manifest, name=self._name, version=version)


def _in_variant(manifest: Manifest, variant: str) -> Manifest:
    if variant == ORIGINAL:
        return manifest
    path = variant_path(Path(manifest.files.get("model", "")), variant)
    if not path.is_file():
        raise MissingModel(
            f"model {manifest.name} version {manifest.version} has no variant {variant}: there is "
            f"no file {path}; make it with `clawstream models quantize`"
        )
    return msgspec.structs.replace(
        manifest,
        version=f"{manifest.version}+{variant}",
        files={**manifest.files, "model": str(path)},
    )


def _stamp_of(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        return str(path), 0, 0  # gone since it was listed
    return str(path), status.st_size, status.st_mtime_ns


class FileWatch:
    """Tells once that files have changed and then stayed as they are for one look (pure)."""

    def __init__(self, stamp: Stamp) -> None:
        self._known = stamp
        self._last = stamp

    def has_settled(self, stamp: Stamp) -> bool:
        """Whether a change is complete; ``stamp`` is what the disk says now."""
        is_still, self._last = stamp == self._last, stamp
        if stamp == self._known or not is_still:
            return False
        self._known = stamp
        return True
