"""What becomes of a session's streams when its connection is lost, and when its client is back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from engine.types import DropReason
from gateway.config_sections import PacingConfig
from gateway.session.clock import Clock
from gateway.session.deliver import Deliver
from gateway.session.detached import DetachedSessions
from gateway.session.frame_stream import FrameStream
from gateway.session.ingest import Ingest
from gateway.session.prompts import Prompts
from gateway.session.receipts import closed_entry
from gateway.session.replay import Replay
from gateway.session.stream_table import AnyStream, StreamTable
from gateway.session.telling import Telling
from gateway.session.text_stream import TextStream
from gateway.stream.leaky_bucket import LeakyBucket
from gateway.wire.messages import ResumedStream, ResumeStream
from gateway.wire.protocol import StreamState


class StreamKeeper:
    """Keeps the streams of one session over the loss of its connection.

    Token streams go on: their events are kept and told again, all that are missing or none. Of
    frame streams only the id and the totals live on; frames that are unanswered count as
    ``disconnected`` and are told to nobody.
    """

    def __init__(
        self,
        *,
        session_id: str,
        clock: Clock,
        detached: DetachedSessions,
        streams: StreamTable,
        deliver: Deliver,
        telling: Telling,
        ingest: Ingest,
        prompts: Prompts,
        pacing: PacingConfig,
    ) -> None:
        self._session_id = session_id
        self._clock = clock
        self._detached = detached
        self._streams = streams
        self._deliver = deliver
        self._telling = telling
        self._ingest = ingest
        self._prompts = prompts
        self._pacing = pacing
        telling.on_logged = self._note_logged

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to come back for."""
        return len(self._streams) == 0 and not self._streams.finished

    @property
    def size_bytes(self) -> int:
        """Of the events that are kept."""
        texts = [stream for stream in self._streams if isinstance(stream, TextStream)]
        return sum(stream.log.size_bytes for stream in (*texts, *self._streams.finished.values()))

    def detach(self) -> None:
        """The connection is lost."""
        self._deliver.detach()
        for stream in self._streams:
            if isinstance(stream, FrameStream):
                self._ingest.forget(stream)
                if stream.state is not StreamState.OPEN:
                    # No frames to come, and nobody to tell of those that were: it is over.
                    self.give_up(stream, DropReason.DISCONNECTED)
                    continue
            stream.detach(DropReason.DISCONNECTED)

    def attach(self, asked: Sequence[ResumeStream]) -> list[ResumedStream]:
        """The client is back, on the outbox that ``Deliver`` has by now, and says where it stands.

        A stream that it does not ask for is given up.
        """
        wanted = {entry.stream: entry.last_seq for entry in asked}
        for stream in self._streams:
            if stream.id not in wanted:
                self.give_up(stream, DropReason.DISCONNECTED)
        finished, self._streams.finished = self._streams.finished, {}
        for stream_id in wanted.keys() & finished.keys():
            self._streams.add(finished[stream_id])
        return list(self._resume_all(wanted))

    def give_up(self, stream: AnyStream, reason: DropReason) -> None:
        """Stop the stream and forget it; count what nobody was told, tell nobody."""
        if isinstance(stream, TextStream):
            self._prompts.abandon(stream, reason)
        else:
            self._deliver.abandon(stream, reason)
        self._streams.remove(stream.id)

    def _note_logged(self, stream: TextStream, num_bytes: int) -> None:
        """An event is kept while nobody listens. What goes too far is given up once this call is
        over: it comes from the middle of the stream's own work."""
        self._detached.grow(self._session_id, num_bytes)
        if not stream.log.is_whole:
            self._clock.call_at(self._clock.now(), partial(self._give_up_recovery, stream))
        if self._detached.is_over:
            self._clock.call_at(self._clock.now(), self._detached.enforce)

    def _give_up_recovery(self, stream: TextStream) -> None:
        if not self._telling.is_attached and self._streams.find(stream.id) is stream:
            self._detached.grow(self._session_id, -stream.log.size_bytes)
            self.give_up(stream, DropReason.DISCONNECTED)

    def _resume_all(self, wanted: dict[int, int]) -> Iterator[ResumedStream]:
        for stream_id, last_seq in wanted.items():
            stream = self._streams.find(stream_id)
            if isinstance(stream, FrameStream):
                yield self._resume_frames(stream)
            elif isinstance(stream, TextStream):
                yield self._resume_text(stream, last_seq)
            else:
                yield not_recovered(stream_id)

    def _resume_frames(self, stream: FrameStream) -> ResumedStream:
        stream.acks.restart(stream.last_seq)
        self._deliver.reopen(stream)
        return ResumedStream(
            stream=stream.id,
            recovered=True,
            next_seq=stream.last_seq + 1,
            received_seq=stream.last_seq,
        )

    def _resume_text(self, stream: TextStream, last_seq: int) -> ResumedStream:
        events = stream.log.after(last_seq)
        if events is None:
            self.give_up(stream, DropReason.DISCONNECTED)
            return not_recovered(stream.id)
        stream.attach(last_seq)
        self._deliver.reopen(stream)
        if stream.state is StreamState.CLOSED:
            events = (*events, closed_entry(stream))
        bucket = LeakyBucket(self._pacing.transfer_rate, self._pacing.burst)
        Replay(stream, events, telling=self._telling, clock=self._clock, bucket=bucket).start()
        return ResumedStream(
            stream=stream.id,
            recovered=True,
            next_seq=last_seq + 1,
            received_seq=stream.num_received - 1,
        )


def not_recovered(stream_id: int) -> ResumedStream:
    """The stream is over, or never was; which of them is not told."""
    return ResumedStream(stream=stream_id, recovered=False, next_seq=0, received_seq=-1)
