"""From token ids to what the caller may read: characters, stop strings, content filter."""

from __future__ import annotations

from typing import Literal

from engine.llm.request import Sampling
from engine.llm.text.content_filter import ContentFilter
from engine.llm.text.detokenizer import IncrementalDetokenizer
from engine.llm.text.stop_strings import StopStrings
from engine.llm.text.tokenizer import Tokenizer


class TextStream:
    """The text of one answer. One thread at a time; never blocks.

    Args:
        continues: the answer goes on where a raw prompt ended, so its first space counts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sampling: Sampling,
        content_filter: ContentFilter | None = None,
        *,
        continues: bool = False,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer.token_bytes, continues=continues)
        self._stops = StopStrings(sampling.stop)
        self._filtered = None if content_filter is None else content_filter.open()

    @property
    def stopped(self) -> Literal["stop", "content_filter"] | None:
        """Why the answer is over, before its tokens are. The filter sees only what comes before
        a stop string, and may still end an answer that a stop string has ended."""
        if self._filtered is not None and self._filtered.has_ended:
            return "content_filter"
        return None if self._stops.found is None else "stop"

    def push(self, token_id: int) -> str:
        """What this token made visible; empty once stopped."""
        if self.stopped is not None:
            return ""
        return self._filter(self._stops.push(self._detokenizer.push(token_id)))

    def finish(self) -> str:
        """What was held back; call once, when the last token was pushed or ``stopped`` is set."""
        tail = "" if self.stopped is not None else self._stops.push(self._detokenizer.finish())
        text = self._filter(tail + self._stops.finish())
        return text if self._filtered is None else text + self._filtered.finish()

    def _filter(self, text: str) -> str:
        return text if self._filtered is None else self._filtered.push(text)
