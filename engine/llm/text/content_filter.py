"""Redacts what must not be said, or ends the answer there; works across chunk borders.

What the filter does to a text is defined without chunks: from left to right, the first pattern
that matches at a position, looking at no more than ``max_match_chars`` characters from there on,
is redacted, and the scan goes on behind it. Streaming gives the same text for every chunking.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import regex

REDACTION = "[redacted]"
DEFAULT_MAX_MATCH_CHARS = 128
_MAX_PATTERN_CHARS = 1000
_MATCH_TIMEOUT_S = 0.05
_LOOKAROUND = regex.compile(r"\(\?<?[=!]")
_NOT_SYNTAX = regex.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", regex.DOTALL)


class FilterAction(Enum):
    """What happens to a match."""

    REDACT = "redact"
    END = "end"  # the answer ends before it, with finish reason content_filter


class _Match(NamedTuple):
    """``end`` is None while it is open whether, or where, the match ends."""

    end: int | None


class ContentFilter:
    """Compiled patterns, shared by all answers of a model; ``open`` begins one answer.

    A match may be ``max_match_chars`` long, and that is also the most that is held back: text is
    delayed only from where a match may have begun, until it has matched or cannot any more.

    Patterns are those of the ``regex`` module, which can tell "no match" from "no match yet".
    Look-around is refused, because what follows may not have been generated yet. A pattern that
    needs more than 50 ms for one position ends the answer: the filter fails closed.

    Raises:
        ValueError: a pattern is not valid, matches the empty text, or looks around.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        action: FilterAction = FilterAction.REDACT,
        max_match_chars: int = DEFAULT_MAX_MATCH_CHARS,
    ) -> None:
        if max_match_chars < 1:
            raise ValueError(f"max_match_chars must be >= 1, got {max_match_chars}")
        self.action = action
        self.max_match_chars = max_match_chars
        self._patterns = [_compile(pattern) for pattern in patterns]

    def open(self) -> FilteredText:
        """The filter's state for one answer."""
        return FilteredText(self)

    def may_match(self, text: str, start: int) -> bool:
        """Whether a match begins, or may turn out to have begun, at ``start`` or behind it."""
        for pattern in self._patterns:
            found = pattern.search(text, start, partial=True, timeout=_MATCH_TIMEOUT_S)
            # At the very end every pattern "may have begun", with nothing.
            if found is not None and found.start() < len(text):
                return True
        return False

    def match_at(self, text: str, start: int, *, is_final: bool) -> _Match | None:
        """The match at ``start``, as far as it can be known; None when there cannot be one."""
        end = start + self.max_match_chars
        is_whole = is_final or len(text) >= end  # what comes later does not count
        for pattern in self._patterns:
            found = pattern.match(text, start, end, partial=not is_whole, timeout=_MATCH_TIMEOUT_S)
            if found is None or (found.end() == start and not found.partial):
                continue
            if is_whole or _is_settled(pattern, found, text):
                return _Match(found.end())
            return _Match(None)
        return None


def _is_settled(pattern: regex.Pattern[str], found: regex.Match[str], text: str) -> bool:
    """Whether more text cannot change the match: no way to match, however it is tried, comes as
    far as the end of the text."""
    if found.partial or found.end() == len(text):
        return False
    longer = pattern.fullmatch(text, found.start(), partial=True, timeout=_MATCH_TIMEOUT_S)
    return longer is None


def _compile(pattern: str) -> regex.Pattern[str]:
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise ValueError(f"a content filter pattern has at most {_MAX_PATTERN_CHARS} characters")
    if _LOOKAROUND.search(_NOT_SYNTAX.sub("", pattern)):
        raise ValueError(f"content filter pattern {pattern!r}: look-around is not supported")
    try:
        compiled: regex.Pattern[str] = regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"content filter pattern {pattern!r}: {error}") from None
    if compiled.fullmatch("") is not None:
        raise ValueError(f"content filter pattern {pattern!r} matches the empty text")
    return compiled


class FilteredText:
    """One answer on its way through a filter. ``has_ended`` after a match that ends it."""

    def __init__(self, rules: ContentFilter) -> None:
        self.has_ended = False
        self.num_matches = 0
        self._rules = rules
        # One character of what was passed on stays, for word boundaries.
        self._text = ""
        self._start = 0

    def push(self, text: str) -> str:
        """The text that is certain to be allowed; empty once the answer has ended."""
        return self._scan(text, is_final=False)

    def finish(self) -> str:
        """The text has ended: decide about what was held back."""
        return self._scan("", is_final=True)

    def _scan(self, text: str, *, is_final: bool) -> str:
        if self.has_ended:
            return ""
        self._text += text
        passed: list[str] = []
        try:
            self._pass_on(passed, is_final=is_final)
        except TimeoutError:
            self.has_ended = True
        self._text = self._text[max(self._start - 1, 0) :]
        self._start = min(self._start, 1)
        return "".join(passed)

    def _pass_on(self, passed: list[str], *, is_final: bool) -> None:
        """Append to ``passed``, move ``_start`` to the first character that is held back."""
        if not self._rules.may_match(self._text, self._start):
            self._release(passed, len(self._text))
        while self._start < len(self._text):
            match = self._rules.match_at(self._text, self._start, is_final=is_final)
            if match is None:
                self._release(passed, self._start + 1)
            elif match.end is None:
                return
            else:
                self._take_match(passed, match.end)

    def _release(self, passed: list[str], end: int) -> None:
        passed.append(self._text[self._start : end])
        self._start = end

    def _take_match(self, passed: list[str], end: int) -> None:
        self.num_matches += 1
        if self._rules.action is FilterAction.END:
            self.has_ended = True
            self._start = len(self._text)
        else:
            passed.append(REDACTION)
            self._start = end
