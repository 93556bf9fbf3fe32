"""From the engine's outcomes to receipts: sequencer, outbox, tallies and credit.

Every accepted frame is answered here and nowhere else (prompts: ``gateway.session.prompts``).
Drops and errors are decided when they are told; a result is decided when its first message is
handed to the writer, because until then it may still turn out too late.
"""

from __future__ import annotations

from functools import partial

from engine.types import Cancelled, Dropped, DropReason, Failed, Outcome, Policy, Progress, Result
from gateway.errors import (
    ProblemKind,
    RequestProblem,
    from_engine_error,
)
from gateway.session.clock import Clock
from gateway.session.frame_stream import AcceptedFrame, FrameState, FrameStream
from gateway.session.playout import Playout
from gateway.session.receipts import (
    closed_entry,
    drop_entry,
    error_entry,
    opened_entry,
    result_group,
)
from gateway.session.registry import SessionRegistry
from gateway.session.stream_table import AnyStream, StreamTable
from gateway.session.telling import Telling
from gateway.session.text_stream import TextStream
from gateway.stream.entries import CONTROL, EVENT, Keep, Outgoing, OutgoingKind, ResultGroup
from gateway.stream.outbox import LARGE_BYTES, Outbox, ignore, ignore_popped, ignore_settled
from gateway.wire.messages import MAX_TEXT_BYTES, Credit, ServerEvent
from gateway.wire.protocol import StreamEvent, StreamState

