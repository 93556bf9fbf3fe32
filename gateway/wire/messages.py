"""Control messages of ``clawstream.v1`` (docs/wire-protocol.md) as typed structs.

Unknown fields are ignored, as the protocol asks; ``msgspec`` validates types while it decodes.
Optional fields that are unset stay off the wire. JSON that workers produced travels as ``Raw``.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

SUBPROTOCOL = "clawstream.v1"
MAX_SEQ = 2**53 - 1
MAX_STREAM = 2**32 - 1
MAX_TEXT_BYTES = 64 * 1024
PIECE_BYTES = 128 * 1024

# Checked while decoding; MAX_SEQ keeps every integer exact in JavaScript.
StreamId = Annotated[int, Meta(ge=0, le=MAX_STREAM)]
Seq = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
Count = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
LastSeq = Annotated[int, Meta(ge=-1, le=MAX_SEQ)]  # -1: nothing yet
PositiveFloat = Annotated[float, Meta(gt=0)]
PromptId = Annotated[str, Meta(min_length=1, max_length=128)]


class StreamKind(Enum):
    """What a stream carries from the client."""

    FRAMES = "frames"
    TENSORS = "tensors"
    TOKENS = "tokens"


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of every control message."""


# --- both directions -------------------------------------------------------------------------


class Ping(_Message, frozen=True, tag="ping"):
    """``t`` is opaque and comes back in ``pong``."""

    t: float


# --- client to server ------------------------------------------------------------------------


class ResumeStream(msgspec.Struct, frozen=True, kw_only=True):
    """Where a resuming client stands on one stream."""

    stream: StreamId
    last_seq: LastSeq


class ResumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to continue an earlier session."""

    session: str
    token: str
    streams: list[ResumeStream] = []


class Hello(_Message, frozen=True, tag="hello"):
    """First message of a connection."""

    token: str | None = None
    resume: ResumeRequest | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of ``open``. ``annotate`` is ``boxes`` or ``blur``."""

    codec: str | None = None  # jpeg | png | webp; None: whatever the picture says it is
    policy: str = "latest"
    deadline_ms: PositiveFloat | None = None
    max_fps: PositiveFloat | None = None
    priority: str = "standard"
    weight: PositiveFloat = 1.0
    pace: str | None = None
    annotate: str | None = None
    version: str | None = None
    timing: bool = False  # of tokens; results always have it


class Open(_Message, frozen=True, tag="open"):
    """Starts a stream; ``stream`` rises strictly within a session."""

    stream: StreamId
    model: str
    kind: StreamKind = StreamKind.FRAMES
    options: StreamOptions = StreamOptions()


class Prompt(_Message, frozen=True, tag="prompt"):
    """One prompt on a ``tokens`` stream."""

    stream: StreamId
    id: PromptId
    messages: msgspec.Raw | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    sampling: msgspec.Raw | UnsetType = UNSET
    pace: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    deadline_ms: PositiveFloat | UnsetType = UNSET


class Ack(_Message, frozen=True, tag="ack"):
    """The client has processed everything up to ``seq`` on this stream."""

    stream: StreamId
    seq: Seq
    rendered_seq: Seq | UnsetType = UNSET


class Cancel(_Message, frozen=True, tag="cancel"):
    """Withdraws one frame (``seq``) or prompt (``id``)."""

    stream: StreamId
    seq: Seq | UnsetType = UNSET
    id: PromptId | UnsetType = UNSET


class EndInput(_Message, frozen=True, tag="end"):
    """No more input: finish what is accepted, then ``closed``."""

    stream: StreamId


class Close(_Message, frozen=True, tag="close"):
    """Stop the stream now."""

    stream: StreamId


class ClientPong(_Message, frozen=True, tag="pong"):
    """Answer to the server's ping. ``now_us`` is the clock of the client's ``t_us``."""

    t: float
    now_us: Count | UnsetType = UNSET


ClientMessage = Hello | Open | Prompt | Ack | Cancel | EndInput | Close | Ping | ClientPong


# --- server to client ------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits announced in ``welcome``."""

    max_message_bytes: Count
    max_frame_bytes: Count
    max_streams: Count
    max_width: Count
    max_height: Count
    max_pixels: Count
    max_prompts: Count
    max_messages_per_s: PositiveFloat
    ack_deadline_s: float


