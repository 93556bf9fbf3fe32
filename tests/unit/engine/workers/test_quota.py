from __future__ import annotations

from pathlib import Path

import pytest

from engine.workers import quota
from engine.workers.quota import Cores, available_cores, read_quota, threads_per_worker

pytestmark = pytest.mark.unit


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    path = tmp_path / "self-cgroup"
    path.write_text("4:cpu,cpuacct:/v1/box\n0::/slice/box\n")
    return path


def test_a_v2_quota_is_read_from_the_own_group(tmp_path: Path, membership: Path) -> None:
    write(tmp_path / "slice/box/cpu.max", "150000 100000\n")
    assert read_quota(tmp_path, membership) == 1.5


def test_the_tightest_ancestor_counts(tmp_path: Path, membership: Path) -> None:
    write(tmp_path / "slice/box/cpu.max", "max 100000\n")
    write(tmp_path / "slice/cpu.max", "200000 100000\n")
    write(tmp_path / "cpu.max", "400000 100000\n")
    assert read_quota(tmp_path, membership) == 2.0


def test_inside_a_container_the_own_group_is_the_root(tmp_path: Path) -> None:
    write(tmp_path / "cpu.max", "50000 100000\n")
    assert read_quota(tmp_path, tmp_path / "missing") == 0.5


def test_a_v1_quota_is_read(tmp_path: Path, membership: Path) -> None:
    write(tmp_path / "cpu,cpuacct/v1/box/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "cpu,cpuacct/v1/box/cpu.cfs_period_us", "100000\n")
    assert read_quota(tmp_path, membership) == 3.0


@pytest.mark.parametrize("text", ["max 100000\n", "rubbish\n", "", "1 0\n"])
def test_no_readable_quota_is_no_quota(tmp_path: Path, membership: Path, text: str) -> None:
    write(tmp_path / "slice/box/cpu.max", text)
    assert read_quota(tmp_path, membership) is None


def test_a_quota_is_capped_by_the_affinity(tmp_path: Path, membership: Path) -> None:
    write(tmp_path / "cpu.max", "100000000 100000\n")
    assert 1 <= available_cores(tmp_path, membership) < 1000


@pytest.mark.parametrize(
    ("configured", "workers", "cores", "threads"),
    [
        (0, 1, 2.0, 2),
        (0, 2, 2.0, 1),
        (0, 3, 2.0, 1),
        (0, 1, 0.5, 1),
        (0, 1, 3.9, 3),
        (5, 2, 2.0, 5),
    ],
)
def test_threads_are_an_equal_share_unless_configured(
    configured: int, workers: int, cores: float, threads: int
) -> None:
    assert threads_per_worker(configured, workers, cores) == threads


@pytest.mark.parametrize(
    ("limit", "affinity", "are_several"),
    [(None, {0, 1}, True), (None, {3}, False), (1.5, {0, 1, 2, 3}, False), (2.0, {0, 1}, True)],
)
def test_several_cores_are_those_of_quota_and_affinity(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, affinity: set[int], are_several: bool
) -> None:
    monkeypatch.setattr(quota, "read_quota", lambda: limit)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: affinity)
    assert Cores().are_several() is are_several


def test_an_affinity_that_changes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "read_quota", lambda: None)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    cores = Cores()
    assert cores.are_several()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {1})
    assert not cores.are_several()
