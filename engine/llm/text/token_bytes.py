"""What each token adds to the text, as bytes.

Decoding a growing list of ids again and again costs O(n) per token and needs guesses at chunk
borders. The decoders of the supported families are functions of one token, so each token has its
bytes, and text is what an incremental UTF-8 decoder makes of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import tokenizers

from engine.errors import StartupError

_SPACE_MARK = "\u2581"  # SentencePiece's visible space


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderRules:
    """How a token's string becomes bytes; ``strip_start`` spaces at the start of the text go.

    ``drops_first_mark``: the very first token loses its space marks (the Metaspace decoder).
    """

    is_byte_level: bool = False
    has_byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    strip_start: int = 0
    drops_first_mark: bool = False


class TokenBytes:
    """Token id to bytes, computed on first use; special tokens and unknown ids are empty.

    Any thread may call it. Holds at most one entry per token of the vocabulary.

    Raises:
        StartupError: the tokenizer's decoder is none of those described above.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.rules = _read_rules(tokenizer)
        self._tokenizer = tokenizer
        self._vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
        added = tokenizer.get_added_tokens_decoder()
        self._skipped = {token.content for token in added.values() if token.special}
        self._bytes: dict[int, bytes | None] = {}

    def find(self, token_id: int) -> bytes | None:
        """The token's bytes; None when it is not part of the text at all."""
        try:
            return self._bytes[token_id]
        except KeyError:
            token = self._shown_token(token_id)
            if token is None:
                return None
            found = self._bytes[token_id] = _to_bytes(token, self.rules)
            return found

    def find_first(self, token_id: int) -> bytes | None:
        """As ``find``, for the first token of a text that does not continue another one."""
        token = self._shown_token(token_id)
        if token is None:
            return None
        if self.rules.drops_first_mark:
            token = token.replace(_SPACE_MARK, "")
        return _to_bytes(token, self.rules)

    def _shown_token(self, token_id: int) -> str | None:
        # Embeddings are often padded: a model can sample an id that the tokenizer does not have.
        token = self._tokenizer.id_to_token(token_id)
        return None if token is None or token in self._skipped else str(token)


def _to_bytes(token: str, rules: DecoderRules) -> bytes:
    if rules.is_byte_level:
        try:
            return bytes(_BYTE_OF[char] for char in token)
        except KeyError:  # an added token, written as plain text
            return token.encode()
    for old, new in rules.replacements:
        token = token.replace(old, new)
    if rules.has_byte_fallback and len(token) == 6 and token[:3] == "<0x" and token[5] == ">":
        try:
            return bytes((int(token[3:5], 16),))
        except ValueError:
            pass  # it only looks like a byte
    return token.encode()


def _read_rules(tokenizer: tokenizers.Tokenizer) -> DecoderRules:
    decoder = tokenizer.decoder
    if decoder is None:
        raise StartupError("tokenizer.json names no decoder: its tokens cannot become text")
    spec = json.loads(decoder.__getstate__())
    steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderRules(is_byte_level=True)
    if kinds == ["Metaspace"]:
        return _metaspace_rules(steps[0])
    if "Fuse" in kinds and not set(kinds) - {"Replace", "ByteFallback", "Fuse", "Strip"}:
        return _sentencepiece_rules(steps)
    raise StartupError(
        f"the tokenizer's decoder ({', '.join(kinds)}) is not supported; supported are ByteLevel, "
        "Metaspace, and Replace, ByteFallback, Fuse, Strip in this order"
    )


def _metaspace_rules(step: dict[str, Any]) -> DecoderRules:
    if step["replacement"] != _SPACE_MARK:
        raise StartupError(f"unsupported space mark {step['replacement']!r} in tokenizer.json")
    return DecoderRules(
        replacements=((_SPACE_MARK, " "),), drops_first_mark=step["prepend_scheme"] != "never"
    )


def _sentencepiece_rules(steps: list[dict[str, Any]]) -> DecoderRules:
    replacements = []
    strip_start = 0
    is_fused = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not is_fused:
                replacements.append((old, new))
            case {"type": "ByteFallback"} if not is_fused:
                pass
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": " ", "start": start, "stop": 0} if is_fused:
                strip_start = start
            case _:
                raise StartupError(f"unsupported step of the tokenizer's decoder: {step}")
    return DecoderRules(
        has_byte_fallback=any(step["type"] == "ByteFallback" for step in steps),
        replacements=tuple(replacements),
        strip_start=strip_start,
    )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the others, in order, for the
    characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
