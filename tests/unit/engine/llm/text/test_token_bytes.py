from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from engine.errors import StartupError
from engine.llm.text.token_bytes import TokenBytes
from tests.fakes.tiny_tokenizers import ADDED_TEXT, byte_level, metaspace, sentencepiece_style

pytestmark = pytest.mark.unit


def test_special_tokens_and_unknown_ids_are_no_text() -> None:
    token_bytes = TokenBytes(byte_level())
    assert token_bytes.find(0) is None
    assert token_bytes.find(10_000_000) is None


def test_an_added_token_outside_the_byte_alphabet_is_its_own_text() -> None:
    tokenizer = byte_level()
    token_id = tokenizer.token_to_id(ADDED_TEXT)
    assert TokenBytes(tokenizer).find(token_id) == ADDED_TEXT.encode()


def test_byte_tokens_are_bytes_and_their_look_alikes_are_text() -> None:
    tokenizer = sentencepiece_style()
    token_bytes = TokenBytes(tokenizer)
    assert token_bytes.find(tokenizer.token_to_id("<0xE2>")) == b"\xe2"
    assert token_bytes.find(tokenizer.token_to_id("<0xZZ>")) == b"<0xZZ>"
    assert token_bytes.find(tokenizer.token_to_id("▁the")) == b" the"


def test_only_metaspace_drops_the_first_mark() -> None:
    for tokenizer, expected in ((metaspace(), b"the"), (sentencepiece_style(), b" the")):
        token_bytes = TokenBytes(tokenizer)
        assert token_bytes.find_first(tokenizer.token_to_id("▁the")) == expected


@pytest.mark.parametrize(
    ("decoder", "problem"),
    [
        (None, "names no decoder"),
        (decoders.WordPiece(), "WordPiece"),
        (decoders.Metaspace(replacement="_"), "space mark"),
        (decoders.Sequence([decoders.Replace("a", "b"), decoders.CTC()]), "CTC"),
        (decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]), "Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip("x", 1, 0)]), "Strip"),
    ],
)
def test_other_decoders_are_refused_by_name(decoder: object, problem: str) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(StartupError, match=problem):
        TokenBytes(tokenizer)
