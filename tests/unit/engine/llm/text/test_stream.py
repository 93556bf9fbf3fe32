from __future__ import annotations

from pathlib import Path

import pytest

from engine.llm.request import Sampling
from engine.llm.text.content_filter import ContentFilter, FilterAction
from engine.llm.text.stream import TextStream
from engine.llm.text.tokenizer import Tokenizer
from tests.fakes.tiny_tokenizers import byte_level, sentencepiece_style, write_tokenizer

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("model"), byte_level()))


def run(tokenizer: Tokenizer, stream: TextStream, text: str) -> tuple[str, str]:
    """What the tokens showed, and what the end added."""
    told = "".join(map(stream.push, tokenizer.encode_text(text)))
    return told, stream.finish()


def test_text_passes_a_piece_per_token(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, Sampling())
    ids = tokenizer.encode_text("한국 🙂!")
    pieces = [stream.push(token_id) for token_id in ids]
    assert len(pieces) == len(ids)
    assert "".join(pieces) == "한국 🙂!"
    assert (stream.finish(), stream.stopped) == ("", None)


def test_a_stop_string_ends_the_text_before_it(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, Sampling(stop=("own fox",)))
    assert run(tokenizer, stream, "The quick brown fox jumps") == ("The quick br", "")
    assert stream.stopped == "stop"


def test_what_was_held_back_comes_at_the_end(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, Sampling(stop=("fox jumps",)), ContentFilter(["jumping"]))
    assert run(tokenizer, stream, "brown fox jump") == ("brown ", "fox jump")
    assert stream.stopped is None


def test_the_filter_redacts(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, Sampling(), ContentFilter(["quick br[a-z]+"]))
    told, tail = run(tokenizer, stream, "The quick brown fox")
    assert told + tail == "The [redacted] fox"
    assert stream.stopped is None


def test_the_filter_ends_the_answer(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, Sampling(), ContentFilter(["brown"], FilterAction.END))
    assert run(tokenizer, stream, "The quick brown fox") == ("The quick ", "")
    assert stream.stopped == "content_filter"


def test_what_a_stop_cut_off_is_not_filtered(tokenizer: Tokenizer) -> None:
    stream = TextStream(
        tokenizer, Sampling(stop=("fox",)), ContentFilter(["brown fox"], FilterAction.END)
    )
    told, tail = run(tokenizer, stream, "The brown fox")
    assert (told + tail, stream.stopped) == ("The brown ", "stop")


def test_the_filter_has_the_last_word_about_a_stopped_answer(tokenizer: Tokenizer) -> None:
    stream = TextStream(
        tokenizer, Sampling(stop=("fox",)), ContentFilter([r"\d+"], FilterAction.END)
    )
    assert run(tokenizer, stream, "number 12fox") == ("number ", "")
    assert stream.stopped == "content_filter"


def test_an_incomplete_character_at_the_end_is_told(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, Sampling())
    ids = tokenizer.encode_text("a🙂")[:-1]
    assert "".join([*map(stream.push, ids), stream.finish()]) == "a\ufffd"


def test_a_completion_keeps_the_space_after_its_prompt(tmp_path: Path) -> None:
    library = sentencepiece_style()
    tokenizer = Tokenizer(write_tokenizer(tmp_path, library))
    word = library.token_to_id("▁fox")
    assert TextStream(tokenizer, Sampling()).push(word) == "fox"
    assert TextStream(tokenizer, Sampling(), continues=True).push(word) == " fox"
