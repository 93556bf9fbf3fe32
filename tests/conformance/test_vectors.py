"""The golden vectors of ``clawstream.v1``, read by this test and by the JavaScript one.

Every file in ``vectors/`` is JSON with a ``description`` of its members.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.wire import codec
from gateway.wire.assembly import FrameAssembler
from gateway.wire.codec import FrameFlags, FrameHeader, MessageType, ProtocolError
from gateway.wire.picture import PictureError, UnknownCodec, read_picture_header

pytestmark = pytest.mark.conformance

VECTORS = Path(__file__).parent / "vectors"
Case = dict[str, Any]


def cases(file: str, section: str = "cases") -> Any:
    found = json.loads((VECTORS / file).read_text())[section]
    return pytest.mark.parametrize("case", found, ids=[case["name"] for case in found])


def header_of(case: Case) -> FrameHeader:
    return FrameHeader(
        type=MessageType(case["type"]),
        flags=FrameFlags(case.get("flags", 0)),
        stream=case["stream"],
        seq=case["seq"],
        t_us=case["t_us"],
    )


@cases("binary.json")
def test_binary_message_is_read(case: Case) -> None:
    message = codec.decode_binary(bytes.fromhex(case["hex"]))
    header = message.header
    assert [header.type, header.flags] == [case["type"], case["flags"]]
    assert [header.stream, header.seq, header.t_us] == [case["stream"], case["seq"], case["t_us"]]
    assert bytes(message.meta).rstrip(b" ").decode() == case["meta"]
    assert message.payload.hex() == case["payload_hex"]


@cases("binary.json")
def test_binary_message_is_written(case: Case) -> None:
    payload = bytes.fromhex(case["payload_hex"])
    written = codec.encode_binary(header_of(case), payload, case["meta"].encode())
    assert written.hex() == case["hex"]


@cases("binary_invalid.json")
def test_invalid_binary_message_is_refused(case: Case) -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_binary(bytes.fromhex(case["hex"]))
    assert caught.value.close_code == case["close_code"]


@cases("pieces.json", "split")
def test_payload_is_cut_into_pieces(case: Case) -> None:
    frame = case["frame"]
    pieces = codec.split_binary(
        header_of(frame),
        bytes.fromhex(frame["payload_hex"]),
        frame["meta"].encode(),
        piece_bytes=case["piece_bytes"],
    )
    assert [piece.hex() for piece in pieces] == case["messages"]


@cases("pieces.json", "assemble")
def test_pieces_are_put_together(case: Case) -> None:
    assembler = FrameAssembler(max_frame_bytes=1000, timeout_s=1.0)
    frames = [
        {
            "type": whole.header.type.value,
            "stream": whole.header.stream,
            "seq": whole.header.seq,
            "t_us": whole.header.t_us,
            "meta": bytes(whole.meta).rstrip(b" ").decode(),
            "payload_hex": whole.payload.hex(),
        }
        for message in case["messages"]
        if (whole := assembler.push(codec.decode_binary(bytes.fromhex(message)), 0.0)) is not None
    ]
    assert frames == case["frames"]
    assert assembler.size_bytes == 0


@cases("pieces.json", "invalid")
def test_wrong_piece_is_refused(case: Case) -> None:
    assembler = FrameAssembler(max_frame_bytes=1000, timeout_s=1.0)
    messages = [codec.decode_binary(bytes.fromhex(message)) for message in case["messages"]]
    for message in messages[: case["fails_at"]]:
        assembler.push(message, 0.0)
    with pytest.raises(ProtocolError):
        assembler.push(messages[case["fails_at"]], 0.0)


def check_control_message(decode: Callable[[bytes], Any], case: Case) -> None:
    message = decode(case["text"].encode())
    assert json.loads(codec.encode(message)) == case["message"] == json.loads(case["text"])


@cases("control_client.json")
def test_client_message_round_trips(case: Case) -> None:
    check_control_message(codec.decode_client, case)


@cases("control_server.json")
def test_server_message_round_trips(case: Case) -> None:
    check_control_message(codec.decode_server, case)


@cases("control_invalid.json")
def test_invalid_control_message_is_refused(case: Case) -> None:
    text = bytes.fromhex(case["hex"]) if "hex" in case else case["text"].encode()
    if "repeat" in case:
        unit, times, tail = case["repeat"]
        text += unit.encode() * times + tail.encode()
    with pytest.raises(ProtocolError) as caught:
        codec.decode_client(text)
    assert outcome(caught.value) == case["outcome"]


def outcome(error: ProtocolError) -> str | int | None:
    if isinstance(error, codec.UnknownType):
        return "unknown-type"
    if isinstance(error, codec.InvalidMessage):
        return "invalid-message"
    return error.close_code


@cases("pictures.json")
def test_picture_header_is_read(case: Case) -> None:
    header = read_picture_header(bytes.fromhex(case["hex"]))
    assert (header.codec, header.width, header.height) == (
        case["codec"],
        case["width"],
        case["height"],
    )
    assert (header.components, header.progressive) == (case["components"], case["progressive"])


@cases("pictures.json", "invalid")
def test_invalid_picture_is_refused(case: Case) -> None:
    with pytest.raises(PictureError) as caught:
        read_picture_header(bytes.fromhex(case["hex"]))
    assert isinstance(caught.value, UnknownCodec) == case["unknown_codec"]
