"""One WebSocket connection: a reader and a writer that never wait for each other.

1. ``run`` starts both and waits for the first reason to end, whoever finds it.
2. The reader hands every message to the session at once and never awaits the pipeline: a brake
   on the client is credit, not silence. Pings are answered by the writer.
3. The writer takes messages from the outbox while the transport has room, and only then, so that
   the freshest leaves. It runs in a callback of the loop, one for all that is put in the same turn
   for whichever connection; its task wakes up only to wait for room, and to say goodbye. Who
   makes it wait for too long is found by what the kernel holds.
4. At the end the session is closed, the writer says why (``error``, then a close frame), the
   reader looks out for the peer's close frame, and after a second the socket is gone either way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol

from aiohttp import WSMsgType

from gateway.errors import CloseCode, ConnectionFault, ProblemKind, error_message
from gateway.net.ending import ABNORMAL, LOST, NO_CODE, Ending, Farewell
from gateway.net.reader_window import ReaderWindow
from gateway.net.send_backlog import SendBacklog
from gateway.net.traffic import Traffic
from gateway.net.websocket import PeerGone, Received, Socket
from gateway.net.write_turn import WriteTurn
from gateway.stream.entries import Outgoing
from gateway.stream.network_estimate import PathSample
from gateway.stream.network_state import NetworkState
from gateway.stream.outbox import Outbox
from gateway.stream.token_bucket import TokenBucket
from gateway.wire.codec import encode

CLOSE_TIMEOUT_S = 1.0
BURST_S = 1.0  # how many seconds' worth of messages may come at once
# A burst that is in the read buffer already is handled without a pause otherwise: 256 KiB hold
# thousands of tiny messages.
MESSAGES_PER_TURN = 32
_TEXT, _BINARY = WSMsgType.TEXT, WSMsgType.BINARY  # a look-up takes 0.2 us, once per token

logger = logging.getLogger(__name__)


class ConnectionSession(Protocol):
    """What a connection asks of its session; every call returns at once."""

    def receive_text(self, data: bytes) -> None:
        """May raise ConnectionFault."""

    def receive_binary(self, data: bytes) -> None:
        """May raise ConnectionFault."""

    def handle_sent(self, outgoing: Outgoing) -> None:
        """The message was handed to the transport."""

    def note_path(self, sample: PathSample) -> None:
        """What the kernel knows of the connection now."""

    @property
    def network(self) -> NetworkState:
        """What the connection's network does, from all that was noted."""

    def drain(self, deadline_ms: int) -> None:
        """Tell the client to go elsewhere."""

    def give_up(self) -> None:
        """Time is up: tell what is unanswered as dropped."""

    @property
    def is_idle(self) -> bool:
        """Nothing accepted is unanswered."""

    def close(self, reason: str) -> None:
        """The connection is over for good; idempotent."""

    def lose(self, reason: str) -> None:
        """The connection is lost, and its client may come back; idempotent."""