# Tokens are small, and felt when they stutter: their bytes weigh less than those of results.
TOKEN_SHARE = 8.0
_KEEP = {Policy.LATEST: Keep.NEWEST, Policy.FIFO: Keep.TIMELY, Policy.LOSSLESS: Keep.ALL}


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
        telling: Telling,
        streams: StreamTable,
        clock: Clock,
        registry: SessionRegistry,
    ) -> None:
        self._telling = telling
        self._streams = streams
        self._now = clock.now
        self._on_latency = registry.observe_latency
        self._clock = clock
        self.pressure = registry.tiers.pressure
        if telling.outbox is not None:
            self.attach(telling.outbox)

    @property
    def is_idle(self) -> bool:
        """Whether everything told has been sent, and nothing is left to tell."""
        return self._telling.is_done and all(stream.is_answered for stream in self._streams)

    # --- the connection

    def attach(self, outbox: Outbox) -> None:
        """There is a connection, and this is what it sends."""
        self._telling.outbox = outbox
        outbox.on_settled = self._settle_result
        outbox.on_popped = self._settle_credit
        outbox.on_overflow = self._telling.fail_for_others

    def detach(self) -> None:
        """The connection is gone: what waited for it is forgotten, undecided; idempotent.

        Until the next one, events of token streams go into their logs, and everything else nowhere.
        """
        outbox, self._telling.outbox = self._telling.outbox, None
        if outbox is not None:
            outbox.on_settled, outbox.on_popped = ignore_settled, ignore_popped
            outbox.on_overflow = ignore
            outbox.clear()
        self._telling.holding.clear()

    # --- telling

    def say(self, event: ServerEvent) -> bool:
        """Tell people something, ahead of all text that waits; returns whether there is a
        connection, and the stream if one is named."""
        is_there = not isinstance(event.stream, int) or self._streams.find(event.stream) is not None
        if not self._telling.is_attached or not is_there:
            return False
        self._telling.tell(event)
        return True

    def open(self, stream: AnyStream) -> None:
        """The stream exists from here on."""
        if isinstance(stream, FrameStream):
            self._start_playout(stream)
        self._open(stream)
        self._telling.put(stream, opened_entry(stream))

    def reopen(self, stream: AnyStream) -> None:
        """The stream goes on, on a new connection; what it has missed is for a ``Replay``."""
        self._open(stream)
        if isinstance(stream, FrameStream):
            self._telling.tell(Credit(stream=stream.id, **stream.credit.grant._asdict()))

    def refuse(self, stream: FrameStream, seq: int, problem: RequestProblem) -> None:
        """Answer a frame that is not accepted; its credit comes back like any other's."""
        stream.tally.count_refused()
        self._telling.put(stream, error_entry(stream, seq, problem, stream.take_arrived_bytes()))

    # --- answering accepted frames

    def emit(self, stream: FrameStream, seq: int, event: Progress | Outcome) -> None:
        """The engine's answer to frame ``seq``; never raises for one that is answered already."""
        frame = stream.frames.get(seq)
        if frame is None or frame.state is not FrameState.WAITING:
            return
        match event:
            case Result():
                self._note_wait(stream, frame)
                frame.state = FrameState.HELD
                frame.completed_at = self._now()
                self._release(stream, stream.sequencer.complete(seq, event))
                self._close_gaps(stream)
                self._finish_if_done(stream)
            case Dropped(reason):
                if reason is DropReason.DEADLINE:
                    self._note_wait(stream, frame)
                stream.note_given_up()
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
        self._telling.put(stream, drop_entry(frame, reason))
        if frame.state is FrameState.PACED:
            assert stream.playout is not None
            stream.playout.withdraw(frame.seq)
        else:
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
        paced = () if stream.playout is None else stream.playout.seqs
        for seq in (*paced, *stream.sequencer.held):
            self.drop(stream, stream.frames[seq], DropReason.CANCELLED)
        stream.close_lane()
        self._finish_if_done(stream)

    def give_up(self, stream: FrameStream, reason: DropReason) -> None:
        """Answer at once what the engine has not; results that waited for it still leave."""
        for frame in tuple(stream.frames.values()):
            if frame.state is FrameState.WAITING:
                self.drop(stream, frame, reason)
        stream.close_lane()

    def abandon(self, stream: FrameStream, reason: DropReason) -> None:
        """The client is gone: count what it was not told, tell nobody."""
        num_frames = stream.let_go_of_all()
        if num_frames:
            stream.tally.count_dropped(reason, num_frames)
        stream.close_lane()

    # --- after the writer

    def handle_sent(self, outgoing: Outgoing) -> None:
        """The message was written: receipts give their credit back and wait for an ``ack``; nothing
        once the connection is gone."""
        if outgoing.kind is CONTROL or outgoing.stream is None or not self._telling.is_attached:
            return
        stream = self._streams.find(outgoing.stream)
        if stream is None:
            return
        if outgoing.kind is EVENT:
            if isinstance(stream, TextStream) and outgoing.seq is not None:
                stream.note_sent(outgoing.seq, self._now())
            return
        if outgoing.kind is OutgoingKind.RESULT and outgoing.seq is not None:
            stream.acks.sent(outgoing.seq, self._now())
        if outgoing.kind is OutgoingKind.CLOSED:
            self._streams.finish(stream)
            return
        is_open = stream.state is StreamState.OPEN
        if outgoing.num_frames and is_open and isinstance(stream, FrameStream):
            grant = stream.credit.next_announcement()
            if grant is not None:
                self._telling.tell(Credit(stream=stream.id, **grant._asdict()))

    def _settle_credit(self, outgoing: Outgoing) -> None:
        # Before the write ends, or a client that is quicker than our bookkeeping would be refused
        # its next frame; it is announced only once written.
        if outgoing.stream is not None:
            stream = self._streams.find_frames(outgoing.stream)
            if stream is not None:
                stream.credit.settle(outgoing.num_frames, outgoing.credit_bytes)

    def _settle_result(self, stream_id: int, seq: int, reason: DropReason | None) -> None:
        stream = self._streams.find_frames(stream_id)
        frame = None if stream is None else stream.let_go(seq)
        if stream is None or frame is None:
            return
        if reason is None:
            now = self._now()
            stream.tally.count_result()
            stream.note_served(now - frame.received_at, now)
            order_s = frame.sequenced_at - frame.completed_at
            self._on_latency(stream.settings.lane.model, now - frame.received_at, order_s)
        else:
            stream.tally.count_dropped(reason)
            stream.note_given_up()
        self._finish_if_done(stream)

    # --- into the outbox

    def _open(self, stream: AnyStream) -> None:
        outbox = self._telling.outbox
        if outbox is None:
            return
        weight, keep = stream.settings.lane.weight, Keep.ALL
        if isinstance(stream, TextStream):
            weight *= TOKEN_SHARE
        else:
            keep = _KEEP[stream.settings.lane.policy]
        outbox.open_stream(stream.id, weight=weight, keep=keep)

    def _release(self, stream: FrameStream, released: list[tuple[int, Result]]) -> None:
        for seq, result in released:
            frame = stream.frames[seq]
            frame.sequenced_at = self._now()
            if stream.playout is None:
                self._send(stream, frame, result)
                continue
            frame.state = FrameState.PACED
            if not stream.playout.put(seq, frame.t_us, frame.deadline, result):
                stream.note_given_up()
                self.drop(stream, frame, DropReason.LATE)

    def _close_gaps(self, stream: FrameStream) -> None:
        """Answer frames that too many results wait for; what the engine says later is ignored."""
        while (seq := stream.sequencer.overdue) is not None:
            stream.note_given_up()
            self.drop(stream, stream.frames[seq], DropReason.LATE)
            stream.lane.cancel(seq)

    def _start_playout(self, stream: FrameStream) -> None:
        max_delay_s = stream.settings.max_playout_delay_s
        if max_delay_s is not None:
            show = partial(self._show, stream)
            stream.playout = Playout(self._clock, max_delay_s=max_delay_s, release=show)

    def _show(self, stream: FrameStream, seq: int, result: Result) -> None:
        """The result's playout time has come."""
        self._send(stream, stream.frames[seq], result)
        self._finish_if_done(stream)

    def _send(self, stream: FrameStream, frame: AcceptedFrame, result: Result) -> None:
        has_hops = self.pressure.allows_extras
        group = result_group(stream, frame, result, self._now(), has_hops=has_hops)
        if len(group.text) > MAX_TEXT_BYTES:
            detail = f"the result of {len(group.text)} bytes exceeds {MAX_TEXT_BYTES}"
            problem = RequestProblem(ProblemKind.LIMIT_EXCEEDED, detail)
            self._answer_error(stream, frame, problem)
        else:
            frame.state = FrameState.QUEUED
            if not self._pass_by(stream, group):
                self._telling.put(stream, group)

    def _pass_by(self, stream: FrameStream, group: ResultGroup) -> bool:
        """Whether the result was sent at once: a small one that is in time, when nothing waits."""
        outbox = self._telling.outbox
        if outbox is None or self._telling.holding or group.size_bytes > LARGE_BYTES:
            return False
        if group.pieces or (group.deadline is not None and self._now() > group.deadline):
            return False
        outgoing = group.last_message(stream.id)
        if not outbox.pass_by(outgoing):
            return False
        self._settle_credit(outgoing)
        self._settle_result(stream.id, group.seq, None)
        self.handle_sent(outgoing)
        return True

    def _note_wait(self, stream: FrameStream, frame: AcceptedFrame) -> None:
        if frame.deadline is None:
            return  # who waits for everything waits as long as it takes
        lane, received_at = stream.settings.lane, frame.received_at
        wait_s, allowed_s = self._now() - received_at, frame.deadline - received_at
        self.pressure.note_wait(lane.model, lane.priority, wait_s=wait_s, allowed_s=allowed_s)

    def _answer_error(
        self, stream: FrameStream, frame: AcceptedFrame, problem: RequestProblem
    ) -> None:
        stream.let_go(frame.seq)
        stream.tally.count_error()
        self._telling.put(stream, error_entry(stream, frame.seq, problem, frame.credit_bytes))

    def _finish_if_done(self, stream: FrameStream) -> None:
        if stream.state not in (StreamState.ENDING, StreamState.CLOSING) or stream.frames:
            return
        stream.advance(StreamEvent.FINISHED)
        stream.close_lane()
        self._telling.put(stream, closed_entry(stream))
