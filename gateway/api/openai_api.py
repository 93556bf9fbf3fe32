"""``POST /v1/chat/completions`` and ``POST /v1/completions``, as OpenAI's clients speak them.

A request is the only item of a lane of its own. Its answer is JSON, or an event stream with one
event per token. Nothing is sent before the first news, so that a refusal has its status.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from engine.base import Engine
from engine.llm.request import PromptOptions
from engine.types import (
    Cancelled,
    Dropped,
    DropReason,
    Failed,
    Item,
    LaneSpec,
    Outcome,
    Policy,
    Priority,
    Result,
)
from gateway.api import openai_chat, openai_completions
from gateway.api.generation import Generation, News, Reading
from gateway.api.openai_answer import AnswerShape, Ending
from gateway.api.openai_errors import BadParameter, error_body
from gateway.api.openai_request import OVERHEAD_BYTES, PromptRequest, parse, read_body
from gateway.api.sse import EventStream, EventStreams
from gateway.config_sections import LimitsConfig, TextConfig
from gateway.errors import ProblemKind, RequestProblem, from_dropped, from_engine_error
from gateway.session.options import TEXT_KINDS
from gateway.session.outcomes import read_finished
from gateway.session.pacing import Pacing
from gateway.session.registry import SessionRegistry
from gateway.session.text_options import PACE_OFF, read_deadline_s

_ITEM_ID = 1

Authenticate = Callable[[web.Request], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What one of the paths is made of."""

    id_prefix: str
    read: Callable[[bytes], PromptRequest]
    shape: Callable[[str, int, str], AnswerShape]


CHAT = Door(
    id_prefix=openai_chat.ID_PREFIX, read=openai_chat.read_chat, shape=openai_chat.ChatShape
)
COMPLETIONS = Door(
    id_prefix=openai_completions.ID_PREFIX,
    read=openai_completions.read_completion,
    shape=openai_completions.CompletionShape,
)