class Connection:
    """Moves messages between one socket and one session until either is done.

    ``session`` is set before ``run``, which is called once, by the request handler, and may be
    cancelled: that means the socket is lost. ``end``, ``fail`` and ``abort`` may be called at any
    time from the loop's thread.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_backlog",
        "_blocked",
        "_ending",
        "_has_work",
        "_is_blocked",
        "_is_flush_due",
        "_loop",
        "_outbox",
        "_pong",
        "_rate",
        "_socket",
        "_turn",
        "_window",
        "name",
        "session",
        "traffic",
    )

    session: ConnectionSession

    def __init__(
        self,
        socket: Socket,
        outbox: Outbox,
        *,
        name: str,
        turn: WriteTurn,
        send_timeout_s: float,
        max_messages_per_s: float,
    ) -> None:
        self.name = name
        self.traffic = Traffic()
        self._socket = socket
        self._outbox = outbox
        self._turn = turn
        self._backlog = SendBacklog(send_timeout_s)
        self._rate = TokenBucket(max_messages_per_s, max(1.0, max_messages_per_s * BURST_S))
        self._pong: bytes | None = None  # of the newest ping; older ones need no answer
        self._is_flush_due = False
        self._has_work = False  # beside what is with the socket already
        # Or at the end: the writer's task has work, and is told so.
        self._is_blocked = False
        self._blocked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._window = ReaderWindow(socket.read_window, self._wake, self._loop)
        self._ending: asyncio.Future[Ending] = self._loop.create_future()

    @property
    def code(self) -> int:
        """The close code, once the connection has a reason to end."""
        return self._ending.result().code if self._ending.done() else ABNORMAL

    @property
    def is_idle(self) -> bool:
        """Whether everything accepted is answered, and everything said is sent."""
        return self._ending.done() or (self.session.is_idle and self._outbox.is_empty)

    @property
    def network(self) -> NetworkState:
        """What its network does, as of the last look."""
        return self.session.network

    def sample_network(self) -> None:
        """Look at the kernel's counters, tell the session, and give up a reader that has had its
        time: this is what bounds the writer's waits."""
        sample = None if self._ending.done() else self._socket.read_path()
        if sample is not None:
            self.traffic.segments_out = sample.num_segments
            self.traffic.segments_again = sample.num_retransmitted
            if self._backlog.is_overdue(sample, self._loop.time()):
                # Nobody reads, so nobody can be told: the code is for the log and the metrics.
                code = CloseCode.SLOW_READER
                self.end(Ending(code=code, reason="nothing read in time", farewell=Farewell.NONE))
            self.session.note_path(sample)

    def end(self, ending: Ending) -> None:
        """End the connection for this reason, unless it has one already."""
        if not self._ending.done():
            self._ending.set_result(ending)
            self._block()

    def fail(self, fault: ConnectionFault) -> None:
        """End the connection because of ``fault``, which the peer is told."""
        self.end(Ending(code=fault.code, reason=fault.kind.slug, fault=fault))

    def abort(self) -> None:
        """Drop the socket now."""
        self.end(Ending(code=ABNORMAL, reason="aborted", farewell=Farewell.NONE))
        self._socket.abort()

    async def run(self) -> Ending:
        """Serve the connection to its end; the session is closed and no task is left after it."""
        self._outbox.on_wake = self._wake
        self._outbox.try_send = self._try_send
        self._outbox.may_begin = self._window.is_open
        self._wake()
        reader = asyncio.create_task(self._guard(self._read()), name=f"read {self.name}")
        writer = asyncio.create_task(self._guard(self._write()), name=f"write {self.name}")
        tasks = {reader, writer}
        try:
            await asyncio.wait({self._ending})
            await self._part(tasks)
        finally:
            self.end(LOST)
            self._window.stop()
            self._socket.abort()
            for task in tasks:
                task.cancel()
            self._leave(self._ending.result())
            await asyncio.wait(tasks)
        return self._ending.result()

    async def _part(self, tasks: set[asyncio.Task[None]]) -> None:
        """Close the session, then the socket: in order if the peer takes part, else by force."""
        ending = self._ending.result()
        self._leave(ending)
        if ending.farewell is Farewell.NONE:
            return
        _, late = await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
        if not late:
            self._socket.close()

    def _leave(self, ending: Ending) -> None:
        """Be done with the session; idempotent."""
        if ending.is_loss:
            self.session.lose(str(ending))
        else:
            self.session.close(str(ending))

    async def _guard(self, work: Coroutine[None, None, None]) -> None:
        """The tasks' boundary: whatever ends one of them ends the connection."""
        try:
            await work
        except PeerGone:
            self.end(LOST)
        except Exception:
            logger.exception("%s failed", self.name)
            self.fail(ConnectionFault(CloseCode.INTERNAL_ERROR, ProblemKind.INTERNAL))

    # --- reader

    async def _read(self) -> None:
        """Read until the peer's close frame; what comes after our own decision is discarded."""
        num_messages = 0
        while True:
            try:
                received = await self._socket.read()
            except ConnectionFault as fault:
                self.fail(fault)
                # Nothing can be read any more. To close at once would reset the connection
                # under the message that says why.
                await asyncio.sleep(CLOSE_TIMEOUT_S)
                return
            if received.type is WSMsgType.CLOSE:
                code = int(received.data) or NO_CODE
                self.end(Ending(code=code, reason="closed by the client", farewell=Farewell.REPLY))
                return
            if not self._ending.done():
                self._receive(received)
            num_messages += 1
            if num_messages % MESSAGES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _receive(self, received: Received) -> None:
        data = received.data
        assert isinstance(data, bytes)
        self.traffic.messages_in += 1
        self.traffic.bytes_in += len(data)
        try:
            if not self._rate.try_take(self._loop.time()):
                detail = "too many messages per second"
                raise ConnectionFault(CloseCode.QUOTA, ProblemKind.LIMIT_EXCEEDED, detail)
            if received.type is _TEXT:
                self.session.receive_text(data)
            elif received.type is _BINARY:
                self.session.receive_binary(data)
            elif received.type is WSMsgType.PING:
                self._pong = data
                self._wake()
        except ConnectionFault as fault:
            self.fail(fault)

    # --- writer

    def _wake(self) -> None:
        """There is something to send, or more of it."""
        self._has_work = True
        self._join_turn()

    def _join_turn(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._turn.join(self)

    def _block(self) -> None:
        self._is_blocked = True
        self._blocked.set()

    def _try_send(self, outgoing: Outgoing) -> bool:
        """Send what nothing waits before, if there is room; it leaves in the loop's next turn."""
        if self._is_blocked or self._pong is not None or not self._socket.is_writable:
            return False
        data, traffic = outgoing.data, self.traffic
        try:
            self._socket.send(_TEXT if outgoing.is_text else _BINARY, data)
        except PeerGone:
            self.end(LOST)
        traffic.messages_out += 1
        traffic.bytes_out += len(data)
        self._join_turn()
        return True

    def flush(self) -> None:
        """Send until nothing waits, or there is no room; as ``_guard``, it is a boundary."""
        self._is_flush_due = False
        try:
            try:
                if self._has_work:
                    self._has_work = False
                    self._send_turn()
            finally:
                self._socket.flush()
            # Now, not with the next message: a reader that stalls may get no credit for another.
            if not self._is_blocked and not self._socket.is_writable:
                self._block()
        except PeerGone:
            self.end(LOST)
        except Exception:
            logger.exception("%s failed", self.name)
            self.fail(ConnectionFault(CloseCode.INTERNAL_ERROR, ProblemKind.INTERNAL))

    def _send_turn(self) -> None:
        """Each message is chosen when there is room for it."""
        socket, outbox, traffic = self._socket, self._outbox, self.traffic
        for _ in range(MESSAGES_PER_TURN):
            if self._is_blocked:
                return  # the task goes on once there is room
            if not socket.is_writable:
                self._block()
                return
            if self._pong is not None:
                socket.send(WSMsgType.PONG, self._pong)
                self._pong = None
                continue
            outgoing = outbox.pop(self._loop.time())
            if outgoing is None:
                return
            data = outgoing.data
            socket.send(_TEXT if outgoing.is_text else _BINARY, data)
            traffic.messages_out += 1
            traffic.bytes_out += len(data)
            self.session.handle_sent(outgoing)
            if outbox.is_empty and self._pong is None:
                return
        self._wake()  # others have their turn first

    async def _write(self) -> None:
        """The writer's waits: for room, and for the last words to leave."""
        while not self._ending.done():
            await self._blocked.wait()
            if not self._ending.done():
                await self._socket.wait_writable()  # bounded by ``sample_network``
            if not self._ending.done():
                self._blocked.clear()
                self._is_blocked, self._has_work = False, True
                self.flush()
        await self._say_goodbye(self._ending.result())

    async def _say_goodbye(self, ending: Ending) -> None:
        """Bounded by ``_part``, which cancels it."""
        if ending.farewell is Farewell.NONE:
            return
        if not self._socket.is_writable:
            await self._socket.wait_writable()
        if ending.fault is not None:
            self._socket.send(WSMsgType.TEXT, encode(error_message(ending.fault)))
        if ending.farewell is Farewell.REPLY:
            self._socket.send_close(CloseCode.NORMAL, "")
        else:
            self._socket.send_close(ending.code, ending.reason)
        await self._socket.wait_writable()
