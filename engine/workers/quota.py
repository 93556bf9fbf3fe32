"""How many cores this container may use: cgroup quota (v2, then v1) and scheduler affinity.

ONNX Runtime's own default counts the machine's physical cores, also inside a container that may
use two of them; threads beyond the quota only wait for one another.
"""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def available_cores(root: Path = CGROUP_ROOT, membership: Path = MEMBERSHIP) -> float:
    """Cores that may be used at once: the smaller of affinity and quota; a quota may be 1.5."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = read_quota(root, membership)
    return cores if quota is None else min(cores, quota)


class Cores:
    """What this process may run on; its affinity may change, its quota is read once."""

    def __init__(self) -> None:
        self._quota = read_quota() or math.inf

    def are_several(self) -> bool:
        """Whether two threads can run at once for long; asks the kernel, about a microsecond."""
        return min(self._quota, len(os.sched_getaffinity(0))) >= 2.0


def threads_per_worker(configured: int, workers: int, cores: float) -> int:
    """``configured`` if it is not 0, else an equal share of the cores, at least one thread."""
    if configured > 0:
        return configured
    return max(1, int(cores) // workers)


def read_quota(root: Path = CGROUP_ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """The tightest quota on the way from this process's group to the root; None without one."""
    quotas = [_v2(root / group) for group in _ancestors(membership, "")]
    for controller in ("cpu", "cpu,cpuacct"):
        quotas += [_v1(root / controller / group) for group in _ancestors(membership, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def _ancestors(membership: Path, controller: str) -> list[PurePosixPath]:
    """Group paths, relative to the mount, from the process's own up to the root (``.``)."""
    root = PurePosixPath(".")
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return [root]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = PurePosixPath(path.lstrip("/"))
            return [group, *(group.parents if group != root else ())]
    return [root]


def _v2(group: Path) -> float | None:
    """``cpu.max`` reads ``max 100000`` or ``150000 100000`` (microseconds per period)."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
