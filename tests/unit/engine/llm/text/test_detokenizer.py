from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from engine.llm.text.detokenizer import IncrementalDetokenizer
from engine.llm.text.token_bytes import TokenBytes
from tests.fakes.tiny_tokenizers import byte_level, sentencepiece_style

pytestmark = pytest.mark.unit

BYTE_LEVEL = byte_level()
SENTENCEPIECE = sentencepiece_style()


def byte_ids(data: bytes) -> list[int]:
    return [SENTENCEPIECE.token_to_id(f"<0x{byte:02X}>") for byte in data]


def pieces_of(tokenizer: Tokenizer, ids: list[int], *, continues: bool = False) -> list[str]:
    detokenizer = IncrementalDetokenizer(TokenBytes(tokenizer), continues=continues)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


def test_a_character_comes_with_its_last_byte() -> None:
    assert pieces_of(SENTENCEPIECE, byte_ids("é🙂".encode())) == ["", "é", "", "", "", "🙂", ""]


def test_bytes_that_can_never_become_a_character_are_told_at_once() -> None:
    assert pieces_of(SENTENCEPIECE, byte_ids(b"\xff")) == ["\ufffd", ""]
    assert pieces_of(SENTENCEPIECE, byte_ids(b"\xe2\x82A")) == ["", "", "\ufffdA", ""]


def test_an_incomplete_character_is_told_at_the_end() -> None:
    assert pieces_of(SENTENCEPIECE, byte_ids(b"\xf0\x9f\x99")) == ["", "", "", "\ufffd"]


def test_a_replacement_character_of_the_model_is_not_held_back() -> None:
    pieces = pieces_of(SENTENCEPIECE, byte_ids("\ufffdA".encode()))
    assert pieces == ["", "", "\ufffd", "A", ""]


def test_special_tokens_have_no_text_and_split_no_character() -> None:
    first, last = byte_ids("é".encode())
    assert pieces_of(SENTENCEPIECE, [0, first, 1, last, 2]) == ["", "", "", "é", "", ""]


def test_the_space_of_the_first_word_goes_unless_the_text_continues() -> None:
    ids = [SENTENCEPIECE.token_to_id(token) for token in ("▁the", "▁fox")]
    assert pieces_of(SENTENCEPIECE, ids) == ["the", " fox", ""]
    assert pieces_of(SENTENCEPIECE, ids, continues=True) == [" the", " fox", ""]
    assert pieces_of(SENTENCEPIECE, [0, *byte_ids(b" "), *ids]) == ["", "", " the", " fox", ""]
    assert pieces_of(BYTE_LEVEL, BYTE_LEVEL.encode(" x").ids)[0].startswith(" ")
