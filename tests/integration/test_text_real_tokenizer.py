"""The text layer on a real model's tokenizer and chat template, beside transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engine.llm.request import ChatMessage
from engine.llm.text.detokenizer import IncrementalDetokenizer
from engine.llm.text.tokenizer import Tokenizer
from engine.models.store import ModelStore
from tests.fakes.tiny_tokenizers import MANY_SCRIPTS

pytestmark = pytest.mark.integration

roles = st.sampled_from(["system", "user", "assistant"])
# A newline at the end of a text merges with what the template writes there: kept in.
contents = st.text(alphabet=MANY_SCRIPTS + "\n\t") | st.text(max_size=30)


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(ModelStore().pull("smollm2-135m").files["model"])


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


@pytest.fixture(scope="module")
def library(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(folder)


@given(st.lists(st.tuples(roles, contents), min_size=1, max_size=5))
def test_chats_are_encoded_as_transformers_encodes_them(
    ours: Tokenizer, theirs: Any, turns: Sequence[tuple[str, str]]
) -> None:
    messages = [ChatMessage(role=role, content=content) for role, content in turns]
    chat = [{"role": role, "content": content} for role, content in turns]
    expected = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert ours.encode_chat(messages) == expected


@given(contents.filter(bool))
def test_texts_are_encoded_as_transformers_encodes_them(
    ours: Tokenizer, theirs: Any, text: str
) -> None:
    assert ours.encode_text(text) == theirs(text)["input_ids"]


@given(st.lists(st.integers(0, 49_152 + 10), max_size=60))
def test_any_ids_decode_as_the_library_decodes_them_at_once(
    ours: Tokenizer, library: tokenizers.Tokenizer, ids: list[int]
) -> None:
    assert decode(ours, ids) == library.decode(ids)


@given(st.text(alphabet=MANY_SCRIPTS))  # its vocabulary lacks bytes that no text has needed yet
def test_texts_come_back_piece_by_piece(
    ours: Tokenizer, library: tokenizers.Tokenizer, text: str
) -> None:
    assert decode(ours, library.encode(text).ids) == text


def test_the_end_tokens_are_those_of_the_model(ours: Tokenizer) -> None:
    assert ours.eos_ids == {2}  # <|im_end|>


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer.token_bytes)
    return "".join([*map(detokenizer.push, ids), detokenizer.finish()])
