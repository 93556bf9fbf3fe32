"""Starts and closes several parts of an engine at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol


class Part(Protocol):
    """Something with the life of an engine."""

    async def start(self) -> None: ...
    async def aclose(self, deadline: float) -> None: ...


async def start_together(parts: Mapping[str, Part]) -> None:
    """Start all; the first to fail cancels the others' start, and its error is raised.

    Nothing is closed: the caller does that, also when it is cancelled.
    """
    try:
        async with asyncio.TaskGroup() as starting:
            for name, part in parts.items():
                starting.create_task(part.start(), name=f"start-{name}")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def aclose_together(parts: Mapping[str, Part], deadline: float) -> None:
    """Close all until the one ``deadline`` (loop time)."""
    async with asyncio.TaskGroup() as closing:
        for name, part in parts.items():
            closing.create_task(part.aclose(deadline), name=f"close-{name}")
