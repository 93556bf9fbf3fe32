"""From the engine's outcomes to receipts: sequencer, outbox, tallies and credit.

Every accepted frame is answered here and nowhere else (prompts: ``gateway.session.prompts``).
Drops and errors are decided when they are told; a result is decided when its first message is
handed to the writer, because until then it may still turn out too late.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.types import Cancelled, Dropped, DropReason, Failed, Outcome, Progress, Result
from gateway.errors import (
    CloseCode,
    ConnectionFault,
    ProblemKind,
    RequestProblem,
    from_engine_error,
)
from gateway.session.frame_stream import AcceptedFrame, FrameState, FrameStream
from gateway.session.receipts import (
    closed_entry,
    drop_entry,
    error_entry,
    opened_entry,
    result_group,
)
from gateway.session.stream_table import AnyStream, StreamTable
from gateway.session.text_stream import TextStream
from gateway.stream.entries import Entry, Outgoing, OutgoingKind
from gateway.stream.outbox import Outbox, OutboxFull
from gateway.wire.messages import MAX_TEXT_BYTES, Credit, ServerMessage
from gateway.wire.protocol import StreamEvent, StreamState

# Tokens are small, and felt when they stutter: their bytes weigh less than those of results.
TOKEN_SHARE = 8.0
_ACKNOWLEDGED = (OutgoingKind.RESULT, OutgoingKind.EVENT)


class Deliver:
    """Tells the receipts of frames, and puts what others tell into the outbox.

    All calls run on the loop's thread, none waits.

    Calls of the engine (``emit``) and of the outbox arrive here in any order, also nested: an
    ``offer`` may supersede an older frame before it returns. Frames that are answered are
    forgotten, so an outcome that comes late or twice finds nothing and changes nothing.
    """

    def __init__(
        self,
        *,
        outbox: Outbox,
        streams: StreamTable,
        now: Callable[[], float],
        on_fault: Callable[[ConnectionFault], None],
        on_latency: Callable[[str, float], None],
    ) -> None:
        self._outbox = outbox
        self._streams = streams
        self._now = now
        self._on_fault = on_fault
        self._on_latency = on_latency
        self._num_unsent = 0  # popped, not yet reported as sent
        outbox.on_settled = self._settle_result
        outbox.on_popped = self._settle_credit

    @property
    def is_idle(self) -> bool:
        """Whether everything told has been sent, and nothing is left to tell."""
        is_answered = all(stream.is_answered for stream in self._streams)
        return is_answered and self._num_unsent == 0 and self._outbox.is_empty

    # --- telling

    def tell(self, message: ServerMessage) -> None:
        """Queue a message about the connection."""
        try:
            self._outbox.put_control(message)
        except OutboxFull as error:
            self._fail_slow_reader(error)

    def put(self, stream: AnyStream, entry: Entry) -> None:
        """Queue a message of an open stream."""
        try:
            self._outbox.put(stream.id, entry)
        except OutboxFull as error:
            self._fail_slow_reader(error)

    def open(self, stream: AnyStream) -> None:
        """The stream exists from here on."""
        weight, keeps_late = stream.settings.lane.weight, True
        if isinstance(stream, TextStream):
            weight *= TOKEN_SHARE
        else:
            keeps_late = stream.settings.is_lossless
        self._outbox.open_stream(stream.id, weight=weight, keeps_late=keeps_late)
        self.put(stream, opened_entry(stream))

    def refuse(self, stream: FrameStream, seq: int, problem: RequestProblem) -> None:
        """Answer a frame that is not accepted; its credit comes back like any other's."""
        stream.tally.count_refused()
        self.put(stream, error_entry(stream, seq, problem, stream.take_arrived_bytes()))

    # --- answering accepted frames

    def emit(self, stream: FrameStream, seq: int, event: Progress | Outcome) -> None:
        """The engine's answer to frame ``seq``; never raises for one that is answered already."""
        frame = stream.frames.get(seq)
        if frame is None or frame.state is not FrameState.WAITING:
            return
        match event:
            case Result():
                frame.state = FrameState.HELD
                frame.completed_at = self._now()
                self._release(stream, stream.sequencer.complete(seq, event))
                self._finish_if_done(stream)
            case Dropped(reason):
                self.drop(stream, frame, reason)
            case Failed(error):
                self.fail(stream, frame, from_engine_error(error))
            case Cancelled():
                self.drop(stream, frame, DropReason.CANCELLED)
            case Progress():
                pass  # frames have no partial answers

    def drop(self, stream: FrameStream, frame: AcceptedFrame, reason: DropReason) -> None:
        """Answer a frame whose result is not queued: it is given up."""
        stream.let_go(frame.seq)
        stream.tally.count_dropped(reason)
        self.put(stream, drop_entry(frame, reason))
        self._release(stream, stream.sequencer.vacate(frame.seq))
        self._finish_if_done(stream)

    def fail(self, stream: FrameStream, frame: AcceptedFrame, problem: RequestProblem) -> None:
        """Answer a frame whose result is not queued: it failed."""
        self._answer_error(stream, frame, problem)
        self._release(stream, stream.sequencer.vacate(frame.seq))
        self._finish_if_done(stream)

    def cancel(self, stream: FrameStream, seq: int) -> None:
        """Withdraw a frame; one that is answered, or whose result is on its way, is left alone."""
        frame = stream.frames.get(seq)
        if frame is None or frame.state is FrameState.QUEUED:
            return
        if frame.state is FrameState.WAITING:
            stream.lane.cancel(seq)  # answers through ``emit``
        else:
            self.drop(stream, frame, DropReason.CANCELLED)

    # --- ending streams

    def end(self, stream: FrameStream) -> None:
        """No more input: ``closed`` follows the last receipt."""
        stream.advance(StreamEvent.END)
        self._finish_if_done(stream)

    def stop(self, stream: FrameStream) -> None:
        """Answer everything at once: what is not on its way is cancelled."""
        stream.advance(StreamEvent.CLOSE)
        # Held results first, or the frames they wait for would release them when cancelled.
        for seq in stream.sequencer.held:
            self.drop(stream, stream.frames[seq], DropReason.CANCELLED)
        stream.lane.close()
        self._finish_if_done(stream)

    def give_up(self, stream: FrameStream, reason: DropReason) -> None:
        """Answer at once what the engine has not; results that waited for it still leave."""
        for frame in tuple(stream.frames.values()):
            if frame.state is FrameState.WAITING:
                self.drop(stream, frame, reason)
        stream.lane.close()

    def abandon(self, stream: FrameStream, reason: DropReason) -> None:
        """The client is gone: count what it was not told, tell nobody."""
        num_frames = stream.let_go_of_all()
        if num_frames:
            stream.tally.count_dropped(reason, num_frames)
        stream.lane.close()

    # --- after the writer

    def handle_sent(self, outgoing: Outgoing) -> None:
        """The message was written: receipts give their credit back and wait for an ``ack``."""
        self._num_unsent -= 1
        stream = None if outgoing.stream is None else self._streams.find(outgoing.stream)
        if stream is None:
            return
        if outgoing.kind is OutgoingKind.CLOSED:
            self._streams.remove(stream.id)
            return
        if outgoing.kind in _ACKNOWLEDGED and outgoing.seq is not None:
            stream.acks.sent(outgoing.seq, self._now())
        is_open = stream.state is StreamState.OPEN
        if outgoing.num_frames and is_open and isinstance(stream, FrameStream):
            grant = stream.credit.next_announcement()
            if grant is not None:
                self.tell(Credit(stream=stream.id, **grant._asdict()))

    def _settle_credit(self, outgoing: Outgoing) -> None:
        # Before the write ends, or a client that is quicker than our bookkeeping would be refused
        # its next frame; it is announced only once written.
        self._num_unsent += 1
        if outgoing.stream is not None and outgoing.num_frames:
            stream = self._streams.find_frames(outgoing.stream)
            if stream is not None:
                stream.credit.settle(outgoing.num_frames, outgoing.credit_bytes)

    def _settle_result(self, stream_id: int, seq: int, delivered: bool) -> None:
        stream = self._streams.find_frames(stream_id)
        frame = None if stream is None else stream.let_go(seq)
        if stream is None or frame is None:
            return
        if delivered:
            stream.tally.count_result()
            self._on_latency(stream.settings.lane.model, self._now() - frame.received_at)
        else:
            stream.tally.count_dropped(DropReason.LATE)
        self._finish_if_done(stream)

    # --- into the outbox

    def _release(self, stream: FrameStream, released: list[tuple[int, Result]]) -> None:
        for seq, result in released:
            frame = stream.frames[seq]
            group = result_group(stream, frame, result, self._now())
            if len(group.text) > MAX_TEXT_BYTES:
                detail = f"the result of {len(group.text)} bytes exceeds {MAX_TEXT_BYTES}"
                problem = RequestProblem(ProblemKind.LIMIT_EXCEEDED, detail)
                self._answer_error(stream, frame, problem)
            else:
                frame.state = FrameState.QUEUED
                self.put(stream, group)

    def _answer_error(
        self, stream: FrameStream, frame: AcceptedFrame, problem: RequestProblem
    ) -> None:
        stream.let_go(frame.seq)
        stream.tally.count_error()
        self.put(stream, error_entry(stream, frame.seq, problem, frame.credit_bytes))

    def _finish_if_done(self, stream: FrameStream) -> None:
        if stream.state not in (StreamState.ENDING, StreamState.CLOSING) or stream.frames:
            return
        stream.advance(StreamEvent.FINISHED)
        stream.lane.close()
        self.put(stream, closed_entry(stream))

    def _fail_slow_reader(self, error: OutboxFull) -> None:
        fault = ConnectionFault(CloseCode.SLOW_READER, ProblemKind.SLOW_READER, str(error))
        self._on_fault(fault)
