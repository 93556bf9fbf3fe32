"""The client: one connection at a time, any number of streams, and the way back after a loss."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from msgspec import UNSET, UnsetType

from gateway.client.attached import AttachedStream
from gateway.client.backoff import Backoff, may_reconnect, may_resume
from gateway.client.chat import ChatStream, chat_spec
from gateway.client.errors import (
    AuthError,
    ClientError,
    ConnectError,
    Event,
    problem_text,
)
from gateway.client.frames import FrameSource
from gateway.client.greeting import open_link, stream_address
from gateway.client.link import Link, LinkLost, LinkSettings
from gateway.client.live_streams import LiveStreams
from gateway.client.liveness import ClockEstimate
from gateway.client.stream_spec import StreamSpec
from gateway.client.streams import FrameStream
from gateway.wire.codec import BinaryMessage
from gateway.wire.messages import (
    ErrorMessage,
    GoAway,
    Limits,
    ServerEvent,
    ServerMessage,
    StreamOptions,
    Welcome,
)

STABLE_S = 5.0  # a connection that lived this long resets the backoff
ATTEMPTS_PER_WINDOW = 8  # at least so many try to resume, if they fail quickly

logger = logging.getLogger(__name__)


def connect(
    url: str,
    *,
    api_key: str | None = None,
    reconnect: bool = True,
    give_up_after_s: float = 300.0,
    on_event: Callable[[Event], None] | None = None,
    settings: LinkSettings | None = None,
) -> Client:
    """A client for ``async with``; entering it connects, leaving it closes everything.

    Args:
        url: ``ws://host:port`` (or wss, http, https); the path defaults to ``/v1/stream``.
        api_key: sent in the first message, never in the address.
        reconnect: come back by itself after a loss that allows it, for at most
            ``give_up_after_s``. The first connection is tried once.
        on_event: told what happens, on the event loop; it must return at once.

    Raises:
        ValueError: not an address. Entering raises ``ConnectError`` or ``AuthError``.
    """
    return Client(
        stream_address(url),
        api_key=api_key,
        backoff=Backoff() if reconnect else None,
        give_up_after_s=give_up_after_s,
        on_event=on_event,
        settings=settings or LinkSettings(),
    )


class Client:
    """A connection to a gateway that outlives its sockets. Use from one event loop only."""

    def __init__(
        self,
        address: str,
        *,
        api_key: str | None,
        backoff: Backoff | None,
        give_up_after_s: float,
        on_event: Callable[[Event], None] | None,
        settings: LinkSettings,
    ) -> None:
        self._address = address
        self._api_key = api_key
        self._backoff = backoff
        self._give_up_after_s = give_up_after_s
        self._on_event = on_event
        self._settings = settings
        self._link: Link | None = None
        self._welcome: Welcome | None = None
        self._service_level = "normal"
        self._streams = LiveStreams()
        self._problem = ""  # what the server said last about the connection
        self._failure: ClientError | None = None
        self._serving: asyncio.Task[None] | None = None
        self._is_closing = False

    async def __aenter__(self) -> Self:
        link = await open_link(self._address, self._api_key, self._settings)
        self._attach(link)
        self._serving = asyncio.create_task(self._serve(link), name="clawstream client")
        self._tell("connected")
        self._note_level(link.welcome.service_level)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the streams, then the connection; every step is bounded; idempotent."""
        await asyncio.gather(*(stream.aclose() for stream in self._streams.all))
        self._is_closing = True
        if self._link is not None:
            await self._link.aclose()
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})

    @property
    def is_connected(self) -> bool:
        return self._link is not None and not self._link.is_lost

    @property
    def models(self) -> list[str]:
        """Names of the models that the gateway serves."""
        return list(self._greeting.models)

    @property
    def limits(self) -> Limits:
        return self._greeting.limits

    @property
    def clock(self) -> ClockEstimate | None:
        """The server's clock against ``time.monotonic``, once known; kept fresh by itself."""
        return self._link.clock if self._link is not None else None

    async def ping(self) -> ClockEstimate:
        """Ask the server for the time now.

        Raises:
            ConnectError: there is no connection, or no answer.
        """
        if self._link is None:
            raise self._failure or ConnectError("not connected")
        try:
            return await self._link.ping()
        except LinkLost as lost:
            raise ConnectError(str(lost), code=lost.code) from None

    def stream_frames(
        self,
        source: FrameSource,
        *,
        model: str,
        policy: str = "latest",
        deadline_ms: float | None = None,
        fps: float | None = None,
        annotate: str | None = None,
        pace: str | None = None,
        version: str | None = None,
        priority: str = "standard",
        weight: float = 1.0,
        on_event: Callable[[Event], None] | None = None,
    ) -> FrameStream:
        """Send the frames of ``source`` and iterate over their results; starts when iterated.

        Args:
            policy: ``latest`` and ``fifo`` drop live frames that may not be sent now;
                ``lossless`` waits, and so does every source that is not live.
            deadline_ms: age at which the server gives up an unanswered frame.
            fps: send at most this many frames per second. pace: ``playout``: results come evenly.
            annotate: ``boxes`` or ``blur``: results bring an annotated picture now and then.

        Raises:
            ValueError: an option is out of range. Iterating raises ``StreamError`` if the server
                refuses the stream, ``ConnectError`` when the connection is lost for good, and
                what the source raises.
        """
        options = StreamOptions(
            policy=policy,
            deadline_ms=deadline_ms,
            annotate=annotate,
            pace=pace,
            version=version,
            priority=priority,
            weight=weight,
        )
        spec = StreamSpec(model=model, options=options, fps=fps)
        return FrameStream(self, source, spec, on_event or self._pass_event)

    def stream_chat(
        self,
        model: str,
        messages: Sequence[Any] | None = None,
        *,
        prompt: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        pace: str | None = None,
        timing: bool = False,
        deadline_ms: float | None = None,
        version: str | None = None,
        priority: str = "standard",
        weight: float = 1.0,
    ) -> ChatStream:
        """Ask a language model and iterate over its answer; asks when iterated.

        Args:
            messages: turns with ``role`` and ``content``, as mappings or structs; or ``prompt``.
            sampling: ``temperature``, ``max_tokens``, ``stop`` … (docs/wire-protocol.md).
            pace: ``steady`` or ``off``; None: as the server prefers.
            timing: events say when the engine was done with them, and how long they were held.
            deadline_ms: when the server gives the answer up.

        Raises:
            ValueError: both or neither of messages and prompt, or more than one control message
                holds. Iterating raises ``StreamError`` when there is no answer, or none any more,
                and ``ConnectError`` when there is no connection.
        """
        options = StreamOptions(
            pace=pace,
            timing=timing,
            deadline_ms=deadline_ms,
            version=version,
            priority=priority,
            weight=weight,
        )
        spec = chat_spec(
            model, messages=messages, prompt=prompt, sampling=sampling, options=options
        )
        return ChatStream(self, spec)

    # --- for the streams ---------------------------------------------------------------------

    def start_stream(self, stream: AttachedStream) -> None:
        if self._serving is None or self._failure is not None or self._serving.done():
            raise self._failure or ConnectError("not connected")
        self._streams.add(stream, self._link, self._greeting.limits.max_streams)

    def reopen_stream(self, stream: AttachedStream) -> None:
        if self._link is not None:
            self._streams.reopen(stream, self._link)

    def forget_stream(self, stream: AttachedStream) -> None:
        self._streams.forget(stream)

    # --- for the connection ------------------------------------------------------------------

    def on_message(self, message: ServerMessage) -> None:
        stream = getattr(message, "stream", None)
        if isinstance(message, GoAway):
            for live in self._streams.all:
                live.pause()
            self._tell("goaway", f"the server closes within {message.deadline_ms} ms")
        elif isinstance(message, ServerEvent):
            if message.kind == "service_level":
                self._note_level(message.level)
            else:
                self._tell(message.kind, message.text)
        elif isinstance(stream, int):
            target = self._streams.find(stream)
            if target is not None:  # else a late message of a stream that is over
                target.on_message(message)
        elif isinstance(message, ErrorMessage):
            self._problem = problem_text(message.problem)
            self._tell("error", self._problem)

    def on_binary(self, message: BinaryMessage) -> None:
        target = self._streams.find(message.header.stream)
        if target is not None:
            target.on_binary(message)

    def on_tick(self, now: float) -> None:
        for stream in self._streams.all:
            stream.on_tick(now)

    # --- inside ------------------------------------------------------------------------------

    @property
    def _greeting(self) -> Welcome:
        if self._welcome is None:
            raise ConnectError("not connected")
        return self._welcome

    async def _serve(self, link: Link) -> None:
        """Run one connection after the other until there is no way back."""
        try:
            while True:
                started_at = time.monotonic()
                loss = await link.run(self)
                is_returning = self._backoff is not None and not self._is_closing
                self._link = None
                can_resume = is_returning and may_resume(loss.code)
                self._streams.detach(link.welcome, may_resume=can_resume)
                if self._is_closing:
                    return
                self._tell("disconnected", self._problem or str(loss))
                if self._backoff is None or not may_reconnect(loss.code):
                    raise ConnectError(self._problem or str(loss), code=loss.code)
                if time.monotonic() - started_at >= STABLE_S:
                    self._backoff.reset()
                link = await self._come_back(self._backoff)
                self._attach(link)
                self._tell("reconnected")
                self._note_level(link.welcome.service_level)
        except ClientError as error:
            self._fail(error)
        except Exception:
            logger.exception("the client has failed")
            self._fail(ConnectError("the client has failed; its log says why"))

    async def _come_back(self, backoff: Backoff) -> Link:
        lost_at = time.monotonic()
        give_up_at = lost_at + self._give_up_after_s
        while True:
            left_s = max(0.0, give_up_at - time.monotonic())
            cap_s: float | None = None
            window_s = self._streams.resume_window_s
            if window_s is not None:
                if time.monotonic() > lost_at + window_s:
                    self._streams.give_up_resuming()
                else:  # time is short, and several attempts should fit into it
                    cap_s = window_s / ATTEMPTS_PER_WINDOW
            await asyncio.sleep(min(backoff.next_delay_s(cap_s), left_s))
            try:
                # Anew each time: meanwhile streams may have been given up.
                resume = self._streams.resume_request()
                return await open_link(self._address, self._api_key, self._settings, resume)
            except AuthError:
                raise
            except ConnectError as error:
                is_final = error.code is not None and not may_reconnect(error.code)
                if is_final or time.monotonic() >= give_up_at:
                    raise
                logger.info("attempt %d to reconnect failed: %s", backoff.attempt, error)

    def _attach(self, link: Link) -> None:
        self._link, self._welcome = link, link.welcome
        self._problem = ""
        self._streams.attach(link)

    def _note_level(self, told: str | UnsetType) -> None:
        level = "normal" if told is UNSET else told
        if level != self._service_level:
            self._service_level = level
            self._tell("service_level", level)

    def _fail(self, error: ClientError) -> None:
        self._failure = error
        for stream in self._streams.all:
            stream.finish(error)

    def _tell(self, name: str, detail: str = "") -> None:
        logger.info("%s %s %s", self._address, name, detail)
        self._pass_event(Event(name=name, detail=detail))

    def _pass_event(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)
