"""Addresses in the forms that people type."""

from __future__ import annotations

import pytest

from gateway.client.greeting import stream_address

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ws://host:8400", "ws://host:8400/v1/stream"),
        ("ws://host:8400/", "ws://host:8400/v1/stream"),
        ("http://host", "ws://host/v1/stream"),
        ("https://host/prefix/v1/stream", "wss://host/prefix/v1/stream"),
        ("wss://[::1]:1", "wss://[::1]:1/v1/stream"),
        ("127.0.0.1:8400", "ws://127.0.0.1:8400/v1/stream"),
    ],
)
def test_address_is_completed(url: str, address: str) -> None:
    assert stream_address(url) == address


@pytest.mark.parametrize("url", ["", "ftp://host", "ws://", "ws:///v1/stream"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        stream_address(url)


@pytest.mark.parametrize("url", ["ws://user:pw@host", "ws://host/?token=secret", "ws://host/#a"])
def test_secrets_do_not_belong_in_an_address(url: str) -> None:
    with pytest.raises(ValueError, match="api_key"):
        stream_address(url)
