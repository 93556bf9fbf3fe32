"""What receipts look like on the wire: results with their attachments, drops, errors, totals."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from engine.types import DropReason, Result
from gateway.errors import RequestProblem, error_message
from gateway.session.frame_stream import AcceptedFrame, FrameStream
from gateway.session.text_stream import TextStream
from gateway.stream.advice import Advised
from gateway.stream.credit import Grant
from gateway.stream.entries import EVENT, DropRange, Outgoing, OutgoingKind, ResultGroup
from gateway.stream.release import Departure
from gateway.wire.codec import FrameHeader, MessageType, encode, split_binary
from gateway.wire.messages import (
    AttachmentRef,
    Closed,
    CreditGrant,
    EndOutput,
    ErrorMessage,
    Hint,
    Opened,
    ResultMessage,
    ResultTiming,
    Token,
    TokenTiming,
)

# Of one event: a character takes at most six bytes in JSON, so this is well below MAX_TEXT_BYTES.
EVENT_CHARS = 10_000
_NO_FRAMES = Grant(max_frames=0, max_bytes=0)


def stream_error(
    problem: RequestProblem, stream: int, *, seq: int | None = None, prompt_id: str | None = None
) -> ErrorMessage:
    """The ``error`` that tells a refusal on a stream, of a frame or of a prompt."""
    return msgspec.structs.replace(
        error_message(problem),
        stream=stream,
        seq=UNSET if seq is None else seq,
        id=UNSET if prompt_id is None else prompt_id,
    )


def opened_entry(stream: FrameStream | TextStream) -> Outgoing:
    """The stream exists and has its first credit, which is for frames."""
    grant = stream.credit.grant if isinstance(stream, FrameStream) else _NO_FRAMES
    text = encode(Opened(stream=stream.id, credit=CreditGrant(**grant._asdict())))
    return Outgoing(kind=OutgoingKind.STREAM, data=text, stream=stream.id)


def error_entry(
    stream: FrameStream, seq: int, problem: RequestProblem, credit_bytes: int
) -> Outgoing:
    """A frame failed or is refused; ``credit_bytes`` come back to the client with this."""
    return Outgoing(
        kind=OutgoingKind.STREAM,
        data=encode(stream_error(problem, stream.id, seq=seq)),
        stream=stream.id,
        seq=seq,
        num_frames=1,
        credit_bytes=credit_bytes,
    )


def hint_message(stream: FrameStream, advised: Advised) -> Hint:
    """All that the camera is to keep to; what is not named has no limit."""
    return Hint(
        stream=stream.id,
        max_fps=UNSET if advised.max_fps is None else advised.max_fps,
        max_width=UNSET if advised.max_width is None else advised.max_width,
        quality=UNSET if advised.quality is None else advised.quality,
    )


def drop_entry(frame: AcceptedFrame, reason: DropReason) -> DropRange:
    """The frame is given up."""
    return DropRange(
        reason=reason,
        first_seq=frame.seq,
        last_seq=frame.seq,
        first_ordinal=frame.ordinal,
        last_ordinal=frame.ordinal,
        credit_bytes=frame.credit_bytes,
    )


def token_entry(
    stream: TextStream,
    prompt_id: str,
    departure: Departure,
    timing: TokenTiming | None,
    *,
    start: int = 0,
) -> Outgoing:
    """New text of one prompt, from ``start`` on, up to ``EVENT_CHARS`` characters."""
    pace_s, num_texts, seq = departure.pace_s, departure.num_texts, stream.take_seq()
    token = Token(
        stream=stream.id,
        id=prompt_id,
        seq=seq,
        text=departure.text[start : start + EVENT_CHARS],
        # Milliseconds to two places; round() takes 0.3 us longer.
        pace=UNSET if pace_s is None else int(1e5 * pace_s + 0.5) / 100,
        count=num_texts if num_texts > 1 and start == 0 else UNSET,
        timing=UNSET if timing is None else timing,
    )
    return Outgoing(kind=EVENT, data=encode(token), stream=stream.id, seq=seq)


def replay_entries(stream: TextStream, prompt_id: str, text: str) -> Iterator[Outgoing]:
    """An answer from its beginning, as far as it was told; nothing of one that has no text yet."""
    for start in range(0, len(text), EVENT_CHARS):
        token = Token(
            stream=stream.id,
            id=prompt_id,
            seq=stream.take_seq(),
            text=text[start : start + EVENT_CHARS],
            replay=True if start == 0 else UNSET,
        )
        yield Outgoing(kind=EVENT, data=encode(token), stream=stream.id, seq=token.seq)


def end_entry(stream: TextStream, ending: EndOutput) -> Outgoing:
    """The prompt is finished."""
    numbered = msgspec.structs.replace(ending, seq=stream.take_seq())
    return Outgoing(kind=EVENT, data=encode(numbered), stream=stream.id, seq=numbered.seq)


def prompt_error_entry(stream: TextStream, error: ErrorMessage) -> Outgoing:
    """The prompt failed or is refused."""
    seq = stream.take_seq()
    numbered = msgspec.structs.replace(error, seq=seq)
    return Outgoing(kind=EVENT, data=encode(numbered), stream=stream.id, seq=seq)


def closed_entry(stream: FrameStream | TextStream) -> Outgoing:
    """The stream's totals; nothing is in flight any more."""
    tally = stream.tally
    closed = Closed(
        stream=stream.id,
        accepted=tally.accepted,
        results=tally.results,
        dropped=tally.num_dropped,
        errors=tally.errors,
        cancelled=tally.cancelled,
    )
    return Outgoing(kind=OutgoingKind.CLOSED, data=encode(closed), stream=stream.id)


def result_group(
    stream: FrameStream, frame: AcceptedFrame, result: Result, now: float, *, has_hops: bool
) -> ResultGroup:
    """The frame's result, which may leave ``now``, with its attachments in pieces; ``has_hops``
    says where its time went."""
    pieces: list[bytes] = []
    for attachment in result.attachments:
        header = FrameHeader(
            type=MessageType(attachment.kind.value),
            stream=stream.id,
            seq=frame.seq,
            t_us=frame.t_us,
        )
        pieces += split_binary(header, attachment.payload, attachment.meta)
    return ResultGroup(
        seq=frame.seq,
        ordinal=frame.ordinal,
        ready_at=now,
        deadline=frame.deadline,
        credit_bytes=frame.credit_bytes,
        pieces=tuple(pieces),
        text=encode(_result_message(stream, frame, result, now if has_hops else None)),
    )


def _result_message(
    stream: FrameStream, frame: AcceptedFrame, result: Result, now: float | None
) -> ResultMessage:
    attachments = [
        AttachmentRef(kind=attachment.kind.value, bytes=len(attachment.payload))
        for attachment in result.attachments
    ]
    return ResultMessage(
        stream=stream.id,
        seq=frame.seq,
        t_us=frame.t_us,
        model=result.model,
        version=result.version,
        data=msgspec.Raw(result.data),
        attachments=attachments or UNSET,
        timing=_timing(frame, result, now),
    )


def _timing(frame: AcceptedFrame, result: Result, now: float | None) -> ResultTiming:
    received_us = int(frame.received_at * 1e6)
    if now is None:
        return ResultTiming(received_us=received_us)
    timing = result.timing
    return ResultTiming(
        received_us=received_us,
        queue=timing.queue,
        batch=timing.batch,
        prepare=timing.prepare,
        run=timing.run,
        interpret=timing.interpret,
        order=int((frame.sequenced_at - frame.completed_at) * 1e6),
        pace=int((now - frame.sequenced_at) * 1e6),
    )
