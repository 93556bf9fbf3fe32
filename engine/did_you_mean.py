"""A hint for who has mistyped a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, within: str = "") -> str:
    """``; did you mean …?`` when one of ``known`` is close, else nothing; ``within`` goes before
    the name that is meant."""
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {within}{nearest[0]}?" if nearest else ""
