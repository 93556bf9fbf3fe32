"""Errors of the client, one tree; the texts are meant to be read by people:

ClientError            root
├── ConnectError       no connection, or none any more; ``code`` is the close code, if there is one
│   └── AuthError      the key is missing or wrong
├── StreamError        the server refused or ended a stream; ``problem`` says why
│   └── LostError      the connection was lost, and an answer could not be recovered
└── SourceError        a file, camera or network stream cannot be read
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.wire.messages import Problem


class ClientError(Exception):
    """Root of the tree."""


class ConnectError(ClientError):
    """The server cannot be reached, does not speak the protocol, or ended the connection."""

    def __init__(self, detail: str, *, code: int | None = None) -> None:
        super().__init__(detail)
        self.code = code


class AuthError(ConnectError):
    """The server wants a valid key."""


class StreamError(ClientError):
    """A stream could not be opened, or was ended by the server."""

    def __init__(self, detail: str, *, problem: Problem | None = None) -> None:
        super().__init__(detail)
        self.problem = problem


class LostError(StreamError):
    """The connection was lost, and the rest of an answer with it; what came is right."""


class SourceError(ClientError):
    """The source of the frames cannot be opened or has failed."""


def problem_text(problem: Problem) -> str:
    """``title: detail`` of a problem."""
    return f"{problem.title}: {problem.detail}" if problem.detail else problem.title


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a program may want to tell its user.

    ``name`` is one of ``connected, disconnected, reconnected, goaway`` (of the connection),
    ``opened, drop, error, closed`` (of a stream), ``message`` (an operator's words for the people
    here) and ``service_level`` (how much the server gives up under pressure; ``detail`` is the
    name of the level, told when it changes and at first if it is not ``normal``).
    """

    name: str
    detail: str = ""
    stream: int | None = None
    seq: int | None = None
