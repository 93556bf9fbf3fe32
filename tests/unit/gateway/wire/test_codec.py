"""What the golden vectors do not say: views, ranges, limits and error kinds."""

from __future__ import annotations

import pytest

from gateway.wire import codec
from gateway.wire.codec import FrameFlags, FrameHeader, MessageType, ProtocolError
from gateway.wire.messages import MAX_SEQ, MAX_TEXT_BYTES, PIECE_BYTES, Ping, Prompt

pytestmark = pytest.mark.unit

HEADER = FrameHeader(type=MessageType.FRAME, stream=1, seq=2, t_us=3)


def test_meta_and_payload_are_views_of_the_received_bytes() -> None:
    data = bytearray(codec.encode_binary(HEADER, b"payload", b"{}"))
    message = codec.decode_binary(memoryview(data))
    data[-1:] = b"!"
    assert bytes(message.payload) == b"payloa!"
    assert message.payload.readonly


def test_payload_starts_at_a_multiple_of_eight() -> None:
    for length in range(20):
        data = codec.encode_binary(HEADER, b"P", b"m" * length)
        message = codec.decode_binary(data)
        assert (len(data) - 1) % 8 == 0
        assert message.header.meta_len == len(message.meta)


@pytest.mark.parametrize(
    "wrong",
    [{"seq": -1}, {"seq": MAX_SEQ + 1}, {"t_us": MAX_SEQ + 1}, {"stream": 2**32}, {"stream": -1}],
)
def test_encoder_refuses_numbers_out_of_range(wrong: dict[str, int]) -> None:
    header = FrameHeader(type=MessageType.FRAME, **({"stream": 1, "seq": 2, "t_us": 3} | wrong))
    with pytest.raises(ValueError, match="must be in"):
        codec.encode_binary(header, b"")


def test_encoder_refuses_what_does_not_fit_in_one_message() -> None:
    with pytest.raises(ValueError, match="payload"):
        codec.encode_binary(HEADER, bytes(PIECE_BYTES + 1))
    with pytest.raises(ValueError, match="meta"):
        codec.encode_binary(HEADER, b"", b" " * (codec.MAX_META_BYTES + 1))
    with pytest.raises(ValueError, match="piece_bytes"):
        codec.split_binary(HEADER, b"", piece_bytes=0)


def test_full_piece_fits_and_one_byte_more_does_not() -> None:
    full = codec.encode_binary(HEADER, bytes(PIECE_BYTES), b" " * codec.MAX_META_BYTES)
    assert len(full) == codec.MAX_BINARY_BYTES
    assert len(codec.decode_binary(full).payload) == PIECE_BYTES
    with pytest.raises(ProtocolError) as caught:
        codec.decode_binary(codec.encode_binary(HEADER, bytes(PIECE_BYTES)) + b"x")
    assert caught.value.close_code == codec.TOO_BIG


def test_meta_beyond_its_limit_is_refused() -> None:
    too_long = codec.MAX_META_BYTES + 8
    data = bytearray(codec.encode_binary(HEADER, bytes(too_long)))
    data[24:28] = too_long.to_bytes(4, "little")
    with pytest.raises(ProtocolError):
        codec.decode_binary(bytes(data))


def test_split_keeps_other_flags_and_clears_a_stray_more() -> None:
    header = FrameHeader(
        type=MessageType.FRAME, stream=1, seq=2, t_us=3, flags=FrameFlags.KEY | FrameFlags.MORE
    )
    pieces = codec.split_binary(header, bytes(PIECE_BYTES + 1))
    flags = [codec.decode_binary(piece).header.flags for piece in pieces]
    assert flags == [FrameFlags.KEY | FrameFlags.MORE, FrameFlags.KEY]


def test_text_of_exactly_the_limit_is_read() -> None:
    text = b'{"type":"ping","t":1'
    assert codec.decode_client(text.ljust(MAX_TEXT_BYTES - 1) + b"}") == Ping(t=1.0)


def test_raw_members_keep_their_bytes() -> None:
    text = b'{"type":"prompt","stream":1,"id":"a","messages":[ 1.50, {"b":null} ]}'
    message = codec.decode_client(memoryview(text))
    assert isinstance(message, Prompt)
    assert bytes(message.messages) == b'[ 1.50, {"b":null} ]'  # type: ignore[arg-type]


def test_last_of_duplicate_members_wins() -> None:
    assert codec.decode_client(b'{"type":"ping","t":1,"t":2}') == Ping(t=2.0)


def test_unknown_members_are_ignored() -> None:
    assert codec.decode_client(b'{"type":"ping","new":{"deep":[1]},"t":1}') == Ping(t=1.0)


def test_error_texts_name_the_member_and_cut_long_names() -> None:
    with pytest.raises(codec.InvalidMessage) as invalid:
        codec.decode_client(b'{"type":"ack","stream":"x","seq":1}')
    assert "ack" in invalid.value.detail
    assert "$.stream" in invalid.value.detail
    with pytest.raises(codec.UnknownType) as unknown:
        codec.decode_client(b'{"type":"' + b"n" * 60_000 + b'"}')
    assert len(unknown.value.detail) < 150


def test_unreadable_rest_after_an_invalid_member_is_still_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        codec.decode_client(b'{"t":"wrong","type":"ping","rest":' + b"[" * 30_000)
