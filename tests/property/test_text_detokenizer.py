"""Pieces of text, joined, are the decoding of the whole, for every kind of tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.llm.text.detokenizer import IncrementalDetokenizer
from engine.llm.text.token_bytes import TokenBytes
from tests.fakes.tiny_tokenizers import MANY_SCRIPTS, byte_level, metaspace, sentencepiece_style

pytestmark = pytest.mark.property

BYTE_LEVEL = byte_level()
SENTENCEPIECE = sentencepiece_style()
METASPACE = metaspace()


def pieces_of(tokenizer: Tokenizer, ids: list[int], *, continues: bool = False) -> list[str]:
    detokenizer = IncrementalDetokenizer(TokenBytes(tokenizer), continues=continues)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


def ids_of(tokenizer: Tokenizer, *, beyond: int = 3) -> st.SearchStrategy[list[int]]:
    """Ids of the vocabulary, and some that only a padded embedding has."""
    return st.lists(st.integers(0, tokenizer.get_vocab_size() + beyond), max_size=40)


@given(ids_of(BYTE_LEVEL))
def test_any_byte_level_ids_decode_as_the_library_decodes_them_at_once(ids: list[int]) -> None:
    assert "".join(pieces_of(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)


@given(st.text() | st.text(alphabet=MANY_SCRIPTS))
@example(MANY_SCRIPTS)
@example("\ufffd")
def test_no_piece_of_a_text_ends_within_a_character(text: str) -> None:
    ids = BYTE_LEVEL.encode(text).ids
    pieces = pieces_of(BYTE_LEVEL, ids)
    assert "".join(pieces) == text
    data = b""
    for token_id, piece in zip(ids, pieces, strict=False):
        data += TokenBytes(BYTE_LEVEL).find(token_id) or b""
        told, data = data[: len(piece.encode())], data[len(piece.encode()) :]
        assert told == piece.encode()
        assert len(data) <= 3


@given(ids_of(METASPACE))
def test_any_metaspace_ids_decode_as_the_library_decodes_them_at_once(ids: list[int]) -> None:
    assert "".join(pieces_of(METASPACE, ids)) == METASPACE.decode(ids)


@given(
    st.lists(st.sampled_from([*"▁é한日.", "▁▁", "▁the", "fox", "<0xZZ>", "🙂", "👍🏽", "\ufffd"]))
)
def test_valid_byte_fallback_decodes_as_the_library_decodes_it_at_once(tokens: list[str]) -> None:
    ids = [token_id for token in tokens for token_id in sentencepiece_ids(token)]
    assert "".join(pieces_of(SENTENCEPIECE, ids)) == SENTENCEPIECE.decode(ids)


@given(ids_of(SENTENCEPIECE))
def test_any_byte_fallback_is_the_utf_8_of_its_bytes(ids: list[int]) -> None:
    """The library shows a whole run of bytes as U+FFFD when one is wrong; here the others stay."""
    token_bytes = TokenBytes(SENTENCEPIECE)
    data = b"".join(token_bytes.find(token_id) or b"" for token_id in ids)
    expected = data.decode(errors="replace")
    assert "".join(pieces_of(SENTENCEPIECE, ids, continues=True)) == expected
    assert "".join(pieces_of(SENTENCEPIECE, ids)) == expected.removeprefix(" ")


def sentencepiece_ids(token: str) -> list[int]:
    """The token's id, or those of its bytes."""
    found = SENTENCEPIECE.token_to_id(token)
    if found is not None:
        return [found]
    return [SENTENCEPIECE.token_to_id(f"<0x{byte:02X}>") for byte in token.encode()]
