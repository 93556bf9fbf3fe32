from __future__ import annotations

from typing import Any

import pytest

from engine.config import UpstreamConfig

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"url": "host:8000"}, "url must be like"),
        ({"url": "ftp://host/v1"}, "url must be like"),
        ({"url": "http:///v1"}, "url must be like"),
        ({"url": "http://user:secret@host/v1"}, "no user"),
        ({"url": "http://host/v1?key=secret"}, "no user, query"),
        ({"model": ""}, "model must be"),
        ({"dialect": "klingon"}, "dialect must be"),
        ({"max_concurrent_requests": 0}, "max_concurrent_requests must be >= 1"),
        ({"max_retries": -1}, "max_retries must be >= 0"),
        ({"idle_timeout_s": 0}, "idle_timeout_s must be > 0"),
        ({"probe_interval_s": 0}, "probe_interval_s must be > 0"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        UpstreamConfig(**{"url": "http://host/v1", "model": "m", **change})
    assert "secret" not in str(refusal.value)


def test_the_key_is_not_shown() -> None:
    config = UpstreamConfig(url="https://host:8443/v1/", model="m", api_key="secret")
    assert "secret" not in repr(config)
