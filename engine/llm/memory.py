"""How much memory is free, on the device or in this container."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import psutil
import torch

CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken: of the GPU, or of the machine within the container's limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    available = int(psutil.virtual_memory().available)
    headroom = container_headroom()
    return available if headroom is None else min(available, headroom)


def container_headroom(root: Path = CGROUP_ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes below the tightest limit from this process's group to the root; None without one."""
    rooms = [_room(root / group) for group in _groups(membership)]
    return min((room for room in rooms if room is not None), default=None)


def _groups(membership: Path) -> list[PurePosixPath]:
    """Version 2 groups, relative to the mount, from the process's own up to the root."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("0::"):
            group = PurePosixPath(line[3:].lstrip("/"))
            return [group, *group.parents]
    return [PurePosixPath(".")]


def _room(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
