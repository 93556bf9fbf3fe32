from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.llm.memory import container_headroom, free_memory

pytestmark = pytest.mark.unit


def write_group(folder: Path, limit: str, used: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")


def test_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    write_group(tmp_path / "outer/inner", "max", 10)
    write_group(tmp_path / "outer", "1000", 300)
    write_group(tmp_path, "5000", 1000)
    assert container_headroom(tmp_path, membership) == 700


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    assert container_headroom(tmp_path, tmp_path / "nothing") is None
    write_group(tmp_path, "max", 10)
    assert container_headroom(tmp_path, tmp_path / "nothing") is None


def test_container_over_its_limit_has_no_room(tmp_path: Path) -> None:
    write_group(tmp_path, "100", 130)
    assert container_headroom(tmp_path, tmp_path / "nothing") == 0


def test_host_memory_is_some() -> None:
    assert free_memory(torch.device("cpu")) > 0
