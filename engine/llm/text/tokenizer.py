"""Prompts to token ids, with the tokenizer and the chat template of a model's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import InvalidInput, StartupError
from engine.llm.request import ChatMessage, PromptPayload
from engine.llm.text.chat_template import ChatTemplate, read_chat_template
from engine.llm.text.token_bytes import TokenBytes

ROLES = ("system", "user", "assistant", "tool")
# A private-use character that no model is trained on; removed from what callers write.
_SEPARATOR = "\U000f0000"


class Tokenizer:
    """Reads ``tokenizer.json``, ``tokenizer_config.json``, the chat template, ``config.json`` and
    ``generation_config.json`` of a Hugging Face folder; only the first must be there.

    Any thread may call it, an event loop's must not: a prompt of 1 MB takes half a second, in
    which other threads run on.

    Raises:
        StartupError: a file is missing or cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _open_tokenizer(folder / "tokenizer.json")
        config = _read_json(folder / "config.json")
        tokenizer_config = _read_json(folder / "tokenizer_config.json")
        generation = _read_json(folder / "generation_config.json")
        names = _special_tokens(tokenizer_config)
        source = read_chat_template(folder, tokenizer_config)
        self.token_bytes = TokenBytes(self._tokenizer)
        self.vocabulary: int = config.get("vocab_size") or self._tokenizer.get_vocab_size()
        self.eos_ids = self._find_eos_ids(generation or config, names)
        self._template = None if source is None else ChatTemplate(source, names)
        self._control_tokens = _pattern_of_control_tokens(self._tokenizer)

    def encode(self, payload: PromptPayload, max_tokens: int) -> list[int]:
        """The prompt's ids, at most ``max_tokens``.

        Raises:
            InvalidInput: see the other methods; or the prompt is too long.
        """
        if payload.messages is not None:
            ids = self.encode_chat(payload.messages)
        elif isinstance(payload.prompt, str):
            ids = self.encode_text(payload.prompt)
        else:
            ids = self.check_ids(payload.prompt or ())
        if len(ids) > max_tokens:
            raise InvalidInput(
                f"the prompt has {len(ids)} tokens, at most {max_tokens} fit with an answer"
            )
        return ids

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Ids of the conversation and of the opening of the assistant's turn.

        Control tokens in a message are encoded as the text they are: a quoted ``<|im_end|>`` ends
        no turn.

        Raises:
            InvalidInput: no message, an unknown role, no chat template, or one that refuses.
        """
        if self._template is None:
            raise InvalidInput("the model has no chat template: send a prompt, not messages")
        if not messages:
            raise InvalidInput("messages is empty")
        for message in messages:
            if message.role not in ROLES:
                raise InvalidInput(
                    f"unknown role {message.role[:40]!r}: use one of {', '.join(ROLES)}"
                )
        rendered = self._template.render(
            [
                {"role": message.role, "content": self._break_control_tokens(message.content)}
                for message in messages
            ]
        )
        pieces = [piece for piece in rendered.split(_SEPARATOR) if piece]
        return self._encode(pieces, add_special_tokens=False)

    def encode_text(self, prompt: str) -> list[int]:
        """Ids of a raw prompt, control tokens included, begun as the tokenizer begins texts.

        Raises:
            InvalidInput: the prompt is empty.
        """
        if not prompt:
            raise InvalidInput("the prompt is empty")
        return self._encode([prompt], add_special_tokens=True)

    def check_ids(self, token_ids: Sequence[int]) -> list[int]:
        """A prompt that is token ids already.

        Raises:
            InvalidInput: there is none, or one is outside the vocabulary.
        """
        if not token_ids:
            raise InvalidInput("the prompt is empty")
        for token_id in token_ids:
            if not 0 <= token_id < self.vocabulary:
                raise InvalidInput(f"token id {token_id} is not within 0..{self.vocabulary - 1}")
        return list(token_ids)

    def _encode(self, pieces: list[str], *, add_special_tokens: bool) -> list[int]:
        try:
            # Not encode(): it holds the GIL throughout (760 ms for 1 MB, during which no token
            # leaves); this one releases it (longest pause of another thread seen: 12 ms).
            encodings = self._tokenizer.encode_batch_fast(
                pieces, add_special_tokens=add_special_tokens
            )
        except (TypeError, UnicodeError):
            raise InvalidInput("the prompt is not valid Unicode: a lone surrogate") from None
        ids = [token_id for encoding in encodings for token_id in encoding.ids]
        if not ids:
            raise InvalidInput("the prompt is empty")
        return ids

    def _break_control_tokens(self, content: str) -> str:
        """Put a separator into every control token, where the text is cut before encoding."""
        content = content.replace(_SEPARATOR, "")
        while (broken := self._control_tokens.sub(_break_first, content)) != content:
            content = broken  # again: what is left may read as another control token
        return content

    def _find_eos_ids(self, config: Mapping[str, Any], names: Mapping[str, str]) -> frozenset[int]:
        """Those of the generation config, and the end token by name: chat models end with it."""
        found = config.get("eos_token_id")
        ids = set(found if isinstance(found, list) else [] if found is None else [found])
        if "eos_token" in names:
            named = self._tokenizer.token_to_id(names["eos_token"])
            ids |= set() if named is None else {named}
        return frozenset(ids)


def _open_tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise StartupError(f"{path.parent} holds no tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise StartupError(f"{path} cannot be read: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StartupError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise StartupError(f"{path} is not a JSON object")
    return found


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token``, ``eos_token`` and the like: a string, or an object with its content."""
    tokens = {}
    for name, value in tokenizer_config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


def _pattern_of_control_tokens(tokenizer: tokenizers.Tokenizer) -> re.Pattern[str]:
    added = tokenizer.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special and len(token.content) > 1}
    longest_first = sorted(special, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _break_first(found: re.Match[str]) -> str:
    return found[0][0] + _SEPARATOR + found[0][1:]
