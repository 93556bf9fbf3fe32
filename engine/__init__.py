"""Batched inference in worker processes. ``load_model`` is the library's front door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.api import load_model

__all__ = ["load_model"]


def __getattr__(name: str) -> Any:
    # Lazy: every worker and every client imports a module of this package, none needs the API.
    if name == "load_model":
        from engine.api import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
