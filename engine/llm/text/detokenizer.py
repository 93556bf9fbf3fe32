"""Token ids to text, a piece per token, never half a character."""

from __future__ import annotations

import codecs

from engine.llm.text.token_bytes import TokenBytes


class IncrementalDetokenizer:
    """One answer's text: the pieces, joined, are the decoding of all ids at once, however many
    tokens a character spans. O(1) per token; holds back at most three bytes.

    Bytes that can never become a character are told as U+FFFD at once, as many as a decoding of
    the whole would show. A text that ``continues`` another (a completion of a raw prompt) keeps
    the space that SentencePiece puts before its first word.
    """

    def __init__(self, token_bytes: TokenBytes, *, continues: bool = False) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_first = not continues
        self._num_to_strip = 0 if continues else token_bytes.rules.strip_start

    def push(self, token_id: int) -> str:
        """The characters that this token completes; special tokens have none."""
        find = self._token_bytes.find_first if self._is_first else self._token_bytes.find
        data = find(token_id)
        if data is None:
            return ""
        self._is_first = False
        return self._strip(self._decoder.decode(data))

    def finish(self) -> str:
        """What is left: U+FFFD when the last character is incomplete."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        while self._num_to_strip and text:
            if text[0] != " ":
                self._num_to_strip = 0
                break
            text = text[1:]
            self._num_to_strip -= 1
        return text
