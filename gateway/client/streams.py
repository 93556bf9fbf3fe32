"""One stream of frames: a producer that honours credit, an iterator over the answers.

Two tasks meet here. The producer takes frames from the source and sends them; the connection's
reader hands in receipts through the ``on_…`` methods, which return at once. Both, and whoever
iterates, wait for ``_changed``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable

from gateway.client.acks import AckTracker
from gateway.client.attached import StreamOwner
from gateway.client.errors import ConnectError, Event, StreamError, problem_text
from gateway.client.frames import CapturedFrame, FrameSource
from gateway.client.hints import HintedSource
from gateway.client.ledger import FrameLedger
from gateway.client.link import Link, LinkLost
from gateway.client.results import FrameResult, frame_result
from gateway.client.statistics import StreamStatistics
from gateway.client.stream_spec import StreamSpec
from gateway.wire import codec
from gateway.wire.codec import BinaryMessage, FrameHeader, MessageType
from gateway.wire.messages import (
    PIECE_BYTES,
    Close,
    Closed,
    Credit,
    Drop,
    EndInput,
    ErrorMessage,
    Hint,
    Open,
    Opened,
    ResultMessage,
    ServerMessage,
)
from gateway.wire.protocol import STREAM, StreamEvent, StreamState, advance

MAX_RESULTS = 64  # unread, and with those in flight unless the policy is latest
MAX_ATTACHMENTS = 8  # of one result
OPEN_TIMEOUT_S = 10.0
FINISH_TIMEOUT_S = 30.0  # beyond the deadline, without any message of the stream, while it ends
CLOSE_TIMEOUT_S = 2.0
REOPEN_TIMEOUT_S = 60.0  # for a restarted server whose model is not ready yet
REOPEN_DELAY_S = 1.0


class FrameStream:
    """Answers to the frames of one source, by ``async for``, once.

    Leaving the loop early closes the stream. Of ``latest`` the oldest of 64 unread results is
    discarded and counted; under the other policies a reader that lags stops the producer. After a
    reconnect the stream goes on under a new id; what was in flight counts as ``disconnected``.
    A source that ends during an outage, or before one, ends the stream with ``ConnectError`` if
    frames are unanswered.
    """

    def __init__(
        self,
        owner: StreamOwner,
        source: FrameSource,
        spec: StreamSpec,
        on_event: Callable[[Event], None],
    ) -> None:
        self.statistics = StreamStatistics()
        self._owner = owner
        self._source = source
        self._spec = spec
        self._on_event = on_event
        self._is_live = bool(getattr(source, "is_live", True))
        self._ledger = FrameLedger(self.statistics, max_in_flight=MAX_RESULTS)
        self._limits = HintedSource(source, spec.fps)
        self._results: deque[FrameResult] = deque()
        self._attachments: list[BinaryMessage] = []
        self._changed = asyncio.Event()
        self._state = StreamState.IDLE
        self._link: Link | None = None
        self._id: int | None = None
        self._next_seq = 0
        self._acks = AckTracker()
        self._heard_at = 0.0
        self._finish_timeout_s = FINISH_TIMEOUT_S + (spec.options.deadline_ms or 0.0) / 1000
        self._was_open = False
        # Frames that this outage, if there is one, leaves without an answer.
        self._num_lost = self._num_unsent = 0
        self._reopen_at: float | None = None
        self._give_up_at = 0.0
        self._is_paused = False
        self._is_finished = False
        self._failure: Exception | None = None
        self._last_error = ""
        self._producer: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # --- for the program ---------------------------------------------------------------------

    def __aiter__(self) -> AsyncGenerator[FrameResult, None]:
        return self._iterate()

    async def aclose(self) -> None:
        """Stop the stream, wait a little for its last receipts; idempotent."""
        if self._producer is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._shut(), name="clawstream stream closing")
        # Shielded: a caller that is cancelled must not leave the stream half closed.
        await asyncio.shield(self._closing)

    async def _iterate(self) -> AsyncGenerator[FrameResult, None]:
        if self._producer is not None:
            raise RuntimeError("a stream can be iterated once")
        self._owner.start_stream(self)
        self._producer = asyncio.create_task(self._produce(), name="clawstream stream producer")
        try:
            while (result := await self._next()) is not None:
                yield result
        finally:
            await self.aclose()

    async def _next(self) -> FrameResult | None:
        await self._until(lambda: bool(self._results) or self._is_finished)
        if self._results:
            result = self._results.popleft()
            self._acks.rendered(result.seq)
            self._changed.set()  # there is room for another
            return result
        if self._failure is not None:
            raise self._failure
        return None

    # --- the producer ------------------------------------------------------------------------

    async def _produce(self) -> None:
        try:
            await self._send_all()
        except Exception as error:  # noqa: BLE001 - the iterator raises it when it has caught up
            self._failure = error
        await self._end()

    async def _send_all(self) -> None:
        # A live source would lose what it captures before it may send.
        await self._until(lambda: self._was_open)  # bounded by ``on_tick`` and the client's budget
        frames = aiter(self._source)
        try:
            async for frame in frames:
                await self._offer(frame)
        finally:
            if isinstance(frames, AsyncGenerator):
                await frames.aclose()

    async def _offer(self, frame: CapturedFrame) -> None:
        """Send the frame, or drop it: every live frame has one chance."""
        if not self._limits.passes(frame.t_us / 1e6):
            return  # asked for: not a loss
        if self._is_too_large(frame):
            self.statistics.dropped_at_capture += 1
            return
        size_bytes = len(frame.jpeg)
        if not self._can_send(size_bytes):
            if self._is_live and self._spec.options.policy != "lossless":
                self.statistics.dropped_at_capture += 1
                self._num_unsent += not self._is_connected
                await asyncio.sleep(0)  # a source that never waits must not starve the loop
                return
            # Ends with credit, with the connection's end, or with the reader's.
            await self._until(lambda: self._can_send(size_bytes))
        await self._send(frame)

    @property
    def _is_connected(self) -> bool:
        return self._link is not None and not self._link.is_lost

    def _can_send(self, size_bytes: int) -> bool:
        if not self._is_connected or self._is_paused:
            return False
        if self._state is not StreamState.OPEN or not self._ledger.can_send(size_bytes):
            return False
        if self._spec.options.policy == "latest":
            return True
        return len(self._results) + self._ledger.in_flight < MAX_RESULTS

    def _is_too_large(self, frame: CapturedFrame) -> bool:
        if self._link is None or len(frame.jpeg) <= self._link.welcome.limits.max_frame_bytes:
            return False
        self._tell("error", f"a frame of {len(frame.jpeg)} bytes exceeds the server's limit")
        return True

    async def _send(self, frame: CapturedFrame) -> None:
        link, stream = self._link, self._id
        assert link is not None and stream is not None, "checked by _can_send"  # noqa: PT018
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        header = FrameHeader(type=MessageType.FRAME, stream=stream, seq=seq, t_us=frame.t_us)
        room = link.welcome.limits.max_message_bytes - codec.HEADER_BYTES
        pieces = codec.split_binary(
            header, frame.jpeg, piece_bytes=max(1024, min(PIECE_BYTES, room // 8 * 8))
        )
        self._ledger.sent(seq, frame.t_us, len(frame.jpeg), frame.media_time_s)
        try:
            for piece in pieces:
                await link.send(piece)
        except LinkLost:
            pass  # ``on_detached`` counts what was in flight, this frame included

    async def _end(self) -> None:
        """Tell that there is no more input, and wait for ``closed``."""
        await self._until(lambda: self._state is not StreamState.IDLE or self._link is None)
        if self._link is not None and self._id is not None and self._state is StreamState.OPEN:
            self._state = advance(STREAM, self._state, StreamEvent.END)
            self._heard_at = time.monotonic()
            self._link.post(EndInput(stream=self._id))
            await self._until(lambda: self._is_finished)  # bounded by ``on_tick``
        self.finish(self._loss())

    # --- for the connection; every call returns at once --------------------------------------

    def on_attached(self, link: Link, stream: int) -> None:
        """There is a connection: open the stream on it."""
        self._heard_at = time.monotonic()
        if link is not self._link:
            self._give_up_at = self._heard_at + REOPEN_TIMEOUT_S
        self._link, self._id = link, stream
        self._state = StreamState.IDLE
        self._is_paused = False
        self._limits.reset()
        self._reopen_at = None
        self._attachments.clear()
        spec = self._spec
        link.post(Open(stream=stream, model=spec.model, options=spec.options))
        self._changed.set()

    def on_detached(self) -> None:
        """The connection is lost; a stream without more input has nothing to come back for."""
        self._num_lost += self._ledger.in_flight
        self._ledger.disconnected()
        state = self._state
        self._link = self._id = None
        self._state = StreamState.IDLE
        self._acks.reset()
        self._changed.set()
        if state is StreamState.ENDING:
            self.finish(self._loss())
        elif state is StreamState.CLOSING:
            self.finish(None)

    def finish(self, error: Exception | None) -> None:
        """Nothing more will come; the first reason counts. Results that wait can still be read."""
        if self._is_finished:
            return
        self._is_finished = True
        self._failure = self._failure or error
        self._owner.forget_stream(self)
        self._changed.set()
        if self._producer is not None and self._producer is not asyncio.current_task():
            self._producer.cancel()

    def pause(self) -> None:
        """Send nothing until the next connection; answers are still welcome."""
        self._is_paused = True

    def on_tick(self, now: float) -> None:
        """Acknowledge what is due and look at the time-outs."""
        if self._acks.is_due(now):
            self._acknowledge()
        silent_s = now - self._heard_at
        if self._is_finished or self._link is None:
            return
        if self._reopen_at is not None:
            if now >= self._reopen_at:
                self._owner.reopen_stream(self)
        elif self._state is StreamState.IDLE and silent_s > OPEN_TIMEOUT_S:
            self.finish(StreamError("the server did not open the stream"))
        elif self._state is StreamState.ENDING and silent_s > self._finish_timeout_s:
            self._ledger.abandon()
            self.finish(StreamError("the server did not finish the stream"))

    def on_binary(self, message: BinaryMessage) -> None:
        """Keep an attachment until the result that names it, which is next."""
        if self._attachments and self._attachments[0].header.seq != message.header.seq:
            self._attachments.clear()
        if len(self._attachments) < MAX_ATTACHMENTS:
            self._attachments.append(message)

    def on_message(self, message: ServerMessage) -> None:
        """A control message that names this stream."""
        self._heard_at = time.monotonic()
        match message:
            case ResultMessage():
                self._on_result(message, self._heard_at)
            case Credit():
                self._ledger.grant(message.max_frames, message.max_bytes)
            case Drop():
                self._ledger.drop(message.reason, message.first, message.last, message.count)
                self._tell("drop", message.reason, message.first)
            case Hint():
                self._limits.obey(message)
            case ErrorMessage():
                self._on_error(message)
            case Opened() if self._state is StreamState.IDLE:
                self._state = advance(STREAM, self._state, StreamEvent.OPEN)
                self._was_open = True
                self._num_lost = self._num_unsent = 0
                self._ledger.open(message.credit)
                self._tell("opened")
            case Closed():
                self._on_closed(message)
        self._changed.set()

    def _on_result(self, message: ResultMessage, now: float) -> None:
        media_time_s = self._ledger.media_time_s(message.seq)
        latency_s = self._ledger.result(message.seq, now)
        attachments, self._attachments = self._attachments, []
        self._acks.received(message.seq, now)
        if self._acks.is_due(now):
            self._acknowledge()
        if latency_s is None or self._is_finished:
            return
        if len(self._results) >= MAX_RESULTS:
            self._results.popleft()
            self.statistics.discarded_unread += 1
        self._results.append(frame_result(message, latency_s, media_time_s, attachments))

    def _on_error(self, message: ErrorMessage) -> None:
        self._last_error = problem_text(message.problem)
        if isinstance(message.seq, int):
            self._ledger.error(message.seq, message.problem.type)
            self._tell("error", self._last_error, message.seq)
            return
        self._tell("error", self._last_error)
        if self._state is not StreamState.IDLE:
            return
        if message.retryable and self._was_open and self._heard_at < self._give_up_at:
            told_ms = message.retry_after_ms
            delay_s = told_ms / 1000 if isinstance(told_ms, int) else REOPEN_DELAY_S
            self._reopen_at = self._heard_at + delay_s
            return
        self._state = StreamState.CLOSED
        self.finish(StreamError(self._last_error, problem=message.problem))

    def _on_closed(self, message: Closed) -> None:
        was_expected = self._state in (StreamState.ENDING, StreamState.CLOSING)
        self._state = StreamState.CLOSED
        self._ledger.closed(message)
        self._tell("closed")
        reason = f"the server ended the stream: {self._last_error or 'no reason given'}"
        self.finish(None if was_expected else StreamError(reason))

    # --- inside ------------------------------------------------------------------------------

    def _loss(self) -> ConnectError | None:
        """Why a stream without more input ends without a connection; None if nothing is lost."""
        counts = ((self._num_lost, "unanswered"), (self._num_unsent, "not sent"))
        lost = [f"{_frames(count)} {fate}" for count, fate in counts if count]
        return ConnectError(", ".join(("the connection was lost", *lost))) if lost else None

    def _acknowledge(self) -> None:
        if self._link is not None and self._id is not None:
            ack = self._acks.take(self._id)
            if ack is not None:
                self._link.post(ack)

    async def _shut(self) -> None:
        producer = self._producer
        assert producer is not None
        producer.cancel()
        # A source of the program's own may take as long as it likes to stop.
        await asyncio.wait({producer}, timeout=CLOSE_TIMEOUT_S)
        is_over = self._is_finished or self._reopen_at is not None
        if self._link is not None and self._id is not None and not is_over:
            self._state = StreamState.CLOSING
            self._link.post(Close(stream=self._id))
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._until(lambda: self._is_finished)
            except TimeoutError:
                self._ledger.abandon()
        self.finish(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Several tasks may wait: each clears the event only before it waits itself."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _tell(self, name: str, detail: str = "", seq: int | None = None) -> None:
        self._on_event(Event(name=name, detail=detail, stream=self._id, seq=seq))


def _frames(count: int) -> str:
    return "1 frame" if count == 1 else f"{count} frames"
