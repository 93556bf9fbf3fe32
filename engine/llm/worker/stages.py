"""The stages inside a worker, each on its own thread(s), joined by bounded queues.

::

    reader ──> tokenising threads ──> stepping (main thread) ──> answering ──> sender
       └──────────── cancels ────────────┘ └── ended by their text ──┘

While step n runs, prompts are tokenised and the text of step n - 1 is made and sent.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import msgspec

from engine.config import LlmConfig
from engine.llm.messages import CancelKeys, Down, FinishLlm, ReleaseTable, Submit, UseCheaper
from engine.llm.worker.answering import Answering
from engine.llm.worker.loading import Loaded
from engine.llm.worker.outgoing import Outgoing
from engine.llm.worker.stepping import Cancel, Finish, Stepping
from engine.llm.worker.tokenising import Tokenising
from engine.workers.channel import ChannelError, WorkerChannel
from engine.workers.lifeline import EXIT_FAULT, guarded

logger = logging.getLogger(__name__)

TOKENISING_THREADS = 2  # a long prompt must not hold up a short one
INBOX_SLACK = 64  # cancels and releases, beyond the prompts


class Stages:
    """Serves a loaded model to the host at the other end of ``channel``; ``run`` is the main
    thread's. What is answered is marked with ``epoch``."""

    def __init__(
        self, loaded: Loaded, config: LlmConfig, epoch: int, channel: WorkerChannel[Down]
    ) -> None:
        self._ready = loaded.ready
        self._channel = channel
        self._outgoing = Outgoing(channel.send)
        self._answering = Answering(
            self._outgoing, epoch, lambda key: self._stepping.put(Cancel(key))
        )
        self._tokenising = Tokenising(
            loaded.tokenizer,
            loaded.content_filter,
            max_seq_length=loaded.ready.max_seq_length,
            speculative_tokens=config.speculative_tokens,
            capacity=config.max_waiting,
            deliver=lambda generation: self._stepping.put(generation),
            refuse=self._outgoing.put,
        )
        self._stepping = Stepping(
            loaded.runner,
            self._answering,
            has_more=self._tokenising.has_work,
            tell_gauges=self._outgoing.try_put,
            capacity=config.max_waiting + INBOX_SLACK,
        )

    def run(self) -> None:
        """Say that the model is ready, then serve until the host says to finish.

        Raises:
            StepFailed: all that ever ran was answered with an error.
        """
        self._outgoing.put(self._ready)
        tokenising = [("tokenising", self._tokenising.work_forever)] * TOKENISING_THREADS
        stages: list[tuple[str, Callable[[], None]]] = [
            ("sender", self._outgoing.send_forever),
            ("answering", self._answering.work_forever),
            *tokenising,
            ("reader", self._read_forever),
        ]
        for name, stage in stages:
            threading.Thread(target=guarded(stage), name=name, daemon=True).start()
        self._stepping.run()

    def _read_forever(self) -> None:
        """The end of the socket ends the process at once."""
        try:
            while (message := self._channel.receive()) is not None:
                self._take(message)
        except (ChannelError, msgspec.MsgspecError):
            logger.critical("the host sent a malformed message", exc_info=True)
            os._exit(EXIT_FAULT)
        os._exit(0)

    def _take(self, message: Down) -> None:
        match message:
            case Submit():
                self._tokenising.submit(message)
            case CancelKeys(keys=keys):
                for key in keys:
                    if not self._tokenising.withdraw(key):
                        self._stepping.put(Cancel(key))
            case ReleaseTable() | UseCheaper():
                self._stepping.put(message)
            case FinishLlm():
                self._stepping.put(Finish())
