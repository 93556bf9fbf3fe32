from __future__ import annotations

import pytest

from engine.llm.upstream.reply import BadReply, Reply, ReplyError

pytestmark = pytest.mark.unit


def test_text_comes_from_chats_and_completions() -> None:
    reply = Reply()
    assert reply.take('{"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}') == "a"
    assert reply.take('{"choices": [{"text": "b"}]}') == "b"
    assert reply.num_pieces == 2


@pytest.mark.parametrize(
    "data",
    [
        '{"choices": [{"delta": {"role": "assistant"}}]}',
        '{"choices": [{"delta": {"role": "assistant", "content": null}}]}',
        '{"choices": [{"delta": {"content": ""}}]}',
        '{"choices": [{"delta": {"reasoning_content": "hm"}}]}',
        '{"choices": []}',
        '{"choices": [], "usage": null}',
        "{}",
    ],
)
def test_chunks_without_text_are_no_pieces(data: str) -> None:
    reply = Reply()
    assert reply.take(data) == ""
    assert (reply.num_pieces, reply.is_complete) == (0, False)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("eos_token", "stop"),
        ("tool_calls", "stop"),
    ],
)
def test_reasons_become_ours(reason: str, expected: str) -> None:
    reply = Reply()
    reply.take(f'{{"choices": [{{"delta": {{}}, "finish_reason": "{reason}"}}]}}')
    assert (reply.is_complete, reply.is_done) == (True, False)
    assert reply.finish().reason == expected


def test_the_end_mark_alone_ends_an_answer() -> None:
    reply = Reply()
    assert reply.take(" [DONE] ") == ""
    assert (reply.is_done, reply.is_complete, reply.finish().reason) == (True, True, "stop")


def test_the_last_usage_counts() -> None:
    reply = Reply()
    reply.take('{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}')
    reply.take(
        '{"usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,'
        ' "prompt_tokens_details": {"cached_tokens": 8}}}'
    )
    finish = reply.finish()
    assert (finish.prompt_tokens, finish.completion_tokens, finish.cached_tokens) == (9, 4, 8)


@pytest.mark.parametrize("data", ['{"error": {"message": "no"}}', '{"error": "no"}'])
def test_an_error_in_the_stream_is_told(data: str) -> None:
    with pytest.raises(ReplyError, match="no"):
        Reply().take(data)


@pytest.mark.parametrize("data", ["", "x", "3", "[]", '{"choices": {}}', '{"choices": [3]}'])
def test_what_is_no_chunk_is_refused(data: str) -> None:
    with pytest.raises(BadReply):
        Reply().take(data)
