"""Reads what an engine says at the end of a text."""

from __future__ import annotations

import logging

import msgspec

from engine.errors import InternalError
from engine.llm.request import FinishedAnswer
from engine.types import Result
from gateway.errors import from_engine_error

logger = logging.getLogger(__name__)

_DECODER = msgspec.json.Decoder(FinishedAnswer)


def read_finished(result: Result) -> FinishedAnswer:
    """How the answer ended.

    Raises:
        RequestProblem: INTERNAL, the engine said something else; the log has the same reference.
    """
    try:
        return _DECODER.decode(result.data)
    except msgspec.DecodeError:
        error = InternalError()
        logger.exception("%s ended no text, reference %s", result.model, error.reference)
        raise from_engine_error(error) from None
