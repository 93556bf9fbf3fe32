"""Admission: from a binary message to a frame in its lane, or to the reason why not.

The order of the checks is the protocol's: open stream, rising ``seq``, credit, type, size, codec
and picture header. Nothing is decoded, nothing waits. A frame arrives with its last piece: that is
when its deadline begins.
"""

from __future__ import annotations

from engine.errors import EngineError, Overloaded
from engine.types import DropReason, Item
from gateway.config_sections import LimitsConfig
from gateway.errors import (
    CloseCode,
    ConnectionFault,
    ProblemKind,
    RequestProblem,
    from_engine_error,
)
from gateway.session.deliver import Deliver
from gateway.session.frame_stream import AcceptedFrame, FrameStream
from gateway.session.receipts import hint_message, stream_error
from gateway.session.stream_table import StreamTable
from gateway.session.telling import Telling
from gateway.session.text_stream import TextStream
from gateway.stream.client_clock import ClientClock
from gateway.wire.assembly import FrameAssembler, FrameTooLarge
from gateway.wire.codec import BinaryMessage, MessageType, UnexpectedMessage
from gateway.wire.messages import StreamKind
from gateway.wire.protocol import StreamEvent, StreamState

_TYPES = {StreamKind.FRAMES: MessageType.FRAME, StreamKind.TENSORS: MessageType.TENSORS}


