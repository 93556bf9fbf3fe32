"""What the client raises, as what a command says and ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.client import ClientError, ConnectError, SourceError, StreamError
from gateway.commands.exits import CommandError, ExitCode

_UNKNOWN_MODEL = "urn:clawstream:problem:unknown-model"


@contextmanager
def readable_client_errors(url: str, model: str) -> Iterator[None]:
    """Turn the errors of a client at ``url`` that asks ``model`` into a CommandError."""
    try:
        yield
    except ConnectError as error:
        raise CommandError(ExitCode.CANNOT_CONNECT, f"{url}: {error}") from error
    except SourceError as error:
        raise CommandError(ExitCode.MISSING, str(error)) from error
    except StreamError as error:
        is_unknown = error.problem is not None and error.problem.type == _UNKNOWN_MODEL
        code = ExitCode.MISSING if is_unknown else ExitCode.FAILED
        raise CommandError(code, f"model {model!r}: {error}") from error
    except (ClientError, ValueError) as error:
        raise CommandError(ExitCode.USAGE, str(error)) from error