class ResumedStream(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one stream of a resumed session."""

    stream: StreamId
    recovered: bool
    next_seq: Seq
    received_seq: LastSeq


class Welcome(_Message, frozen=True, tag="welcome"):
    """Answer to ``hello``. ``now_us`` is the server's monotonic clock within ``epoch``."""

    session: str
    epoch: str
    resume_token: str
    resume_window_s: float
    limits: Limits
    models: list[str]
    now_us: Count
    resumed: list[ResumedStream] | UnsetType = UNSET
    service_level: str | UnsetType = UNSET  # unless it is normal


class CreditGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative since ``open``: how much the client may have sent in all."""

    max_frames: Count
    max_bytes: Count


class Opened(_Message, frozen=True, tag="opened"):
    """The stream exists; ``credit`` is its first grant."""

    stream: StreamId
    credit: CreditGrant


class Credit(_Message, frozen=True, tag="credit"):
    """Raises the stream's cumulative limits."""

    stream: StreamId
    max_frames: Count
    max_bytes: Count


class Hint(_Message, frozen=True, tag="hint"):
    """What a camera is to keep to from now on; what is not named has no limit (any more).

    ``quality`` is that of JPEG, above 0 and at most 1.
    """

    stream: StreamId
    max_fps: PositiveFloat | UnsetType = UNSET
    max_width: Count | UnsetType = UNSET
    quality: float | UnsetType = UNSET


class NeedKey(_Message, frozen=True, tag="need_key"):
    """The decoder needs a key frame."""

    stream: StreamId


class ResultTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Where the frame spent its time, microseconds; ``received_us`` is on the server's clock."""

    received_us: Count
    queue: Count = 0
    batch: Count = 0
    prepare: Count = 0
    run: Count = 0
    interpret: Count = 0
    order: Count = 0
    pace: Count = 0


class AttachmentRef(msgspec.Struct, frozen=True, kw_only=True):
    """Names one binary message that was sent before this result: ``kind`` is its type number."""

    kind: int
    bytes: Count


class ResultMessage(_Message, frozen=True, tag="result"):
    """Answer to one frame."""

    stream: StreamId
    seq: Seq
    t_us: Count
    model: str
    version: str
    data: msgspec.Raw
    timing: ResultTiming
    attachments: list[AttachmentRef] | UnsetType = UNSET


class Drop(_Message, frozen=True, tag="drop"):
    """``count`` received frames in ``first..last`` (wire: from, to) were given up."""

    stream: StreamId
    reason: str
    first: Seq = msgspec.field(name="from")
    last: Seq = msgspec.field(name="to")
    count: Count


class TokenTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Of an event's oldest token: when it came from the engine (server clock) and how long it was
    held, microseconds. ``reserve`` texts of the answer are still held."""

    engine_us: Count
    held_us: Count
    reserve: Count


class Token(_Message, frozen=True, tag="token"):
    """New text of one prompt. With ``replay`` the answer is told from its beginning again, because
    its prompt was repeated: the text replaces what came before. ``pace`` is in milliseconds until
    the next one is due; ``count`` says that it is several tokens in one message."""

    stream: StreamId
    id: PromptId
    seq: Seq
    text: str
    pace: float | UnsetType = UNSET
    count: Count | UnsetType = UNSET
    replay: bool | UnsetType = UNSET
    timing: TokenTiming | UnsetType = UNSET  # if the stream asked for it


class EndOutput(_Message, frozen=True, tag="end"):
    """One prompt is finished. ``version`` is of what answered; a cancelled prompt has neither it
    nor ``usage``."""

    stream: StreamId
    id: PromptId
    seq: Seq
    finish_reason: str
    usage: msgspec.Raw | UnsetType = UNSET
    version: str | UnsetType = UNSET


class Closed(_Message, frozen=True, tag="closed"):
    """The stream is over; ``accepted = results + dropped + errors + cancelled``."""

    stream: StreamId
    accepted: Count
    results: Count
    dropped: Count
    errors: Count
    cancelled: Count


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457 problem details; ``type`` is one of the closed list in the docs."""

    type: str
    title: str
    status: int
    detail: str = ""
    instance: str = ""


class ErrorMessage(_Message, frozen=True, tag="error"):
    """Something went wrong with the connection, a stream, a frame or a prompt."""

    problem: Problem
    retryable: bool
    retry_after_ms: Count | UnsetType = UNSET
    stream: StreamId | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET
    id: PromptId | UnsetType = UNSET


class GoAway(_Message, frozen=True, tag="goaway"):
    """The server will close within ``deadline_ms``: finish, then reconnect elsewhere."""

    deadline_ms: Count


class ServerEvent(_Message, frozen=True, tag="server_event"):
    """News for the people at the other end: ``message`` from an operator, about one stream or all
    of the connection, or ``service_level``, whose new name is ``level``."""

    kind: str
    text: str
    stream: StreamId | UnsetType = UNSET
    level: str | UnsetType = UNSET


class ServerPong(_Message, frozen=True, tag="pong"):
    """Answer to the client's ping, with the server's clock."""

    t: float
    now_us: Count


ServerMessage = (
    Welcome
    | Opened
    | Credit
    | Hint
    | NeedKey
    | ResultMessage
    | Drop
    | Token
    | EndOutput
    | Closed
    | ErrorMessage
    | GoAway
    | ServerEvent
    | Ping
    | ServerPong
)
