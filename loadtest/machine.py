"""What the benches share: pinning, medians, the machine line and the RESULT line."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

LIBRARIES = (
    *("onnxruntime", "onnxruntime-gpu", "aiohttp", "uvloop", "websockets"),
    "opencv-python-headless",
)


def describe() -> str:
    """One line: processor, cores, kernel, Python and the libraries that matter."""
    libraries = " ".join(f"{name} {found}" for name in LIBRARIES if (found := _version(name)))
    return (
        f"{_processor()} · {os.cpu_count()} cores · Linux {platform.release()} · "
        f"Python {platform.python_version()} · {libraries}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def pin(process_ids: Iterable[int], core: int) -> None:
    """Pin every thread of these processes; threads started later inherit it."""
    for process_id in process_ids:
        for task in Path(f"/proc/{process_id}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})


def children(process_id: int) -> list[int]:
    """Worker processes of a gateway."""
    return [child.pid for child in psutil.Process(process_id).children(recursive=True)]


def rss_megabytes(process_id: int) -> float:
    """Resident memory, MB."""
    return float(psutil.Process(process_id).memory_info().rss) / 1e6


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile; ``share`` in 0..1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median with its range, for people."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} … {high:.{digits}f})"


def print_result(**figures: float | int | str) -> None:
    """The last line of every bench: ``RESULT key=value …``."""
    parts = [
        f"{key}={value:.3f}" if isinstance(value, float) else f"{key}={value}"
        for key, value in figures.items()
    ]
    print("RESULT " + " ".join(parts), flush=True)
