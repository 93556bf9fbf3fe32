"""What the client raises, as what a command says and ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gateway.client import AuthError, ClientError, ConnectError, SourceError, StreamError
from gateway.client.greeting import stream_address
from gateway.commands.exits import CommandError, ExitCode
from gateway.wire.messages import Problem

_UNKNOWN_MODEL = "urn:clawstream:problem:unknown-model"
_UNSUPPORTED = "urn:clawstream:problem:unsupported-option"
_OTHER_KIND = "kind: "  # how the detail of the latter begins for a model of another kind
_MAX_LISTED = 10


@contextmanager
def readable_client_errors(
    url: str, model: str, advice: str = "", served: Callable[[], Sequence[str]] = tuple
) -> Iterator[None]:
    """Turn the errors of a client at ``url`` that asks ``model`` into a CommandError; ``advice``
    and the names ``served`` there are for who asks a model that is not."""
    try:
        yield
    except AuthError as error:
        text = f"{_with_address(url, error)}; set CLAWSTREAM_API_KEY"
        raise CommandError(ExitCode.CANNOT_CONNECT, text) from error
    except ConnectError as error:
        raise CommandError(ExitCode.CANNOT_CONNECT, _with_address(url, error)) from error
    except SourceError as error:
        raise CommandError(ExitCode.MISSING, str(error)) from error
    except StreamError as error:
        if _is_unknown(error.problem):
            text = f"{url}: no model {model!r} is served there; {_listed(served())}"
            raise CommandError(ExitCode.MISSING, f"{text}; {advice}" if advice else text) from error
        code = ExitCode.MISSING if _is_of_another_kind(error.problem) else ExitCode.FAILED
        raise CommandError(code, f"model {model!r}: {error}") from error
    except (ClientError, ValueError) as error:
        raise CommandError(ExitCode.USAGE, str(error)) from error


def _with_address(url: str, error: ConnectError) -> str:
    """The text, which names the address where the connection could not be opened."""
    text = str(error)
    return text if stream_address(url) in text else f"{url}: {text}"


def _listed(served: Sequence[str]) -> str:
    if not served:
        return "/v1/models lists those that are"
    text = f"those that are: {', '.join(served[:_MAX_LISTED])}"
    num_more = len(served) - _MAX_LISTED
    return text if num_more <= 0 else f"{text} and {num_more} more; /v1/models lists them"


def _is_unknown(problem: Problem | None) -> bool:
    """Whether the gateway serves no model of that name."""
    return problem is not None and problem.type == _UNKNOWN_MODEL


def _is_of_another_kind(problem: Problem | None) -> bool:
    """Whether the gateway serves a model of that name, which does something else."""
    if problem is None or problem.type != _UNSUPPORTED:
        return False
    return problem.detail.startswith(_OTHER_KIND)
