"""Bytes to messages and back: the 32-byte binary header and the JSON control messages.

Whatever the bytes are, a decoder returns a message or raises ``ProtocolError``:

ProtocolError          ``close_code`` says how the connection ends
├── InvalidMessage     well-formed, but not this protocol; answer ``error``, nothing closes
├── UnknownType        a type number or name from the future; answer ``error``, nothing closes
└── UnexpectedMessage  does not fit the state (``gateway.wire.protocol``); answer ``error``
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Any, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from gateway.wire.messages import (
    MAX_SEQ,
    MAX_STREAM,
    MAX_TEXT_BYTES,
    PIECE_BYTES,
    ClientMessage,
    ServerMessage,
)

VERSION = 1
HEADER_BYTES = 32
MAX_META_BYTES = MAX_TEXT_BYTES
MAX_BINARY_BYTES = HEADER_BYTES + MAX_META_BYTES + PIECE_BYTES  # of one WebSocket message

PROTOCOL_ERROR = 1002
INVALID_DATA = 1007
TOO_BIG = 1009

_HEADER = struct.Struct("<BBHIQQII")
_ALIGNMENT = 8
_Message = TypeVar("_Message")


class ProtocolError(Exception):
    """The peer broke the protocol.

    ``detail`` may be shown to the peer. ``close_code`` is the WebSocket close code to use, or
    ``None`` when an ``error`` message is answer enough and the connection lives on.
    """

    def __init__(self, detail: str, *, close_code: int | None = PROTOCOL_ERROR) -> None:
        super().__init__(detail)
        self.detail = detail
        self.close_code = close_code


class InvalidMessage(ProtocolError):
    """JSON, but not one of the messages: a field is missing, mistyped or out of range."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, close_code=None)


class UnknownType(ProtocolError):
    """A message type that this version does not know."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, close_code=None)


class UnexpectedMessage(ProtocolError):
    """A known message at a moment when it has no meaning."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, close_code=None)


class MessageType(IntEnum):
    """What the payload of a binary message is."""

    FRAME = 1
    TENSORS = 2
    ANNOTATED_FRAME = 3


class FrameFlags(IntFlag):
    """Bits of ``flags``. Others are refused: they could change what the payload means."""

    NONE = 0
    KEY = 1
    CONFIG = 2
    MORE = 8  # not the last piece


_KNOWN_FLAGS = int(FrameFlags.KEY | FrameFlags.CONFIG | FrameFlags.MORE)


class FrameHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The binary header. ``meta_len`` is what was on the wire; encoders compute it themselves.

    ``seq`` and ``t_us`` stay below 2**53, because results carry them back as JSON numbers.
    """

    type: MessageType
    stream: int
    seq: int
    t_us: int
    flags: FrameFlags = FrameFlags.NONE
    version: int = VERSION
    meta_len: int = 0

    @property
    def has_more(self) -> bool:
        """Whether further pieces of the same payload follow."""
        return bool(self.flags & FrameFlags.MORE)


class BinaryMessage(msgspec.Struct, frozen=True):
    """One decoded binary message; ``meta`` and ``payload`` are views of the received bytes."""

    header: FrameHeader
    meta: memoryview  # JSON, or empty; may end in spaces
    payload: memoryview


def decode_binary(data: bytes | memoryview) -> BinaryMessage:
    """Read one binary message without copying it.

    Raises:
        UnknownType: the type number is not known.
        ProtocolError: the header is malformed or one message carries too much.
    """
    view = memoryview(data).toreadonly()
    if len(view) < HEADER_BYTES:
        raise ProtocolError(f"binary message of {len(view)} bytes is shorter than its header")
    version, kind, flags, stream, seq, t_us, meta_len, reserved = _HEADER.unpack_from(view)
    if version != VERSION:
        raise ProtocolError(f"binary header version {version} is not {VERSION}")
    if reserved != 0 or flags & ~_KNOWN_FLAGS:
        raise ProtocolError("a flag or reserved byte of the binary header is set")
    if seq > MAX_SEQ or t_us > MAX_SEQ:
        raise ProtocolError("seq and t_us must be below 2**53")
    payload_at = HEADER_BYTES + meta_len
    if meta_len % _ALIGNMENT != 0 or meta_len > MAX_META_BYTES or payload_at > len(view):
        raise ProtocolError(f"meta_len {meta_len} is not possible here")
    if len(view) - payload_at > PIECE_BYTES:
        detail = f"one message carries at most {PIECE_BYTES} payload bytes: send pieces"
        raise ProtocolError(detail, close_code=TOO_BIG)
    try:
        message_type = MessageType(kind)
    except ValueError:
        raise UnknownType(f"binary message type {kind} is unknown") from None
    header = FrameHeader(
        type=message_type,
        stream=stream,
        seq=seq,
        t_us=t_us,
        flags=FrameFlags(flags),
        version=version,
        meta_len=meta_len,
    )
    return BinaryMessage(header, view[HEADER_BYTES:payload_at], view[payload_at:])


def encode_binary(header: FrameHeader, payload: bytes | memoryview, meta: bytes = b"") -> bytes:
    """One binary message; ``meta`` is padded with spaces so that the payload is aligned.

    Raises:
        ValueError: a field is out of range, or the payload needs ``split_binary``.
    """
    meta += b" " * (-len(meta) % _ALIGNMENT)
    if len(meta) > MAX_META_BYTES:
        raise ValueError(f"meta of {len(meta)} bytes exceeds {MAX_META_BYTES}")
    if len(payload) > PIECE_BYTES:
        raise ValueError(f"payload of {len(payload)} bytes exceeds {PIECE_BYTES}")
    return b"".join((_pack_header(header, len(meta)), meta, payload))


def split_binary(
    header: FrameHeader,
    payload: bytes | memoryview,
    meta: bytes = b"",
    *,
    piece_bytes: int = PIECE_BYTES,
) -> list[bytes]:
    """The payload as one message, or as pieces of at most ``piece_bytes`` of payload each.

    Every piece repeats the header, all but the last say MORE, ``meta`` is in the first.
    """
    if not 0 < piece_bytes <= PIECE_BYTES:
        raise ValueError(f"piece_bytes must be in 1..{PIECE_BYTES}, got {piece_bytes}")
    last = replace(header, flags=header.flags & ~FrameFlags.MORE)
    more = replace(header, flags=header.flags | FrameFlags.MORE)
    view = memoryview(payload)
    starts = range(0, max(len(view), 1), piece_bytes)
    return [
        encode_binary(
            last if start + piece_bytes >= len(view) else more,
            view[start : start + piece_bytes],
            meta if start == 0 else b"",
        )
        for start in starts
    ]


def _pack_header(header: FrameHeader, meta_len: int) -> bytes:
    if not (0 <= header.seq <= MAX_SEQ and 0 <= header.t_us <= MAX_SEQ):
        raise ValueError("seq and t_us must be in 0..2**53-1")
    if not 0 <= header.stream <= MAX_STREAM:
        raise ValueError(f"stream must be in 0..2**32-1, got {header.stream}")
    return _HEADER.pack(
        VERSION, header.type, header.flags, header.stream, header.seq, header.t_us, meta_len, 0
    )


class _AnyMessage(msgspec.Struct):
    """Only the tag, to tell an unknown type from a malformed message."""

    type: str


def _tags(union: Any) -> frozenset[str]:
    return frozenset(str(member.__struct_config__.tag) for member in get_args(union))


_TYPE_DECODER = msgspec.json.Decoder(_AnyMessage)
_CLIENT_DECODER: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_SERVER_DECODER: msgspec.json.Decoder[ServerMessage] = msgspec.json.Decoder(ServerMessage)
_CLIENT_TAGS = _tags(ClientMessage)
_SERVER_TAGS = _tags(ServerMessage)


# The message as JSON in UTF-8. The caller keeps it within ``MAX_TEXT_BYTES``.
encode: Callable[[ClientMessage | ServerMessage], bytes] = msgspec.json.Encoder().encode


def decode_client(text: bytes | memoryview) -> ClientMessage:
    """A control message that a client sent.

    Raises:
        UnknownType: the type is not one that a client sends.
        InvalidMessage: a field is missing, mistyped or out of range.
        ProtocolError: too long (1009), or not JSON in UTF-8 (1007).
    """
    return _decode_text(_CLIENT_DECODER, _CLIENT_TAGS, text)


def decode_server(text: bytes | memoryview) -> ServerMessage:
    """A control message that a server sent; raises as ``decode_client`` does."""
    return _decode_text(_SERVER_DECODER, _SERVER_TAGS, text)


def _decode_text(
    decoder: msgspec.json.Decoder[_Message], tags: frozenset[str], text: bytes | memoryview
) -> _Message:
    if len(text) > MAX_TEXT_BYTES:
        detail = f"a control message has at most {MAX_TEXT_BYTES} bytes"
        raise ProtocolError(detail, close_code=TOO_BIG)
    try:
        str(text, "utf-8")  # msgspec does not check members that it skips or keeps raw
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _explain(tags, text, str(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(str(error), close_code=INVALID_DATA) from None
    except RecursionError:
        raise ProtocolError("JSON is nested too deeply", close_code=INVALID_DATA) from None


def _explain(tags: frozenset[str], text: bytes | memoryview, detail: str) -> ProtocolError:
    try:
        tag = _TYPE_DECODER.decode(text).type
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return InvalidMessage(detail)
    if tag in tags:
        return InvalidMessage(f"{tag}: {detail}")
    return UnknownType(f"message type {tag[:64]!r} is unknown")
