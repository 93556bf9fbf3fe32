"""A client's streams: under which id each is known now, and which outlive a lost connection."""

from __future__ import annotations

from gateway.client.attached import AttachedStream, RecoverableStream
from gateway.client.errors import StreamError
from gateway.client.link import Link
from gateway.wire.messages import Close, ResumedStream, ResumeRequest, ResumeStream, Welcome


class LiveStreams:
    """Streams that are not finished. Ids rise and are never used twice, whatever the connection.

    Without a connection a stream has its id only as long as it may be recovered: from ``detach``
    until the next ``attach``, or ``give_up_resuming``.
    """

    def __init__(self) -> None:
        self._ids: dict[AttachedStream, int] = {}  # -1: to be opened on the next connection
        self._by_id: dict[int, AttachedStream] = {}
        self._next_id = 1
        self._left: Welcome | None = None  # the session that may be resumed, after a loss

    @property
    def all(self) -> list[AttachedStream]:
        return list(self._ids)

    @property
    def resume_window_s(self) -> float | None:
        """How long the server waits for the session that was left; None if it does not."""
        return None if self._left is None else self._left.resume_window_s

    def find(self, number: int) -> AttachedStream | None:
        """The stream of that id; None for one that is over."""
        return self._by_id.get(number)

    def add(self, stream: AttachedStream, link: Link | None, max_streams: int) -> None:
        """Opened now, or with the next connection; raises StreamError."""
        if len(self._ids) >= max_streams:
            raise StreamError(f"the server allows {max_streams} streams at once")
        self._ids[stream] = -1
        if link is not None:
            self._open(stream, link)

    def reopen(self, stream: AttachedStream, link: Link) -> None:
        """Under another id."""
        self._by_id.pop(self._ids[stream], None)
        self._open(stream, link)

    def forget(self, stream: AttachedStream) -> None:
        """The stream is over; idempotent."""
        self._by_id.pop(self._ids.pop(stream, -1), None)

    def attach(self, link: Link) -> None:
        """There is a connection: what was recovered goes on there, the others are opened."""
        going_on = self._recovered(link.welcome)
        self._left = None
        for number in going_on.keys() - self._ids.values():
            link.post(Close(stream=number))  # given up at the very last moment
        for stream, number in list(self._ids.items()):
            entry = going_on.get(number)
            if entry is not None and isinstance(stream, RecoverableStream):
                stream.on_resumed(link, entry.received_seq + 1)
            elif number >= 0:
                self._lose(stream)
        for stream, number in list(self._ids.items()):
            if number < 0:
                self._open(stream, link)

    def detach(self, welcome: Welcome, *, may_resume: bool) -> None:
        """The connection that began with ``welcome`` is lost."""
        may_resume = may_resume and welcome.resume_window_s > 0
        for stream, number in list(self._ids.items()):
            if may_resume and number >= 0 and isinstance(stream, RecoverableStream):
                stream.on_suspended()
            else:
                self._lose(stream)
        if may_resume:
            self._left = welcome

    def give_up_resuming(self) -> None:
        """The server has not waited that long."""
        self._left = None
        for stream, number in list(self._ids.items()):
            if number >= 0:
                self._lose(stream)

    def resume_request(self) -> ResumeRequest | None:
        """Asks for the session that was left and its streams that are suspended.

        Also without a stream: what the server keeps of the others is then given up at once.
        """
        if self._left is None:
            return None
        return ResumeRequest(
            session=self._left.session,
            token=self._left.resume_token,
            streams=[
                ResumeStream(stream=number, last_seq=stream.last_seq)
                for stream, number in self._ids.items()
                if number >= 0 and isinstance(stream, RecoverableStream)
            ],
        )

    def _recovered(self, welcome: Welcome) -> dict[int, ResumedStream]:
        """The streams of the session that was left which go on in the new one, by their id."""
        if self._left is None or self._left.session != welcome.session:
            return {}
        entries = welcome.resumed if isinstance(welcome.resumed, list) else []
        return {entry.stream: entry for entry in entries if entry.recovered}

    def _open(self, stream: AttachedStream, link: Link) -> None:
        number, self._next_id = self._next_id, self._next_id + 1
        self._ids[stream] = number
        self._by_id[number] = stream
        stream.on_attached(link, number)

    def _lose(self, stream: AttachedStream) -> None:
        self._by_id.pop(self._ids[stream], None)
        self._ids[stream] = -1
        stream.on_detached()