class OpenAiApi:
    """At most ``text.max_http_requests`` at a time, 429 beyond; a reader that leaves withdraws its
    prompt. ``kinds`` are those of the models, as far as known."""

    def __init__(
        self,
        engine: Engine,
        registry: SessionRegistry,
        pacing: Pacing,
        limits: LimitsConfig,
        text: TextConfig,
        event_streams: EventStreams,
        *,
        max_prompt_bytes: int,
        kinds: Mapping[str, str],
        authenticate: Authenticate,
        admit: Callable[[str, Priority], Priority],
        is_draining: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._registry = registry
        self._pacing = pacing
        self._limits = limits
        self._text = text
        self._max_body_bytes = max_prompt_bytes + OVERHEAD_BYTES
        self._event_streams = event_streams
        self._kinds = kinds
        self._authenticate = authenticate
        self._admit = admit
        self._is_draining = is_draining
        self._num_running = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.complete),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, CHAT)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, COMPLETIONS)

    async def _serve(self, request: web.Request, door: Door) -> web.StreamResponse:
        principal = self._authenticate(request)
        if self._is_draining():
            raise RequestProblem(ProblemKind.SHUTTING_DOWN, retry_after_ms=1000)
        if self._num_running >= self._text.max_http_requests:
            detail = f"at most {self._text.max_http_requests} requests at once"
            raise RequestProblem(ProblemKind.LIMIT_EXCEEDED, detail, retry_after_ms=1000)
        self._num_running += 1
        try:
            body = await read_body(request, self._limits, self._max_body_bytes)
            prompt = await parse(body, door.read)
            with self._generation(prompt, principal) as generation:
                answer_id = door.id_prefix + secrets.token_hex(12)
                shape = door.shape(answer_id, int(time.time()), prompt.model)
                headers = {"X-Request-Id": answer_id}
                if prompt.is_stream:
                    return await self._stream(request, prompt, generation, shape, headers)
                whole = await self._whole(generation, shape)
                return web.Response(body=whole, content_type="application/json", headers=headers)
        finally:
            self._num_running -= 1

    def _generation(self, prompt: PromptRequest, principal: str) -> Generation:
        kind = self._kinds.get(prompt.model)
        if kind and kind not in TEXT_KINDS:
            raise RequestProblem(
                ProblemKind.UNKNOWN_MODEL, f"{prompt.model} is a model of kind {kind}"
            )
        try:
            deadline_s = read_deadline_s(prompt.deadline_ms, self._text)
        except RequestProblem as problem:
            raise BadParameter("deadline_ms", problem.detail) from None
        item = Item(
            id=_ITEM_ID,
            payload=prompt.payload,
            options=msgspec.json.encode(PromptOptions(tenant=principal)),
            deadline=asyncio.get_running_loop().time() + deadline_s,
        )
        priority = self._admit(principal, prompt.priority)
        spec = LaneSpec(model=prompt.model, policy=Policy.FIFO, priority=priority)
        # A whole answer has no gaps that anybody could see.
        pace = (prompt.pace or self._pacing.config.sse) if prompt.is_stream else PACE_OFF
        reading = Reading(
            tenant=principal,
            pace=pace,
            is_whole=not prompt.is_stream,
            max_unread_chars=self._limits.max_outbox_bytes,
        )
        return Generation(self._engine, self._registry, self._pacing, spec, item, reading)

    async def _whole(self, generation: Generation, shape: AnswerShape) -> bytes:
        texts: list[str] = []
        while True:
            await generation.wait(self._text.keep_alive_s)
            news = generation.take()
            texts += news.texts
            if news.outcome is not None:
                return shape.whole("".join(texts), _ending(generation, news.outcome))

    async def _stream(
        self,
        request: web.Request,
        prompt: PromptRequest,
        generation: Generation,
        shape: AnswerShape,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        is_there = await generation.wait(self._text.keep_alive_s)
        news = generation.take()
        ending = None if news.outcome is None else _ending(generation, news.outcome)
        stream = EventStream(
            request,
            send_timeout_s=self._limits.send_timeout_s,
            on_network=generation.note_network,
        )
        with self._event_streams.follow(stream):
            await stream.start(headers)
            if not is_there:
                await stream.keep_alive()
            try:
                while ending is None:
                    await stream.send(_chunks(shape, news.texts, None))
                    news = await self._next_news(generation, stream)
                    ending = None if news.outcome is None else _ending(generation, news.outcome)
                await stream.send(_chunks(shape, news.texts, ending))
                if prompt.include_usage:
                    await stream.send([shape.usage_chunk(ending)])
            except RequestProblem as problem:
                await stream.send([*_chunks(shape, news.texts, None), _error(problem)])
            await stream.finish()
        return stream.response

    async def _next_news(self, generation: Generation, stream: EventStream) -> News:
        while not await generation.wait(self._text.keep_alive_s):
            await stream.keep_alive()
        return generation.take()


def _chunks(shape: AnswerShape, texts: list[str], ending: Ending | None) -> list[bytes]:
    """One chunk per text; the finish reason goes with the last, or alone if there is none."""
    chunks = [shape.chunk(text, None) for text in texts[:-1]]
    if texts:
        chunks.append(shape.chunk(texts[-1], ending))
    elif ending is not None:
        chunks.append(shape.chunk(None, ending))
    return chunks


def _error(problem: RequestProblem) -> bytes:
    return msgspec.json.encode(error_body(problem))


def _ending(generation: Generation, outcome: Outcome) -> Ending:
    """The end of the answer; raises RequestProblem if it has none."""
    try:
        ending = _read_outcome(outcome)
    except RequestProblem as problem:
        generation.end(problem.kind.slug)
        raise
    generation.end(ending.finish_reason)
    return ending


def _read_outcome(outcome: Outcome) -> Ending:
    match outcome:
        case Result(model=model, version=version):
            finished = read_finished(outcome)
            return Ending(finished.finish_reason, finished.usage, f"{model}-{version}")
        case Failed(error):
            raise from_engine_error(error)
        case Dropped(reason):
            raise from_dropped(reason)
        case Cancelled():
            raise from_dropped(DropReason.SHUTDOWN)
