"""The option ``--out``: what cannot be written is told before anything else is done."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.commands.exits import CommandError, ExitCode


def check_video_file(path: Path | None) -> Path | None:
    """As ``check_out_file``, for a file that is named as an MP4 file."""
    if path is not None and path.suffix.lower() != ".mp4":
        raise CommandError(ExitCode.USAGE, f"--out: {path} is to be an MP4 file, NAME.mp4")
    return check_out_file(path)


def check_out_file(path: Path | None) -> Path | None:
    """``path``, if a file can be written there; one that is there already is left as it is.

    Raises:
        CommandError: it cannot; the text says why.
    """
    if path is None:
        return None
    try:
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CommandError(ExitCode.USAGE, f"--out: cannot write {path}: {reason}") from error
    return path


def check_not_source(out: Path | None, source: str) -> None:
    """Refuse to write over what is read, however the two are spelled or linked.

    Raises:
        CommandError: ``out`` and ``source`` are one file.
    """
    if out is None:
        return
    try:
        is_source = os.path.samefile(out, os.path.expanduser(source))
    except OSError:  # one of them is no file that is there: a new file, a camera, an address
        return
    if is_source:
        raise CommandError(ExitCode.USAGE, f"--out: {out} is the source itself")
