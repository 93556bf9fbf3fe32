"""State of one open stream, and the table of a session's streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from engine.base import Lane
from engine.types import Result
from gateway.errors import ProblemKind, RequestProblem
from gateway.session.options import StreamSettings
from gateway.stream.ack_window import AckWindow
from gateway.stream.credit import CreditWindow
from gateway.stream.sequencer import Sequencer
from gateway.stream.tally import Tally
from gateway.stream.token_bucket import TokenBucket
from gateway.wire.protocol import STREAM, StreamEvent, StreamState, advance

ANNOTATIONS_HZ = 15.0
# Two at once, or the jitter of an even source would cost it frames.
_BURST = 2


class FrameState(Enum):
    """Where an accepted frame is; one that is answered is forgotten."""

    WAITING = "waiting"  # for the engine's outcome
    HELD = "held"  # its result waits in the sequencer for an earlier frame
    QUEUED = "queued"  # its result waits in the outbox


@dataclass(slots=True, kw_only=True)
class AcceptedFrame:
    """An accepted frame whose answer is not decided. Times are the loop's, in seconds."""

    seq: int
    ordinal: int
    t_us: int
    received_at: float
    deadline: float | None
    credit_bytes: int
    state: FrameState = FrameState.WAITING
    completed_at: float = 0.0


class FrameStream:
    """One stream of frames or tensors.

    ``frames`` holds exactly the frames that ``tally`` counts as in flight; credit bounds it.
    """

    lane: Lane  # from ``attach``

    def __init__(self, settings: StreamSettings, *, ack_deadline_s: float) -> None:
        self.settings = settings
        self.state = StreamState.OPEN
        self.tally = Tally()
        self.credit = CreditWindow(settings.credit_frames, settings.credit_bytes)
        # One more than the window: a frame is always allowed when none is in flight.
        self.sequencer: Sequencer[Result] = Sequencer(settings.credit_frames + 1)
        self.acks = AckWindow(ack_deadline_s)
        self.frames: dict[int, AcceptedFrame] = {}
        self.last_seq = -1
        self.ordinal = 0  # of the newest frame received
        self._arrived_bytes = 0  # of the frame that is arriving
        self._frame_rate = _bucket(settings.max_fps)
        self._annotation_rate = TokenBucket(ANNOTATIONS_HZ, _BURST)

    @property
    def id(self) -> int:
        return self.settings.id

    def attach(self, lane: Lane, totals: Tally) -> None:
        """The engine has opened ``lane`` for this stream; receipts count in ``totals`` as well."""
        self.lane = lane
        self.tally.parent = totals

    def advance(self, event: StreamEvent) -> None:
        """Move on; raises UnexpectedMessage and changes nothing when the event does not fit."""
        self.state = advance(STREAM, self.state, event)

    def receive_bytes(self, num_bytes: int) -> None:
        """Payload of the arriving frame: all of it, or a piece."""
        self.credit.receive_bytes(num_bytes)
        self._arrived_bytes += num_bytes

    def take_arrived_bytes(self) -> int:
        """Bytes that the frame which is now dealt with has cost."""
        arrived, self._arrived_bytes = self._arrived_bytes, 0
        return arrived

    def is_next(self, seq: int) -> bool:
        """Whether ``seq`` rises; if so it counts as received, whatever becomes of it."""
        if seq <= self.last_seq:
            return False
        self.last_seq = seq
        self.ordinal += 1
        return True

    def exceeds_rate(self, now: float) -> bool:
        """Whether the frame comes on top of ``max_fps``."""
        return self._frame_rate is not None and not self._frame_rate.try_take(now)

    def options_for(self, now: float) -> bytes:
        """The pipeline's options for a frame offered now."""
        annotation = self.settings.annotation
        return annotation if annotation and self._annotation_rate.try_take(now) else b""


class StreamTable:
    """A session's streams: at most ``max_streams`` at once, ids that rise and are used once."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._streams: dict[int, FrameStream] = {}
        self._last_id = -1

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[FrameStream]:
        return iter(tuple(self._streams.values()))

    def find(self, stream_id: int) -> FrameStream | None:
        return self._streams.get(stream_id)

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

    def add(self, stream: FrameStream) -> None:
        self._streams[stream.id] = stream

    def remove(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)


def _bucket(rate_hz: float | None) -> TokenBucket | None:
    return None if rate_hz is None else TokenBucket(rate_hz, _BURST)
