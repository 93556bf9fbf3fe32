"""Addresses of a gateway, as the commands take them."""

from __future__ import annotations

import pytest

from gateway.commands.ask_gateway import http_address
from gateway.commands.exits import CommandError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ws://127.0.0.1:8400", "http://127.0.0.1:8400/metrics"),
        ("127.0.0.1:8400", "http://127.0.0.1:8400/metrics"),
        ("wss://example.org/v1/stream", "https://example.org/metrics"),
        ("http://[::1]:8400", "http://[::1]:8400/metrics"),
    ],
)
def test_what_is_asked_is_beside_the_stream(url: str, address: str) -> None:
    assert http_address(url, "/metrics") == address


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "", "http://[::1", "ws://x:port", "ws://x:0", "ws://me:pw@x"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(CommandError, match="--url"):
        http_address(url)
