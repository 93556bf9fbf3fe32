"""The streams of one session, by their id."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.errors import ProblemKind, RequestProblem
from gateway.session.frame_stream import FrameStream
from gateway.session.text_stream import TextStream

AnyStream = FrameStream | TextStream


class StreamTable:
    """A session's streams: at most ``max_streams`` at once, ids that rise and are used once."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._streams: dict[int, AnyStream] = {}
        self._last_id = -1

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[AnyStream]:
        return iter(tuple(self._streams.values()))

    @property
    def num_prompts(self) -> int:
        """Prompts whose answer is under way, on all streams together."""
        streams = self._streams.values()
        return sum(len(stream.running) for stream in streams if isinstance(stream, TextStream))

    def find(self, stream_id: int) -> AnyStream | None:
        return self._streams.get(stream_id)

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
