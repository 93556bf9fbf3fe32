"""The two layouts of a log line, the same in the gateway and in its worker processes.

Formatters only: handlers are set where a process begins, in ``gateway.logs`` and
``engine.workers.lifeline``.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Literal

LogFormat = Literal["human", "json"]


class HumanFormatter(logging.Formatter):
    """``12:34:56.789 INFO    gateway.app  ready``; the traceback follows.

    A worker's lines name it: ``… INFO    engine.onnx.session  [worker centerface/0 pid 71] …``.
    """

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._prefix = f"[worker {worker}] " if worker else ""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {record.name}"
        text = f"{head}  {self._prefix}{record.getMessage()}"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (seconds), ``level``, ``logger``, ``message``, and
    ``worker`` in a worker's lines."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._worker,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def make_formatter(log_format: LogFormat, worker: str = "") -> logging.Formatter:
    """The formatter of that name; ``worker`` is for a worker's lines."""
    return JsonFormatter(worker) if log_format == "json" else HumanFormatter(worker)


def format_in_use() -> LogFormat:
    """What this process's root logger writes; ``human`` in a program that logs in its own way.

    A host asks it, as it asks for the level, to make its workers write the same.
    """
    handlers = logging.getLogger().handlers
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in handlers)
    return "json" if is_json else "human"
