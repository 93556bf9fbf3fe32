from __future__ import annotations

from typing import Any

import pytest

from engine.types import Policy, Priority
from gateway.config_sections import StreamsConfig
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.options import StreamSettings, read_settings
from gateway.wire.messages import Open, StreamKind, StreamOptions
from gateway.wire.picture import PictureCodec

pytestmark = pytest.mark.unit


def read(kind: StreamKind = StreamKind.FRAMES, **options: Any) -> StreamSettings:
    message = Open(stream=1, model="m", kind=kind, options=StreamOptions(**options))
    return read_settings(message, StreamsConfig())


def test_defaults_are_latest_with_a_deadline() -> None:
    settings = read()
    assert settings.lane.policy is Policy.LATEST
    assert settings.lane.capacity == 1
    assert settings.deadline_s == 1.0
    assert settings.credit_frames == 8
    assert settings.annotation == b""


def test_fifo_has_the_credit_of_its_lane_and_its_own_deadline() -> None:
    settings = read(policy="fifo")
    assert settings.credit_frames == settings.lane.capacity == 32
    assert settings.deadline_s == 2.0


def test_lossless_has_no_deadline_unless_asked_for() -> None:
    assert read(policy="lossless").deadline_s is None
    assert read(policy="lossless", deadline_ms=500.0).deadline_s == 0.5


def test_what_is_asked_for_is_kept() -> None:
    settings = read(
        codec="png", priority="realtime", weight=2.0, annotate="blur", version="3", max_fps=5.0
    )
    assert settings.codec is PictureCodec.PNG
    assert settings.lane.priority is Priority.REALTIME
    assert (settings.lane.weight, settings.lane.version) == (2.0, "3")
    assert settings.annotation == b'{"annotate":"blur"}'
    assert settings.max_fps == 5.0


def test_results_leave_at_once_unless_playout_is_asked_for() -> None:
    assert read().max_playout_delay_s is None
    assert read(pace="off").max_playout_delay_s is None
    assert read(pace="playout").max_playout_delay_s == 0.25


def test_a_gap_is_at_most_half_of_the_credit_and_none_where_nothing_may_be_lost() -> None:
    assert read().max_gap == 4
    assert read(policy="fifo").max_gap == 16
    assert read(policy="lossless").max_gap is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"policy": "newest"}, "policy"),
        ({"priority": "urgent"}, "priority"),
        ({"codec": "h264"}, "codec"),
        ({"annotate": "hearts"}, "annotate"),
        ({"timing": True}, "timing"),
        ({"weight": 1e9}, "weight"),
        ({"deadline_ms": 1e9}, "deadline_ms"),
        ({"max_fps": 1e9}, "max_fps"),
        ({"max_fps": 5.0, "policy": "lossless"}, "max_fps"),
        ({"pace": "steady"}, "pace"),
        ({"pace": "playout", "policy": "lossless"}, "pace"),
        ({"pace": "playout", "kind": StreamKind.TENSORS}, "pace"),
    ],
)
def test_an_option_that_is_not_possible_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestProblem, match=named) as refused:
        read(**options)
    assert refused.value.kind is ProblemKind.UNSUPPORTED_OPTION


@pytest.mark.parametrize("options", [{"codec": "jpeg"}, {"annotate": "boxes"}])
def test_tensors_have_no_picture_options(options: dict[str, Any]) -> None:
    with pytest.raises(RequestProblem, match="frames"):
        read(StreamKind.TENSORS, **options)
