"""What the client raises, as what a command says and ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.client import ClientError, ConnectError, SourceError, StreamError
from gateway.client.greeting import stream_address
from gateway.commands.exits import CommandError, ExitCode
from gateway.wire.messages import Problem

_UNKNOWN_MODEL = "urn:clawstream:problem:unknown-model"
_UNSUPPORTED = "urn:clawstream:problem:unsupported-option"
_OTHER_KIND = "kind: "  # how the detail of the latter begins for a model of another kind


@contextmanager
def readable_client_errors(url: str, model: str) -> Iterator[None]:
    """Turn the errors of a client at ``url`` that asks ``model`` into a CommandError."""
    try:
        yield
    except ConnectError as error:
        raise CommandError(ExitCode.CANNOT_CONNECT, _with_address(url, error)) from error
    except SourceError as error:
        raise CommandError(ExitCode.MISSING, str(error)) from error
    except StreamError as error:
        code = ExitCode.MISSING if _lacks_model(error.problem) else ExitCode.FAILED
        raise CommandError(code, f"model {model!r}: {error}") from error
    except (ClientError, ValueError) as error:
        raise CommandError(ExitCode.USAGE, str(error)) from error


def _with_address(url: str, error: ConnectError) -> str:
    """The text, which names the address where the connection could not be opened."""
    text = str(error)
    return text if stream_address(url) in text else f"{url}: {text}"


def _lacks_model(problem: Problem | None) -> bool:
    """Whether the gateway serves no model of that name and kind."""
    if problem is None:
        return False
    is_other_kind = problem.type == _UNSUPPORTED and problem.detail.startswith(_OTHER_KIND)
    return problem.type == _UNKNOWN_MODEL or is_other_kind
