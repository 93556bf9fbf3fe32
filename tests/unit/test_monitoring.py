"""Dashboard and alerts speak of metrics that the gateway really exports, with their labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from engine.composite import CompositeEngine
from engine.types import DropReason
from gateway.api.metrics import MetricsApi
from gateway.metrics import LoopLag, render
from gateway.net.admission import ConnectionTable
from gateway.session.registry import SessionRegistry
from tests.fakes.engine import FakeEngine
from tests.fakes.text_engine import TextEngine

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parents[2] / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0][
    "rules"
]
# Words of PromQL and Grafana that look like names.
WORDS = {
    *("sum", "by", "rate", "increase", "histogram_quantile", "le", "on", "or", "label_values"),
    *("model", "reason", "code", "instance", "statistic", "max", "mean", "superseded", "m"),
    "priority",
    *("hop", "version"),
}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Label names by sample name, of a gateway that has done a bit of everything."""
    registry = SessionRegistry(1)
    registry.tally_of("faces").count_dropped(DropReason.LATE)
    registry.observe_latency("faces", 0.01)
    registry.text_of("words").start().end("stop")
    table = ConnectionTable(9)
    engine = CompositeEngine([FakeEngine(("faces",)), TextEngine(("words",))])
    api = MetricsApi(engine, registry, table, LoopLag(), lambda request: "")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(render(list(api.families())).decode()):
        found.setdefault(f"{family.name}{'_total' if family.type == 'counter' else ''}", set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def alert_expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]


EXPRESSIONS = [*dashboard_expressions(), *alert_expressions()]


@pytest.mark.parametrize(
    ("title", "expression"), EXPRESSIONS, ids=[title for title, _ in EXPRESSIONS]
)
def test_every_metric_exists(title: str, expression: str, exported: dict[str, set[str]]) -> None:
    without_texts = re.sub(r'"[^"]*"|\$\w+|\[[^\]]*\]', "", expression)
    names = set(re.findall(r"[a-z][a-z_0-9]+[a-z0-9]", without_texts)) - WORDS
    assert names
    assert names <= exported.keys(), f"{title}: {names - exported.keys()}"


def test_panels_do_not_overlap_and_ids_differ() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))


def test_every_alert_says_what_happened_and_what_to_look_at() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"].keys() == {"summary", "description"}
