"""State of one open stream of frames or tensors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.base import Lane
from engine.types import DropReason, Result
from gateway.config_sections import LimitsConfig
from gateway.session.open_stream import OpenStream
from gateway.session.options import StreamSettings
from gateway.session.pictures import PictureGate
from gateway.session.playout import Playout
from gateway.stream.ack_window import AckWindow
from gateway.stream.advice import Advice
from gateway.stream.byte_budget import ByteBudget
from gateway.stream.credit import CreditWindow
from gateway.stream.credit_pool import CreditShare
from gateway.stream.sequencer import Sequencer
from gateway.stream.tally import Tally
from gateway.stream.token_bucket import TokenBucket

ANNOTATIONS_HZ = 15.0
# Two at once, or the jitter of an even source would cost it frames.
_BURST = 2


class FrameState(Enum):
    """Where an accepted frame is; one that is answered is forgotten."""

    WAITING = "waiting"  # for the engine's outcome
    HELD = "held"  # its result waits in the sequencer for an earlier frame
    PACED = "paced"  # its result waits for its playout time
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
    completed_at: float = 0.0  # by the engine
    sequenced_at: float = 0.0  # its turn in the order has come
    held_bytes: int = 0  # of the process's budget


class FrameStream(OpenStream[AckWindow]):
    """One stream of frames or tensors.

    ``frames`` holds exactly the frames that ``tally`` counts as in flight; credit bounds it.
    """

    lane: Lane  # from ``attach``

    def __init__(
        self,
        settings: StreamSettings,
        input_budget: ByteBudget,
        share: CreditShare,
        limits: LimitsConfig,
    ) -> None:
        """``share`` are its places in the model's queue, which it gives back with its lane."""
        super().__init__(settings.id, settings.lane.model, AckWindow(limits.ack_deadline_s))
        self.settings = settings
        self.gate = PictureGate(limits)
        self._input_budget = input_budget
        self._share = share
        self.frames: dict[int, AcceptedFrame] = {}
        self.last_seq = -1
        self.ordinal = 0  # of the newest frame received
        self._arrived_bytes = 0  # of the frame that is arriving
        self._begin()
        self.playout: Playout | None = None  # None: results leave at once
        self.advice = None if settings.is_lossless else Advice()
        self._frame_rate = _bucket(settings.max_fps)
        self._annotation_rate = TokenBucket(ANNOTATIONS_HZ, _BURST)

    @property
    def is_answered(self) -> bool:
        return not self.frames

    def attach(self, lane: Lane, totals: Tally) -> None:
        """The engine has opened ``lane`` for this stream; receipts count in ``totals`` as well."""
        self.lane = lane
        self.tally.parent = totals

    def close_lane(self) -> None:
        """The engine gets nothing more of this stream; idempotent."""
        self.lane.close()
        self._share.close()

    def hold(self, frame: AcceptedFrame) -> bool:
        """Keep an accepted frame until it is answered; False when the process holds too much
        input already: it is to be dropped at once."""
        self.frames[frame.seq] = frame
        if not self._input_budget.try_take(frame.credit_bytes):
            return False
        frame.held_bytes = frame.credit_bytes
        return True

    def let_go(self, seq: int) -> AcceptedFrame | None:
        """The frame's answer is decided; None when it was before."""
        frame = self.frames.pop(seq, None)
        if frame is not None:
            self._input_budget.give_back(frame.held_bytes)
        return frame

    def let_go_of_all(self) -> int:
        """Nobody will be told any more; returns how many frames that were."""
        num_frames = len(self.frames)
        for seq in list(self.frames):
            self.let_go(seq)
        if self.playout is not None:
            self.playout.clear()
        return num_frames

    def detach(self, reason: DropReason) -> None:
        """What is unanswered is given up; video goes on with the next frame that is received.

        Credit is counted anew: what was under way to us will not arrive.
        """
        unanswered = list(self.frames)
        num_frames = self.let_go_of_all()
        if num_frames:
            self.tally.count_dropped(reason, num_frames)
        self._begin()
        for seq in unanswered:
            self.lane.cancel(seq)  # answers nobody: the frame is let go of

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

    def options_for(self, now: float, *, allows_extras: bool = True) -> bytes:
        """The pipeline's options for a frame offered now."""
        annotation = self.settings.annotation
        # A lossless stream waits for its answers: a video of it has every frame.
        is_due = self.settings.is_lossless or (
            allows_extras and self._annotation_rate.try_take(now)
        )
        return annotation if annotation and is_due else b""

    def note_served(self, in_flight_s: float, now: float) -> None:
        """A result was handed to the writer, that long after its frame arrived."""
        if self.advice is not None:  # a lossless stream keeps its whole window
            self.advice.serve()
            self.credit.note_answer(in_flight_s, now)

    def note_given_up(self) -> None:
        """A frame was superseded, refused by its queue, or too late."""
        if self.advice is not None:
            self.advice.give_up()

    def _begin(self) -> None:
        """Nothing is under way."""
        settings = self.settings
        # A queue of one place needs no more: there the next frame replaces the one before.
        share = self._share if settings.lane.capacity > 1 else None
        self.credit = CreditWindow(settings.credit_frames, settings.credit_bytes, share)
        # One more than the window: a frame is always allowed when none is in flight.
        self.sequencer: Sequencer[Result] = Sequencer(
            settings.credit_frames + 1, max_gap=settings.max_gap
        )
        self._arrived_bytes = 0


def _bucket(rate_hz: float | None) -> TokenBucket | None:
    return None if rate_hz is None else TokenBucket(rate_hz, _BURST)