class Ingest:
    """Admits the frames of one session's streams.

    Each frame that is complete is accepted, and then answered through ``Deliver``, or refused with
    an ``error``. Unfinished frames are bounded by the assembler and given up after
    ``assembly_timeout_s``.
    """

    def __init__(
        self,
        *,
        limits: LimitsConfig,
        streams: StreamTable,
        deliver: Deliver,
        telling: Telling,
    ) -> None:
        self._limits = limits
        self._streams = streams
        self._deliver = deliver
        self._telling = telling
        self.client_clock = ClientClock()  # ``Watch`` sets it
        self._pressure = deliver.pressure
        self._assembler = FrameAssembler(
            max_frame_bytes=limits.max_frame_bytes,
            timeout_s=limits.assembly_timeout_s,
            max_unfinished=limits.max_streams,
        )

    def receive(self, message: BinaryMessage, now: float, *, is_draining: bool) -> None:
        """Take one binary message: a frame or a piece of one.

        Raises:
            ProtocolError: pieces do not fit together.
            ConnectionFault: the client ignores its credit.
        """
        header = message.header
        stream = self._streams.find(header.stream)
        if stream is None:
            if not self._streams.is_spent(header.stream) and not header.has_more:
                problem = RequestProblem(ProblemKind.UNKNOWN_STREAM, "open it first")
                self._telling.tell(stream_error(problem, header.stream, seq=header.seq))
            return
        if stream.state in (StreamState.CLOSING, StreamState.CLOSED):
            return  # was under way when the stream was closed
        if isinstance(stream, TextStream):
            if not header.has_more:
                problem = RequestProblem(ProblemKind.UNEXPECTED_MESSAGE, "the stream takes prompts")
                self._telling.tell(stream_error(problem, header.stream))
            return
        stream.receive_bytes(len(message.payload))
        try:
            stream.advance(StreamEvent.INPUT)
            complete = self._assembler.push(message, now)
        except UnexpectedMessage as error:
            if not header.has_more:
                problem = RequestProblem(ProblemKind.UNEXPECTED_MESSAGE, error.detail)
                self._refuse(stream, header.seq, problem, now)
        except FrameTooLarge as error:
            problem = RequestProblem(ProblemKind.FRAME_TOO_LARGE, error.detail)
            self._refuse(stream, header.seq, problem, now)
        else:
            if complete is not None:
                self._receive_frame(stream, complete, now, is_draining=is_draining)
            elif not header.has_more:
                # The last piece of a frame that was refused: its bytes are still credit.
                stream.credit.settle(0, stream.take_arrived_bytes())

    def expire(self, now: float) -> None:
        """Refuse frames whose pieces do not come."""
        for header in self._assembler.expire(now):
            stream = self._streams.find_frames(header.stream)
            if stream is not None:
                problem = RequestProblem(ProblemKind.TIMEOUT, "pieces are missing")
                self._refuse(stream, header.seq, problem, now)

    def forget(self, stream: FrameStream) -> None:
        """The stream takes no more input: an unfinished frame was never received."""
        self._assembler.forget(stream.id)

    def _receive_frame(
        self, stream: FrameStream, message: BinaryMessage, now: float, *, is_draining: bool
    ) -> None:
        is_covered = stream.credit.receive_frame(now)
        try:
            if not stream.is_next(message.header.seq):
                detail = f"seq {message.header.seq} after {stream.last_seq}"
                raise RequestProblem(ProblemKind.SEQ_NOT_RISING, detail)
            if is_draining:
                raise RequestProblem(ProblemKind.SHUTTING_DOWN)
            if not is_covered:
                raise RequestProblem(ProblemKind.CREDIT_EXCEEDED)
            self._pressure.check(stream.settings.lane.priority)
            self._check_payload(stream, message)
        except RequestProblem as problem:
            self._deliver.refuse(stream, message.header.seq, problem)
            self._check_abuse(stream)
        else:
            self._accept(stream, message, now)

    def _refuse(self, stream: FrameStream, seq: int, problem: RequestProblem, now: float) -> None:
        """Refuse a frame that never became complete."""
        stream.credit.receive_frame(now)
        stream.is_next(seq)
        self._deliver.refuse(stream, seq, problem)
        self._check_abuse(stream)

    def _check_abuse(self, stream: FrameStream) -> None:
        if stream.credit.is_far_exceeded:
            raise ConnectionFault(CloseCode.QUOTA, ProblemKind.CREDIT_EXCEEDED, "far over credit")

    def _check_payload(self, stream: FrameStream, message: BinaryMessage) -> None:
        kind = stream.settings.kind
        if message.header.type is not _TYPES[kind]:
            detail = f"type {message.header.type.value} on a stream of {kind.value}"
            raise RequestProblem(ProblemKind.INVALID_MESSAGE, detail)
        if kind is StreamKind.FRAMES:
            self._check_picture(stream, message.payload)
        elif not message.meta or not message.payload:
            raise RequestProblem(ProblemKind.INVALID_INPUT, "tensors need meta and payload")

    def _check_picture(self, stream: FrameStream, payload: memoryview) -> None:
        codec, wanted = stream.gate.check(payload), stream.settings.codec
        if wanted is not None and codec is not wanted:
            detail = f"{codec} on a stream of {wanted}"
            raise RequestProblem(ProblemKind.UNKNOWN_CODEC, detail)

    def _accept(self, stream: FrameStream, message: BinaryMessage, now: float) -> None:
        """From here on the frame is owed exactly one receipt."""
        seq, settings = message.header.seq, stream.settings
        stream.sequencer.reserve(seq)
        stream.tally.count_accepted()
        frame = AcceptedFrame(
            seq=seq,
            ordinal=stream.ordinal,
            t_us=message.header.t_us,
            received_at=now,
            deadline=self._deadline(settings.deadline_s, message.header.t_us, now),
            credit_bytes=stream.take_arrived_bytes(),
        )
        if not stream.hold(frame):
            self._deliver.drop(stream, frame, DropReason.QUEUE_FULL)
            return
        if stream.exceeds_rate(now):
            # ``max_fps`` keeps the earlier frame: this one gives way to it.
            self._deliver.drop(stream, frame, DropReason.SUPERSEDED)
            return
        self._advise(stream, frame.t_us, now)
        item = Item(
            id=seq,
            payload=message.payload,
            meta=bytes(message.meta) if settings.kind is StreamKind.TENSORS else b"",
            options=stream.options_for(now, allows_extras=self._pressure.allows_extras),
            deadline=frame.deadline,
        )
        try:
            stream.lane.offer(item)
        except Overloaded:
            stream.note_given_up()
            self._deliver.drop(stream, frame, DropReason.QUEUE_FULL)
        except EngineError as error:
            self._deliver.fail(stream, frame, from_engine_error(error))

    def _deadline(self, deadline_s: float | None, t_us: int, now: float) -> float | None:
        """Counted from the capture where the client's clock is known, else from the arrival."""
        if deadline_s is None:
            return None
        return now - self.client_clock.age_s(t_us, now) + deadline_s

    def _advise(self, stream: FrameStream, t_us: int, now: float) -> None:
        """Tell the camera what to send, if that has changed."""
        if stream.advice is None:
            return
        stream.advice.receive(t_us, now)
        hint = stream.advice.next_hint(now, is_pressed=self._pressure.wants_less_input)
        if hint is not None:
            self._telling.tell(hint_message(stream, hint))
