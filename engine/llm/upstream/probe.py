"""Whether an upstream server answers, asked now and then."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

import aiohttp

from engine.config import UpstreamConfig
from engine.errors import StartupError

logger = logging.getLogger(__name__)

_START_RETRY_S = 0.5
_CREDENTIALS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class Probe:
    """Asks for the list of models. ``reason`` says why the server does not serve; empty if it does.

    Only a server that cannot be reached, fails or refuses the key counts as down: not every
    server lists its models.
    """

    def __init__(self, name: str, config: UpstreamConfig) -> None:
        self.reason = "not started"
        self._name = name
        self._config = config
        self._is_refused = False

    async def wait_until_up(self, session: aiohttp.ClientSession) -> None:
        """Raises ``StartupError`` when it is not up in time, or refuses the key."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._config.start_timeout_s
        while await self._ask(session):
            if self._is_refused or loop.time() + _START_RETRY_S > ends_at:
                raise StartupError(
                    f"upstream model {self._name!r} at {self._config.url}: {self.reason}"
                )
            await asyncio.sleep(_START_RETRY_S)

    async def watch(self, session: aiohttp.ClientSession) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self._config.probe_interval_s)
            before = self.reason
            await self._ask(session)
            if self.reason != before:
                logger.warning("%s: the upstream server %s", self._name, self.reason or "is up")

    async def _ask(self, session: aiohttp.ClientSession) -> str:
        """The new ``reason``."""
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                url = self._config.url.rstrip("/") + "/models"
                async with session.get(url, allow_redirects=False) as response:
                    self.reason = self._judge(response.status)
        except TimeoutError:
            self.reason = f"gives no answer within {self._config.connect_timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            self.reason = f"cannot be reached ({error})"
        return self.reason

    def _judge(self, status: int) -> str:
        self._is_refused = status in _CREDENTIALS
        if self._is_refused:
            return f"refuses the api_key ({status})"
        return f"fails ({status})" if status >= 500 else ""
