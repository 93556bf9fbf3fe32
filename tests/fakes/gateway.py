"""A real gateway on a free port, with an engine that needs no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from engine.base import Engine
from engine.types import Item
from gateway.app import Gateway
from gateway.config import parse_config
from tests.fakes.engine import FakeEngine

WAIT_S = 30.0  # far from what a slow machine takes


def size_of(item: Item) -> bytes:
    """An answer in JSON."""
    return b'{"bytes":%d}' % len(item.payload)


@asynccontextmanager
async def running_gateway(
    engine: Engine | None = None, **tables: dict[str, Any]
) -> AsyncIterator[Gateway]:
    """Start a gateway with these configuration tables; it is closed at the end."""
    tables["server"] = {"port": 0, "shutdown_budget_s": 2.0, **tables.get("server", {})}
    gateway = Gateway(parse_config(tables), engine or FakeEngine(respond=size_of))
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.aclose()


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until ``condition`` holds; raises TimeoutError after ``WAIT_S``: it never will."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - a condition of any kind, in a test
            await asyncio.sleep(0.01)
