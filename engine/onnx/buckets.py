"""Batch sizes that an accelerator runs: few and fixed, so that each is prepared once. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def bucket_of(rows: int, sizes: Sequence[int]) -> int:
    """The smallest of the rising ``sizes`` that holds ``rows``; ``rows`` itself beyond them."""
    return next((size for size in sizes if size >= rows), rows)
