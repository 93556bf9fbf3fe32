"""Control messages of ``clawstream.v1`` (docs/wire-protocol.md) as typed structs.

Unknown fields are ignored, as the protocol asks; ``msgspec`` validates types while it decodes.
Optional fields that are unset stay off the wire. JSON that workers produced travels as ``Raw``.
"""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

SUBPROTOCOL = "clawstream.v1"
MAX_SEQ = 2**53 - 1
MAX_STREAM = 2**32 - 1
MAX_TEXT_BYTES = 64 * 1024
PIECE_BYTES = 128 * 1024


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

    stream: int
    last_seq: int


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
    deadline_ms: float | None = None
    max_fps: float | None = None
    priority: str = "standard"
    weight: float = 1.0
    pace: str | None = None
    annotate: str | None = None
    version: str | None = None


class Open(_Message, frozen=True, tag="open"):
    """Starts a stream; ``stream`` rises strictly within a session."""

    stream: int
    model: str
    kind: StreamKind = StreamKind.FRAMES
    options: StreamOptions = StreamOptions()


class Prompt(_Message, frozen=True, tag="prompt"):
    """One prompt on a ``tokens`` stream."""

    stream: int
    id: str
    messages: msgspec.Raw | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    sampling: msgspec.Raw | UnsetType = UNSET
    pace: str | UnsetType = UNSET
    priority: str | UnsetType = UNSET
    deadline_ms: float | UnsetType = UNSET


class Ack(_Message, frozen=True, tag="ack"):
    """The client has processed everything up to ``seq`` on this stream."""

    stream: int
    seq: int
    rendered_seq: int | UnsetType = UNSET


class Cancel(_Message, frozen=True, tag="cancel"):
    """Withdraws one frame (``seq``) or prompt (``id``)."""

    stream: int
    seq: int | UnsetType = UNSET
    id: str | UnsetType = UNSET


class EndInput(_Message, frozen=True, tag="end"):
    """No more input: finish what is accepted, then ``closed``."""

    stream: int


class Close(_Message, frozen=True, tag="close"):
    """Stop the stream now."""

    stream: int


class ClientPong(_Message, frozen=True, tag="pong"):
    """Answer to the server's ping."""

    t: float


ClientMessage = Hello | Open | Prompt | Ack | Cancel | EndInput | Close | Ping | ClientPong


# --- server to client ------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits announced in ``welcome``."""

    max_message_bytes: int
    max_frame_bytes: int
    max_streams: int
    max_width: int
    max_height: int
    max_pixels: int
    max_prompts: int
    ack_deadline_s: float


class ResumedStream(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one stream of a resumed session."""

    stream: int
    recovered: bool
    next_seq: int
    received_seq: int


class Welcome(_Message, frozen=True, tag="welcome"):
    """Answer to ``hello``. ``now_us`` is the server's monotonic clock within ``epoch``."""

    session: str
    epoch: str
    resume_token: str
    resume_window_s: float
    limits: Limits
    models: list[str]
    now_us: int
    resumed: list[ResumedStream] | UnsetType = UNSET


class CreditGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative since ``open``: how much the client may have sent in all."""

    max_frames: int
    max_bytes: int


class Opened(_Message, frozen=True, tag="opened"):
    """The stream exists; ``credit`` is its first grant."""

    stream: int
    credit: CreditGrant


class Credit(_Message, frozen=True, tag="credit"):
    """Raises the stream's cumulative limits."""

    stream: int
    max_frames: int
    max_bytes: int


class Hint(_Message, frozen=True, tag="hint"):
    """Asks the client to send less, or allows more again."""

    stream: int
    max_fps: float | UnsetType = UNSET
    max_width: int | UnsetType = UNSET
    quality: float | UnsetType = UNSET


class NeedKey(_Message, frozen=True, tag="need_key"):
    """The decoder needs a key frame."""

    stream: int


class ResultTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Where the frame spent its time, microseconds; ``received_us`` is on the server's clock."""

    received_us: int
    queue: int = 0
    batch: int = 0
    prepare: int = 0
    run: int = 0
    interpret: int = 0
    order: int = 0
    pace: int = 0


class AttachmentRef(msgspec.Struct, frozen=True, kw_only=True):
    """Names one binary message that was sent before this result: ``kind`` is its type number."""

    kind: int
    bytes: int


class ResultMessage(_Message, frozen=True, tag="result"):
    """Answer to one frame."""

    stream: int
    seq: int
    t_us: int
    model: str
    version: str
    data: msgspec.Raw
    timing: ResultTiming
    attachments: list[AttachmentRef] | UnsetType = UNSET


class Drop(_Message, frozen=True, tag="drop"):
    """``count`` received frames in ``first..last`` (wire: from, to) were given up."""

    stream: int
    reason: str
    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    count: int


class Token(_Message, frozen=True, tag="token"):
    """New text of one prompt."""

    stream: int
    id: str
    seq: int
    text: str
    pace: float | UnsetType = UNSET


class EndOutput(_Message, frozen=True, tag="end"):
    """One prompt is finished."""

    stream: int
    id: str
    seq: int
    finish_reason: str
    usage: msgspec.Raw | UnsetType = UNSET


class Closed(_Message, frozen=True, tag="closed"):
    """The stream is over; ``accepted = results + dropped + errors + cancelled``."""

    stream: int
    accepted: int
    results: int
    dropped: int
    errors: int
    cancelled: int


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
    retry_after_ms: int | UnsetType = UNSET
    stream: int | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    id: str | UnsetType = UNSET


class GoAway(_Message, frozen=True, tag="goaway"):
    """The server will close within ``deadline_ms``: finish, then reconnect elsewhere."""

    deadline_ms: int


class ServerPong(_Message, frozen=True, tag="pong"):
    """Answer to the client's ping, with the server's clock."""

    t: float
    now_us: int


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
    | Ping
    | ServerPong
)
