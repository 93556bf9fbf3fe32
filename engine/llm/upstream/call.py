"""One prompt at an upstream server: its attempts, its time-outs, its text as it comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

import aiohttp

from engine.config import UpstreamConfig
from engine.errors import Unavailable
from engine.llm.messages import Finish
from engine.llm.upstream.body import UpstreamRequest
from engine.llm.upstream.failures import AttemptFailed, failure_of_status
from engine.llm.upstream.reply import BadReply, Reply, ReplyError
from engine.llm.upstream.sse import EventTooLarge, SseParser

_BACKOFF_S = 0.2
_AFTER_FINISH_S = 1.0  # for the usage and the end mark, once the answer is complete
_DRAIN_S = 0.02
_MAX_ERROR_BYTES = 64 * 1024


class Call:
    """Runs in a task of its own; cancelling the task closes the connection, which is how a server
    learns that nobody waits any more.

    ``on_text`` gets each piece at once. Memory is bounded: aiohttp stops reading the socket beyond
    128 KiB, and the call stops reading beyond ``max_unreleased`` pieces that its reader, if it
    says how far it is, has not taken.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        config: UpstreamConfig,
        request: UpstreamRequest,
        on_text: Callable[[str], None],
    ) -> None:
        self.num_pieces = 0
        self._session = session
        self._config = config
        self._request = request
        self._on_text = on_text
        self._num_released: int | None = None
        self._was_released = asyncio.Event()

    def note_release(self, num_released: int) -> None:
        """The reader was given so many pieces; without this call it is taken to keep up."""
        self._num_released = num_released
        self._was_released.set()

    async def run(self) -> Finish:
        """The end of the answer.

        Raises:
            EngineError: readable, for the caller.
            Misconfigured: for the log.
        """
        total_s = self._config.total_timeout_s
        try:
            async with asyncio.timeout(total_s):
                return await self._run_attempts()
        except TimeoutError:
            raise Unavailable(f"the upstream server took more than {total_s:g} s") from None

    async def _run_attempts(self) -> Finish:
        attempt = 0
        while True:
            try:
                return await self._run_attempt()
            except AttemptFailed as failure:
                wait_s = self._retry_wait_s(failure, attempt)
                if wait_s is None:
                    raise failure.error from None
            attempt += 1
            await asyncio.sleep(wait_s)

    def _retry_wait_s(self, failure: AttemptFailed, attempt: int) -> float | None:
        """None: do not try again. What was told cannot be taken back."""
        if self.num_pieces or not failure.is_transient or attempt >= self._config.max_retries:
            return None
        wait_s = failure.retry_after_s
        if wait_s is None:
            wait_s = _BACKOFF_S * 2.0**attempt * (0.5 + random.random())
        return wait_s if wait_s <= self._config.max_retry_wait_s else None

    async def _run_attempt(self) -> Finish:
        reply = Reply()
        try:
            async with asyncio.timeout(self._config.first_token_timeout_s) as limit:
                return await self._exchange(reply, limit)
        except aiohttp.ClientConnectorError as error:
            why = error.strerror or type(error).__name__
            raise _unavailable(f"cannot connect to the upstream server: {why}") from None
        except aiohttp.ConnectionTimeoutError:
            raise _unavailable("cannot connect to the upstream server in time") from None
        except TimeoutError:
            return self._end_of_silence(reply)
        except (aiohttp.ClientError, OSError) as error:
            raise _unavailable(f"the upstream server broke off ({type(error).__name__})") from None
        except (BadReply, EventTooLarge) as error:
            raise AttemptFailed(Unavailable(str(error)), is_transient=False) from None
        except ReplyError as error:
            detail = f"the upstream server failed: {str(error)[:300]}"
            raise AttemptFailed(Unavailable(detail), is_transient=True) from None

    def _end_of_silence(self, reply: Reply) -> Finish:
        if reply.is_complete:
            return reply.finish()
        if self.num_pieces:
            detail = f"the upstream server was silent for {self._config.idle_timeout_s:g} s"
        else:
            seconds = self._config.first_token_timeout_s
            detail = f"the upstream server sent no token for {seconds:g} s"
        raise AttemptFailed(Unavailable(detail), is_transient=False)

    async def _exchange(self, reply: Reply, limit: asyncio.Timeout) -> Finish:
        response = await self._session.post(
            self._config.url.rstrip("/") + self._request.path,
            data=self._request.body,
            headers={"Content-Type": "application/json", "Accept": "text/event-stream"},
            allow_redirects=False,  # the key is for this server only
        )
        try:
            if response.status != HTTPStatus.OK:
                raise failure_of_status(
                    response.status,
                    await self._read_error(response.content),
                    response.headers.get("Retry-After"),
                    datetime.now(UTC),
                )
            if response.content_type != "text/event-stream":
                raise BadReply(f"the upstream server does not stream ({response.content_type})")
            return await self._read(response.content, reply, limit)
        finally:
            # Gives a connection back that was read to its end, and closes any other.
            response.release()

    async def _read(
        self, content: aiohttp.StreamReader, reply: Reply, limit: asyncio.Timeout
    ) -> Finish:
        parser = SseParser()
        num_bytes = 0
        while data := await content.readany():
            num_bytes += len(data)
            if num_bytes > self._config.max_answer_bytes:
                raise BadReply(f"an answer of more than {self._config.max_answer_bytes} bytes")
            for event in parser.feed(data):
                text = reply.take(event)
                if text:
                    self.num_pieces += 1
                    self._on_text(text)
                if reply.is_done:
                    await self._drain(content)
                    return reply.finish()
            await self._wait_for_reader(limit)
            self._set_limit(reply, limit)
        if reply.is_complete:
            return reply.finish()
        raise _unavailable(f"the upstream server ended after {self.num_pieces} pieces")

    def _set_limit(self, reply: Reply, limit: asyncio.Timeout) -> None:
        """When to give up unless something comes. Only tokens end the wait for the first one:
        comments and a role keep a connection alive, not a reader."""
        now = asyncio.get_running_loop().time()
        if reply.is_complete:
            limit.reschedule(min(now + _AFTER_FINISH_S, limit.when() or now))
        elif self.num_pieces:
            limit.reschedule(now + self._config.idle_timeout_s)

    async def _wait_for_reader(self, limit: asyncio.Timeout) -> None:
        """While unread pieces pile up, leave the rest in the socket: TCP slows the server down."""
        while self._num_unreleased() >= self._config.max_unreleased:
            limit.reschedule(None)  # the silence is ours; the total time-out still runs
            self._was_released.clear()
            await self._was_released.wait()

    def _num_unreleased(self) -> int:
        return 0 if self._num_released is None else self.num_pieces - self._num_released

    async def _drain(self, content: aiohttp.StreamReader) -> None:
        """The end mark is followed by the end: then the connection can serve again."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                while await content.readany():
                    pass
        except TimeoutError:
            pass  # it is closed instead

    async def _read_error(self, content: aiohttp.StreamReader) -> bytes:
        body = b""
        while len(body) < _MAX_ERROR_BYTES and (data := await content.readany()):
            body += data
        key = self._config.api_key.encode()
        return body.replace(key, b"***") if key else body  # some servers repeat it


def _unavailable(detail: str) -> AttemptFailed:
    return AttemptFailed(Unavailable(detail), is_transient=True)
