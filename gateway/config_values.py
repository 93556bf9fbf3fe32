"""Values of the configuration that need a look: lists, keys, origins, host names, numbers."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator


def split_list(value: object) -> object:
    """Let the environment write a list as ``a,b`` or as JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("must be a list, as a,b or as JSON") from None
    return [part.strip() for part in value.split(",") if part.strip()]


def is_loopback(host: str) -> bool:
    """Whether ``host`` (a name or an address) can only be reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_api_key(key: str) -> str:
    """A header carries it unchanged, and nobody presents it by presenting nothing."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("must be printable ASCII without spaces, not empty")
    return key


def _check_origin(origin: str) -> str:
    if not _is_origin(origin):
        raise ValueError("must be like https://host:port, without a path")
    return origin


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        is_named = bool(parts.scheme and parts.hostname) and parts.port != 0
    except ValueError:
        return False
    rest = (parts.path.removesuffix("/"), parts.query, parts.fragment)
    return is_named and "@" not in parts.netloc and not any(rest)


def _check_host(host: str) -> str:
    if not host or not set(host).isdisjoint(":/@*, "):
        raise ValueError("must be names without scheme and port")
    return host


ApiKeys = Annotated[
    tuple[Annotated[str, AfterValidator(_check_api_key)], ...], BeforeValidator(split_list)
]
Origins = Annotated[
    tuple[Annotated[str, AfterValidator(_check_origin)], ...], BeforeValidator(split_list)
]
Hosts = Annotated[
    tuple[Annotated[str, AfterValidator(_check_host)], ...], BeforeValidator(split_list)
]


def refuse_booleans(table: object, defaults: Mapping[str, object]) -> None:
    """``true`` is no number, though pydantic would take it for 1."""
    if not isinstance(table, Mapping):
        return
    for key, value in table.items():
        default = defaults.get(key)
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        if is_number and isinstance(value, bool):
            raise ValueError(f"{key} must be a number, got {str(value).lower()}")
