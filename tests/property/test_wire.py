"""Garbage in: a message or ProtocolError, never another exception. Round trips are exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import codec
from gateway.wire.assembly import FrameAssembler, FrameTooLarge
from gateway.wire.codec import FrameFlags, FrameHeader, MessageType, ProtocolError
from gateway.wire.messages import MAX_SEQ, MAX_STREAM, Ack, Drop, Hello, Open, Prompt, Token
from gateway.wire.picture import PictureError, read_picture_header

pytestmark = pytest.mark.property

headers = st.builds(
    FrameHeader,
    type=st.sampled_from(MessageType),
    stream=st.integers(0, MAX_STREAM),
    seq=st.integers(0, MAX_SEQ),
    t_us=st.integers(0, MAX_SEQ),
    flags=st.sampled_from([FrameFlags.NONE, FrameFlags.KEY, FrameFlags.KEY | FrameFlags.CONFIG]),
)
control_seeds = st.sampled_from(
    [
        codec.encode(Hello(token="key")),
        codec.encode(Open(stream=1, model="centerface")),
        codec.encode(Ack(stream=1, seq=7)),
        codec.encode(Prompt(stream=1, id="p", messages=msgspec.Raw(b'[{"role":"user"}]'))),
        codec.encode(Token(stream=1, id="p", seq=0, text='h\u00e9"\n')),
        codec.encode(Drop(stream=1, reason="late", first=1, last=2, count=2)),
    ]
)
edits = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=8)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
member_names = st.sampled_from(
    ["type", "stream", "seq", "id", "t", "token", "resume", "model", "kind", "options", "messages"]
)
type_names = st.sampled_from(["hello", "open", "prompt", "ack", "cancel", "end", "ping", "result"])


def edited(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    """``data`` with some bytes replaced; an index beyond the end cuts instead."""
    changed = bytearray(data)
    for index, value in changes:
        if index < len(changed):
            changed[index] = value
        else:
            del changed[index % (len(changed) + 1) :]
    return bytes(changed)


def decodes_or_refuses(decode: Callable[[bytes], Any], data: bytes) -> None:
    refusal: ProtocolError | None = None
    try:
        decode(data)
    except ProtocolError as error:
        refusal = error
    assert refusal is None or refusal.close_code in (None, 1002, 1007, 1009)


@given(headers, st.binary(max_size=64), st.binary(max_size=64))
def test_binary_message_round_trips(header: FrameHeader, meta: bytes, payload: bytes) -> None:
    message = codec.decode_binary(codec.encode_binary(header, payload, meta))
    assert bytes(message.payload) == payload
    assert bytes(message.meta) == meta + b" " * (-len(meta) % 8)
    for name in ("type", "stream", "seq", "t_us", "flags"):
        assert getattr(message.header, name) == getattr(header, name)


@given(headers, st.binary(max_size=300), st.integers(1, 64))
def test_any_split_assembles_to_the_same_payload(
    header: FrameHeader, payload: bytes, piece_bytes: int
) -> None:
    assembler = FrameAssembler(max_frame_bytes=300, timeout_s=1.0)
    pieces = codec.split_binary(header, payload, b"{}", piece_bytes=piece_bytes)
    *early, last = [assembler.push(codec.decode_binary(piece), 0.0) for piece in pieces]
    assert early == [None] * (len(pieces) - 1)
    assert last is not None
    assert bytes(last.payload) == payload
    assert last.header.flags == header.flags
    assert assembler.size_bytes == 0


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 40)
        ),
        max_size=40,
    )
)
def test_assembler_stays_within_its_limits(
    steps: list[tuple[int, int, bool, bool, int]],
) -> None:
    assembler = FrameAssembler(
        max_frame_bytes=64, timeout_s=5.0, max_total_bytes=100, max_unfinished=2
    )
    for now, (stream, seq, more, has_meta, size) in enumerate(steps):
        header = FrameHeader(
            type=MessageType.FRAME,
            stream=stream,
            seq=seq,
            t_us=0,
            flags=FrameFlags.MORE if more else FrameFlags.NONE,
        )
        message = codec.decode_binary(
            codec.encode_binary(header, bytes(size), b"{}" if has_meta else b"")
        )
        try:
            whole = assembler.push(message, float(now))
        except (ProtocolError, FrameTooLarge):
            whole = None
        assert whole is None or len(whole.payload) <= 64
        assembler.expire(float(now))
        assert 0 <= assembler.size_bytes <= 100
    for stream in (1, 2, 3):
        assembler.forget(stream)
    assert assembler.size_bytes == 0


@given(st.binary(max_size=200))
def test_random_bytes_never_surprise_the_binary_decoder(data: bytes) -> None:
    decodes_or_refuses(codec.decode_binary, data)


@given(headers, edits)
def test_flipped_and_cut_bytes_never_surprise_the_binary_decoder(
    header: FrameHeader, changes: list[tuple[int, int]]
) -> None:
    data = codec.encode_binary(header, b"payload", b'{"a":1}')
    decodes_or_refuses(codec.decode_binary, edited(data, changes))


@given(st.binary(max_size=200))
def test_random_bytes_never_surprise_the_text_decoders(data: bytes) -> None:
    decodes_or_refuses(codec.decode_client, data)
    decodes_or_refuses(codec.decode_server, data)


@given(control_seeds, edits)
def test_flipped_and_cut_bytes_never_surprise_the_text_decoders(
    data: bytes, changes: list[tuple[int, int]]
) -> None:
    decodes_or_refuses(codec.decode_client, edited(data, changes))
    decodes_or_refuses(codec.decode_server, edited(data, changes))


@given(st.dictionaries(member_names, json_values), type_names)
def test_any_json_object_is_a_message_or_refused(members: dict[str, Any], name: str) -> None:
    for message in (members, members | {"type": name}):
        text = json.dumps(message)  # NaN, Infinity and lone surrogates included
        decodes_or_refuses(codec.decode_client, text.encode())
        decodes_or_refuses(codec.decode_server, text.encode())


@given(st.sampled_from(["[", '{"a":', '[{"type":']), st.integers(1, 10_000))
def test_deep_nesting_is_refused(opening: str, depth: int) -> None:
    decodes_or_refuses(codec.decode_client, opening.encode() * depth)
    member = b'{"type":"ping","t":1,"x":' + opening.encode() * (depth // 2)
    decodes_or_refuses(codec.decode_client, member)


@given(
    st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff\xc0", b"\x89PNG\r\n\x1a\n", b"RIFF----WEBP"]),
    st.sampled_from([b"", b"VP8 ", b"VP8L", b"VP8X", b"\0\0\0\x0dIHDR"]),
    st.binary(max_size=100),
)
def test_random_pictures_are_read_or_refused(start: bytes, chunk: bytes, rest: bytes) -> None:
    try:
        header = read_picture_header(start + chunk + rest)
    except PictureError:
        return
    assert header.width >= 1
    assert header.height >= 1
