"""Logging: one line per event on standard error, readable or JSON, warnings throttled.

Only the process's entry point calls :func:`configure_logging`. Nothing here ever sees payloads,
prompts, keys or tickets: callers log counts, codes and reasons.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from engine.log_format import make_formatter
from gateway.config_sections import LoggingConfig

_MAX_SITES = 256


class WarningThrottle(logging.Filter):
    """Lets ``burst`` warnings per call site through in each ``interval_s``, then counts.

    The first one after the interval says how many were held back. Errors always pass. At most
    256 call sites are remembered; the table starts afresh when it is full.
    """

    def __init__(self, interval_s: float = 10.0, burst: int = 5) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._burst = burst
        self._sites: dict[tuple[str, int], tuple[float, int]] = {}  # window start, seen in it

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        site = (record.pathname, record.lineno)
        started, seen = self._sites.get(site, (record.created, 0))
        if record.created - started >= self._interval_s:
            held_back = seen - self._burst
            if held_back > 0:
                record.msg = f"{record.msg} [{held_back} similar held back]"
            started, seen = record.created, 0
        if site not in self._sites and len(self._sites) >= _MAX_SITES:
            self._sites.clear()
        self._sites[site] = (started, seen + 1)
        return seen < self._burst


class _PeerNoise(logging.Filter):
    """Drops aiohttp's tracebacks about malformed requests: they quote header lines, which may
    hold a key, and anyone can cause as many as they like."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not type(error).__module__.startswith("aiohttp.http_exceptions")


def configure_logging(config: LoggingConfig, stream: TextIO | None = None) -> None:
    """Replace the root logger's handlers with one on ``stream`` (standard error)."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(make_formatter(config.format))
    handler.addFilter(WarningThrottle())
    handler.addFilter(_PeerNoise())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
