"""Prompts in, tokens out: admission, events and endings of one session's streams of tokens.

Every accepted prompt is answered here and nowhere else: by ``end``, or by an ``error`` that names
it. Tokens leave when the answer's outflow lets them, and the end follows the last of them. They are
never given up, so a receipt is decided when it is put into the outbox; what a slow reader does not
take ends its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from engine.base import Engine, Lane
from engine.errors import EngineError
from engine.llm.request import PromptOptions
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Progress,
    Result,
)
from gateway.config_sections import LimitsConfig, TextConfig
from gateway.errors import ProblemKind, RequestProblem, from_dropped, from_engine_error
from gateway.session.moment import Moment
from gateway.session.outcomes import read_finished
from gateway.session.pacing import DELAY_JUMP, Answering, Pacing, max_ahead
from gateway.session.receipts import (
    EVENT_CHARS,
    closed_entry,
    end_entry,
    prompt_error_entry,
    replay_entries,
    stream_error,
    token_entry,
)
from gateway.session.registry import SessionRegistry
from gateway.session.stream_table import StreamTable
from gateway.session.telling import Telling
from gateway.session.text_options import TextSettings, read_prompt
from gateway.session.text_stream import RunningPrompt, TextStream
from gateway.stream.answers import Answer
from gateway.stream.congestion import Congestion
from gateway.stream.network_state import NetworkState
from gateway.stream.release import Departure
from gateway.wire.codec import UnexpectedMessage
from gateway.wire.messages import (
    Ack,
    Cancel,
    Close,
    EndInput,
    EndOutput,
    ErrorMessage,
    Prompt,
)
from gateway.wire.protocol import StreamEvent, StreamState

CANCELLED = "cancelled"  # finish_reason of what the client withdrew


class Prompts:
    """Serves the streams of tokens of one session; every call returns at once.

    At most ``limits.max_prompts`` answers are under way per session. A repeated prompt id starts
    nothing: what was told of its answer is told again (``AnswerBook`` says how long). The engine
    calls back on the loop's thread, also inside ``offer``, ``cancel`` and ``close``; what comes
    for a prompt that is answered changes nothing.
    """

    # On every token's path: see ``gateway.stream.stream_queue.StreamQueue``.
    __slots__ = (
        "_congestion",
        "_engine",
        "_limits",
        "_pacing",
        "_pressure",
        "_registry",
        "_streams",
        "_telling",
        "_text",
    )

    def __init__(
        self,
        *,
        engine: Engine,
        limits: LimitsConfig,
        text: TextConfig,
        streams: StreamTable,
        telling: Telling,
        registry: SessionRegistry,
        pacing: Pacing,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._text = text
        self._streams = streams
        self._telling = telling
        self._registry = registry
        self._pressure = registry.tiers.pressure
        self._pacing = pacing
        self._congestion = Congestion()

    @property
    def default_pace(self) -> str:
        """Of a stream that names none."""
        return self._pacing.config.websocket

    def note_network(self, network: NetworkState, now: float) -> None:
        """A measurement of the connection."""
        num_jumps = self._congestion.num_jumps
        self._congestion.note(network, now)
        for stream in self._streams:
            if not isinstance(stream, TextStream):
                continue
            if stream.ceiling is not None:
                stream.ceiling.note(network)
            if self._congestion.num_jumps > num_jumps and stream.running:
                self._registry.text_of(stream.model).triggers[DELAY_JUMP] += 1

    def open(self, settings: TextSettings) -> TextStream:
        """Make the stream and its first lane.

        Raises:
            EngineError: there is no such model, or the engine is closing.
        """
        stream = TextStream(
            settings,
            ack_deadline_s=self._limits.ack_deadline_s,
            ceiling=self._pacing.stream_ceiling(),
        )
        self._lane(stream, settings.lane)
        # Now that the model is known to exist: totals are kept for nothing else.
        stream.tally.parent = self._registry.prompts_of(stream.model)
        return stream

    def handle(
        self, stream: TextStream, message: Prompt | Ack | Cancel | EndInput | Close, moment: Moment
    ) -> None:
        """Apply a message about one stream.

        Raises:
            UnexpectedMessage: it does not fit the stream's state.
            RequestProblem: it cannot be done.
        """
        match message:
            case Prompt():
                self._receive(stream, message, moment)
            case Ack(seq=seq):
                stream.advance(StreamEvent.FEEDBACK)
                stream.acknowledge(seq, moment.now)
            case Cancel(id=str(prompt_id)):
                stream.advance(StreamEvent.FEEDBACK)
                self._cancel(stream, prompt_id)
            case Cancel():
                raise RequestProblem(ProblemKind.INVALID_MESSAGE, "cancel names an id here")
            case EndInput():
                stream.advance(StreamEvent.END)
                self._finish_if_done(stream)
            case Close():
                stream.advance(StreamEvent.CLOSE)
                stream.close_lanes()
                for prompt in tuple(stream.running.values()):
                    self._withdraw(prompt)
                self._finish_if_done(stream)

    def give_up(self, stream: TextStream, reason: DropReason) -> None:
        """Answer at once what is unanswered, with all its text so far, and stop generating."""
        for key, prompt in tuple(stream.running.items()):
            self._emit(stream, key, Dropped(reason))
            prompt.outflow.flush()
        stream.close_lanes()

    def abandon(self, stream: TextStream, reason: DropReason) -> None:
        """The client is gone: stop generating, count what it was not told, tell nobody."""
        for prompt in stream.running.values():
            stream.tally.count_dropped(reason)
            prompt.timer.end(reason.value)
            prompt.outflow.drop()
        stream.running.clear()
        stream.forget_untold(reason)
        stream.close_lanes()

    # --- admission

    def _receive(self, stream: TextStream, message: Prompt, moment: Moment) -> None:
        stream.num_received += 1
        answer = stream.answers.find(message.id)
        if answer is not None:
            self._tell_again(stream, answer)
            return
        try:
            stream.advance(StreamEvent.INPUT)
            if moment.is_draining:
                raise RequestProblem(ProblemKind.SHUTTING_DOWN)
            if self._streams.num_prompts >= self._limits.max_prompts:
                detail = f"at most {self._limits.max_prompts} prompts at once"
                raise RequestProblem(ProblemKind.LIMIT_EXCEEDED, detail)
            asked = read_prompt(message, stream.settings, self._text)
            priority = self._registry.tiers.admit(moment.tenant, asked.lane.priority)
            lane = self._lane(stream, replace(asked.lane, priority=priority))
        except UnexpectedMessage as error:
            problem = RequestProblem(ProblemKind.UNEXPECTED_MESSAGE, error.detail)
            self._refuse(stream, message.id, problem)
        except EngineError as error:
            self._refuse(stream, message.id, from_engine_error(error))
        except RequestProblem as problem:
            self._refuse(stream, message.id, problem)
        else:
            item = Item(
                id=stream.take_key(),
                payload=asked.payload,
                options=msgspec.json.encode(PromptOptions(tenant=moment.tenant)),
                deadline=moment.now + asked.deadline_s,
            )
            answering = Answering(
                model=stream.model,
                tenant=moment.tenant,
                pace=asked.pace,
                lane=lane,
                item_id=item.id,
                congestion=self._congestion,
                ceiling=stream.ceiling,
            )
            self._accept(stream, message.id, item, answering)

    def _accept(self, stream: TextStream, prompt_id: str, item: Item, answering: Answering) -> None:
        """From here on the prompt is owed exactly one receipt."""
        totals, lane = self._registry.text_of(stream.model), answering.lane
        prompt = RunningPrompt(
            stream,
            self,
            key=item.id,
            answer=stream.answers.begin(prompt_id),
            lane=lane,
            timer=totals.start(),
            max_ahead=max_ahead(answering.pace),
        )
        prompt.outflow = self._pacing.start(answering, totals, prompt)
        stream.add(prompt)
        stream.tally.count_accepted()
        try:
            lane.offer(item)
        except EngineError as error:
            self._fail(prompt, from_engine_error(error))

    def _refuse(self, stream: TextStream, prompt_id: str, problem: RequestProblem) -> None:
        stream.tally.count_refused()
        self._put_error(stream, stream_error(problem, stream.id, prompt_id=prompt_id))

    def _lane(self, stream: TextStream, spec: LaneSpec) -> Lane:
        lane = stream.lanes.get(spec.priority)
        if lane is None:
            lane = self._engine.open_lane(spec, partial(self._emit, stream))
            stream.lanes[spec.priority] = lane
        return lane

    def _tell_again(self, stream: TextStream, answer: Answer) -> None:
        for entry in replay_entries(stream, answer.id, answer.text):
            self._telling.put_event(stream, entry)
        if isinstance(answer.ending, EndOutput):
            self._put_end(stream, answer.ending)
        elif isinstance(answer.ending, ErrorMessage):
            self._put_error(stream, answer.ending)

    def _cancel(self, stream: TextStream, prompt_id: str) -> None:
        prompt = stream.find(prompt_id)
        if prompt is not None and prompt.outcome is None:
            prompt.lane.cancel(prompt.key)  # answers through ``_emit``
        elif prompt is not None:
            self._withdraw(prompt)

    # --- answering accepted prompts

    def _emit(self, stream: TextStream, key: int, event: Progress | Outcome) -> None:
        """News from the engine; never raises. The end waits for the text before it."""
        prompt = stream.running.get(key)
        if prompt is None or prompt.outcome is not None:
            return
        if isinstance(event, Progress):  # not a case: once per token, and a match takes 1 us
            prompt.timer.token(event.text)
            num_chars = prompt.outflow.push(event.text)
            if num_chars > self._limits.max_outbox_bytes:
                self._telling.fail_for_text(num_chars)
            return
        match event:
            case Cancelled() | Dropped(DropReason.CANCELLED):
                self._withdraw(prompt)
            case _:
                prompt.outcome = event
                prompt.outflow.finish()

    def tell(self, prompt: RunningPrompt, departure: Departure) -> None:
        """Text leaves; from here on it has been told."""
        stream, answer, text, timing = prompt.stream, prompt.answer, departure.text, None
        answer.append(text)
        if stream.settings.timing and self._pressure.allows_extras:
            timing = prompt.outflow.timing(departure)
        self._telling.put_event(stream, token_entry(stream, answer.id, departure, timing))
        if len(text) > EVENT_CHARS:
            for start in range(EVENT_CHARS, len(text), EVENT_CHARS):
                entry = token_entry(stream, answer.id, departure, timing, start=start)
                self._telling.put_event(stream, entry)

    def answer(self, prompt: RunningPrompt) -> None:
        """All the text has left: what the engine said at the end follows."""
        match prompt.outcome:
            case Result() as result:
                self._finish(prompt, result)
            case Failed(error):
                self._fail(prompt, from_engine_error(error))
            case Dropped(reason):
                count = partial(prompt.stream.tally.count_dropped, reason)
                self._answer_error(prompt, from_dropped(reason), count)

    def _withdraw(self, prompt: RunningPrompt) -> None:
        """The client does not want the rest, also what it has not been told yet."""
        stream = prompt.stream
        stream.receipt(partial(stream.tally.count_dropped, DropReason.CANCELLED))
        ending = EndOutput(stream=stream.id, id=prompt.answer.id, seq=0, finish_reason=CANCELLED)
        self._end(prompt, ending)

    def _finish(self, prompt: RunningPrompt, result: Result) -> None:
        stream = prompt.stream
        try:
            finished = read_finished(result)
        except RequestProblem as problem:
            self._fail(prompt, problem)
            return
        stream.receipt(stream.tally.count_result)
        ending = EndOutput(
            stream=stream.id,
            id=prompt.answer.id,
            seq=0,
            finish_reason=finished.finish_reason,
            usage=msgspec.Raw(msgspec.json.encode(finished.usage)),
            version=result.version,
        )
        self._end(prompt, ending)

    def _end(self, prompt: RunningPrompt, ending: EndOutput) -> None:
        self._settle(prompt, ending, keep=True)
        prompt.timer.end(ending.finish_reason)
        self._put_end(prompt.stream, ending)
        self._finish_if_done(prompt.stream)

    def _fail(self, prompt: RunningPrompt, problem: RequestProblem) -> None:
        self._answer_error(prompt, problem, prompt.stream.tally.count_error)

    def _answer_error(
        self, prompt: RunningPrompt, problem: RequestProblem, count: Callable[[], None]
    ) -> None:
        stream = prompt.stream
        stream.receipt(count)
        ending = stream_error(problem, stream.id, prompt_id=prompt.answer.id)
        # What may succeed the next time must be free to be asked a next time.
        self._settle(prompt, ending, keep=not ending.retryable)
        prompt.timer.end(problem.kind.slug)
        self._put_error(stream, ending)
        self._finish_if_done(stream)

    def _settle(
        self, prompt: RunningPrompt, ending: EndOutput | ErrorMessage, *, keep: bool
    ) -> None:
        prompt.stream.remove(prompt)
        prompt.stream.answers.finish(prompt.answer, ending, keep=keep)

    def _finish_if_done(self, stream: TextStream) -> None:
        if stream.state not in (StreamState.ENDING, StreamState.CLOSING) or stream.running:
            return
        stream.advance(StreamEvent.FINISHED)
        stream.close_lanes()
        self._telling.put(stream, closed_entry(stream))

    # --- events

    def _put_end(self, stream: TextStream, ending: EndOutput) -> None:
        self._telling.put_event(stream, end_entry(stream, ending))

    def _put_error(self, stream: TextStream, error: ErrorMessage) -> None:
        self._telling.put_event(stream, prompt_error_entry(stream, error))
