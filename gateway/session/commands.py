"""What a client's control messages do to streams: open, prompt, ack, cancel, end, close."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from engine.base import Engine
from engine.errors import EngineError
from engine.types import LaneSpec, Priority
from gateway.config_sections import LimitsConfig, StreamsConfig, TextConfig
from gateway.errors import ProblemKind, RequestProblem, from_engine_error
from gateway.session.deliver import Deliver
from gateway.session.frame_stream import FrameStream
from gateway.session.ingest import Ingest
from gateway.session.moment import Moment
from gateway.session.options import StreamSettings, check_model, read_settings
from gateway.session.prompts import Prompts
from gateway.session.receipts import stream_error
from gateway.session.registry import SessionRegistry
from gateway.session.stream_table import AnyStream, StreamTable
from gateway.session.telling import Telling
from gateway.session.text_options import read_text_settings
from gateway.session.text_stream import TextStream
from gateway.session.tiers import within_tier
from gateway.wire.codec import UnexpectedMessage
from gateway.wire.messages import Ack, Cancel, Close, EndInput, Open, Prompt, StreamKind
from gateway.wire.protocol import STREAM_EVENTS, StreamEvent, StreamState

StreamMessage = Prompt | Ack | Cancel | EndInput | Close


class StreamCommands:
    """Applies control messages to one session's streams.

    What cannot be done is told as an ``error`` on the stream and changes nothing else; messages
    to streams that are over are ignored. ``kinds`` are the kinds of the models, as far as known.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        limits: LimitsConfig,
        defaults: StreamsConfig,
        text: TextConfig,
        kinds: Mapping[str, str],
        streams: StreamTable,
        registry: SessionRegistry,
        deliver: Deliver,
        telling: Telling,
        ingest: Ingest,
        prompts: Prompts,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._defaults = defaults
        self._text = text
        self._kinds = kinds
        self._streams = streams
        self._registry = registry
        self._deliver = deliver
        self._telling = telling
        self._ingest = ingest
        self._prompts = prompts

    def open(self, message: Open, moment: Moment) -> None:
        """Open the stream, or tell why not; the id is used up either way."""
        try:
            self._streams.claim(message.stream)
            if moment.is_draining:
                raise RequestProblem(ProblemKind.SHUTTING_DOWN)
            check_model(message.kind, message.model, self._kinds)
            stream = self._open(message, self._registry.tiers.of(moment.tenant))
        except EngineError as error:
            self._telling.tell(stream_error(from_engine_error(error), message.stream))
        except RequestProblem as problem:
            self._telling.tell(stream_error(problem, message.stream))
        else:
            self._streams.add(stream)
            self._deliver.open(stream)

    def _open(self, message: Open, tier: Priority) -> AnyStream:
        if message.kind is StreamKind.TOKENS:
            max_prompts = self._limits.max_prompts
            settings = read_text_settings(
                message,
                self._text,
                max_prompts=max_prompts,
                default_pace=self._prompts.default_pace,
            )
            lane = _within(settings.lane, tier)
            return self._prompts.open(replace(settings, lane=lane))
        frames = read_settings(message, self._defaults)
        return self._open_frames(replace(frames, lane=_within(frames.lane, tier)))

    def _open_frames(self, settings: StreamSettings) -> FrameStream:
        """Raises EngineError: no such model, or all places in its queue are promised."""
        share = self._registry.credit.of(settings.lane.model).open(settings.lane.capacity)
        stream = FrameStream(settings, self._registry.input_budget, share, self._limits)
        try:
            lane = self._engine.open_lane(settings.lane, partial(self._deliver.emit, stream))
        except EngineError:
            share.close()
            raise
        stream.attach(lane, self._registry.tally_of(stream.model))
        return stream

    def handle(self, message: StreamMessage, moment: Moment) -> None:
        """Apply a message about one stream."""
        stream = self._streams.find(message.stream)
        if stream is None:
            if isinstance(message, Ack):
                self._streams.acknowledge_finished(message.stream, message.seq)
            if not self._streams.is_spent(message.stream):
                problem = RequestProblem(ProblemKind.UNKNOWN_STREAM, "open it first")
                self._telling.tell(stream_error(problem, message.stream))
            return
        if stream.state is StreamState.CLOSED:
            if isinstance(message, Ack) and isinstance(stream, TextStream):
                stream.acknowledge(message.seq, moment.now)
            return  # everything else was under way when the stream ended
        try:
            if isinstance(stream, TextStream):
                self._prompts.handle(stream, message, moment)
            else:
                self._apply(stream, message, moment.now)
        except UnexpectedMessage as error:
            problem = RequestProblem(ProblemKind.UNEXPECTED_MESSAGE, error.detail)
            self._telling.tell(stream_error(problem, stream.id))
        except RequestProblem as problem:
            prompt_id = message.id if isinstance(message, Prompt) else None
            self._telling.tell(stream_error(problem, stream.id, prompt_id=prompt_id))

    def _apply(self, stream: FrameStream, message: StreamMessage, now: float) -> None:
        if isinstance(message, Prompt):
            raise RequestProblem(ProblemKind.UNEXPECTED_MESSAGE, "the stream takes no prompts")
        event = STREAM_EVENTS[type(message)]
        if event is StreamEvent.FEEDBACK:
            stream.advance(event)
        match message:
            case Ack(seq=seq):
                # Not beyond what was received: an ack of everything would switch the watch off.
                stream.acks.acknowledge(min(seq, stream.last_seq), now)
            case Cancel(seq=int(seq)):
                self._deliver.cancel(stream, seq)
            case Cancel():
                raise RequestProblem(ProblemKind.INVALID_MESSAGE, "cancel names a seq here")
            case EndInput():
                self._deliver.end(stream)
                self._ingest.forget(stream)
            case Close():
                self._deliver.stop(stream)
                self._ingest.forget(stream)


def _within(lane: LaneSpec, tier: Priority) -> LaneSpec:
    return replace(lane, priority=within_tier(lane.priority, tier))
