"""The pipelines that come with clawstream, chosen by the manifest's ``kind``."""

from __future__ import annotations

import cv2

from engine.errors import StartupError
from engine.manifest import Manifest
from engine.pipeline import Pipeline, Resources
from pipelines import classify, detect, faces

_KINDS = {"faces": faces.build, "classify": classify.build, "detect": detect.build}


def build(manifest: Manifest, resources: Resources) -> Pipeline:
    """Build the pipeline of ``manifest.kind``; called once, in the worker process.

    Raises:
        StartupError: unknown kind, or manifest and network do not fit; the text says which.
    """
    kind = _KINDS.get(manifest.kind)
    if kind is None:
        known = ", ".join(_KINDS)
        raise StartupError(
            f"model {manifest.name!r}: kind must be one of {known}, got {manifest.kind!r}; "
            "a pipeline of your own is named by `pipeline`"
        )
    _settle_opencv()
    return kind(manifest, resources)


def _settle_opencv() -> None:
    """Process-wide, so only here: the worker's own threads are the parallelism, and what OpenCV
    logs about a bad picture is told to its sender instead."""
    cv2.setNumThreads(1)
    silent = 0
    if hasattr(cv2, "setLogLevel"):  # moved by OpenCV 5
        cv2.setLogLevel(silent)
    else:
        cv2.utils.logging.setLogLevel(silent)
