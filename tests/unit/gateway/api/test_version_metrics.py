from __future__ import annotations

from typing import Any

import pytest

from engine.base import ModelStatistics, VersionStatistics
from gateway.api.version_metrics import version_families

pytestmark = pytest.mark.unit


def statistics(**figures: Any) -> ModelStatistics:
    nothing: dict[str, Any] = {
        "version": "2",
        "ready": True,
        "reason": "",
        "providers": (),
        "worker_rss_bytes": (),
        **dict.fromkeys(("workers_alive", "workers_wanted", "worker_restarts", "lanes"), 0),
        **dict.fromkeys(("queued", "in_flight", "accepted", "results"), 0),
    }
    return ModelStatistics(model="m", **{**nothing, **figures})


def samples(**figures: Any) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(each.labels.values()): each.value for each in family.samples}
        for family in version_families((statistics(**figures),))
    }


def test_reloads_and_replacements_are_counted_by_how_and_why() -> None:
    found = samples(
        reloads={"done": 3, "rolled_back": 1},
        workers_replaced={"memory": 2},
        worker_memory_share=0.75,
    )
    assert found["clawstream_model_reloads"] == {("m", "done"): 3, ("m", "rolled_back"): 1}
    assert found["clawstream_workers_replaced"] == {("m", "memory"): 2}
    assert found["clawstream_worker_memory_ratio"] == {("m",): 0.75}


def test_a_version_that_is_there_twice_is_told_once_in_its_stronger_role() -> None:
    versions = (
        VersionStatistics(version="2", state="active"),
        VersionStatistics(version="2", state="draining"),
        VersionStatistics(version="3", state="rejected", reason="did not start"),
    )
    assert samples(versions=versions)["clawstream_model_version"] == {
        ("m", "2", "active"): 1.0,
        ("m", "3", "rejected"): 1.0,
    }
