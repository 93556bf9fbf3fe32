"""The streams of one session, by their id."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.errors import ProblemKind, RequestProblem
from gateway.session.frame_stream import FrameStream
from gateway.session.text_stream import TextStream

AnyStream = FrameStream | TextStream


# Over, and their last events not acknowledged: a client acknowledges within moments.
MAX_FINISHED = 16


class StreamTable:
    """A session's streams: at most ``max_streams`` at once, ids that rise and are used once.

    ``finished`` are streams of tokens whose ``closed`` is written and whose events the client has
    not acknowledged: it may have to be told again. The newest ``MAX_FINISHED`` are kept.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = ("_last_id", "_max_streams", "_streams", "find", "finished")

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._streams: dict[int, AnyStream] = {}
        self.find: Callable[[int], AnyStream | None] = self._streams.get
        self._last_id = -1
        self.finished: dict[int, TextStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[AnyStream]:
        return iter(tuple(self._streams.values()))

    @property
    def num_prompts(self) -> int:
        """Prompts whose answer is under way, on all streams together."""
        streams = self._streams.values()
        return sum(len(stream.running) for stream in streams if isinstance(stream, TextStream))

    def find_frames(self, stream_id: int) -> FrameStream | None:
        """The stream, if it carries frames or tensors."""
        stream = self._streams.get(stream_id)
        return stream if isinstance(stream, FrameStream) else None

    def is_spent(self, stream_id: int) -> bool:
        """Whether the id was used up: what is still under way to it is ignored."""
        return stream_id <= self._last_id and stream_id not in self._streams

    def claim(self, stream_id: int) -> None:
        """Use the id up, whether or not the stream can be opened.

        A client need not wait for ``opened``: what it sent to a stream that was refused is ignored
        like everything else for an id that is over.
        """
        if stream_id <= self._last_id:
            raise RequestProblem(ProblemKind.STREAM_ID_REUSED, f"the last id was {self._last_id}")
        self._last_id = stream_id
        if len(self._streams) >= self._max_streams:
            raise RequestProblem(
                ProblemKind.LIMIT_EXCEEDED, f"at most {self._max_streams} streams at once"
            )

    def add(self, stream: AnyStream) -> None:
        self._streams[stream.id] = stream

    def remove(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)

    def finish(self, stream: AnyStream) -> None:
        """The stream's ``closed`` is written."""
        self.remove(stream.id)
        if isinstance(stream, TextStream) and len(stream.log) > 0:
            self.finished[stream.id] = stream
            if len(self.finished) > MAX_FINISHED:
                del self.finished[next(iter(self.finished))]

    def acknowledge_finished(self, stream_id: int, seq: int) -> None:
        """The client has the events up to ``seq`` of a stream that is over."""
        stream = self.finished.get(stream_id)
        if stream is not None:
            stream.log.acknowledge(seq)
            if len(stream.log) == 0:
                del self.finished[stream_id]
