"""What the live table shows of two looks at a gateway's metrics."""

from __future__ import annotations

import pytest
from rich.console import Console

from engine.base import Engine
from engine.types import DropReason
from gateway.api.metrics import MetricsApi
from gateway.commands.scrape import Change, Scrape, parse
from gateway.commands.top import view
from gateway.metrics import LoopLag, render
from gateway.net.admission import ConnectionTable
from gateway.session.registry import SessionRegistry
from tests.fakes.engine import FakeEngine
from tests.fakes.text_engine import TextEngine

pytestmark = pytest.mark.unit


def look(at: float, registry: SessionRegistry, engine: Engine) -> Scrape:
    api = MetricsApi(engine, registry, ConnectionTable(9), LoopLag(), lambda request: "")
    return parse(render(list(api.families())).decode(), at)


def shown(registry: SessionRegistry, engine: Engine, *, between: bool = True) -> str:
    before = look(0.0, registry, engine)
    if between:
        tally = registry.tally_of("faces")
        for _ in range(8):
            tally.count_accepted()
            tally.count_dropped(DropReason.SUPERSEDED)
        registry.observe_latency("faces", 0.015, order_s=0.0032)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(view(Change(before=before, after=look(2.0, registry, engine)), "here"))
    return capture.get()


def test_frames_show_rates_ages_and_what_was_given_up() -> None:
    text = shown(SessionRegistry(1), FakeEngine(("faces",)))
    assert "clawstream at here" in text
    assert "faces" in text
    assert "superseded" in text
    assert "4.0" in text  # given up per second
    assert "15.0ms" in text  # the middle of its bucket, 10 to 20 ms
    assert "where the time goes" in text
    assert "3.2ms" in text  # waited for earlier frames


def test_nothing_given_up_shows_no_table_of_drops() -> None:
    text = shown(SessionRegistry(1), FakeEngine(("faces",)), between=False)
    assert "given up" not in text
    assert "where the time goes" not in text


def test_language_models_have_a_table_of_their_own() -> None:
    text = shown(SessionRegistry(1), TextEngine(("words",)), between=False)
    assert "tok/s" in text
    assert "frames and tensors" not in text
