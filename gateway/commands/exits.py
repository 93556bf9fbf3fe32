"""How a command ends: exit codes, and errors in one readable line on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer
from rich.console import Console
from rich.text import Text

from engine.errors import EngineError, UnknownModel
from engine.models.errors import ManifestError, MissingModel, MissingPackage, SourceError
from gateway.errors import ConfigError

# Modules that the extras bring; without them the client commands still work.
_SERVER_MODULES = {
    "aiohttp",
    "filelock",
    "onnx",
    "onnxruntime",
    "prometheus_client",
    "psutil",
    "pydantic",
    "pydantic_settings",
    "uvloop",
}
_LLM_MODULES = {"gguf", "safetensors", "tokenizers", "torch", "transformers"}


EXIT_CODES = (
    "Exit codes: 0 ok, 1 the run failed, lost frames of a lossless stream, or its receipts do not "
    "add up, 2 bad option or configuration, 3 something is missing (a model of that name and kind, "
    "camera, file, package), 4 cannot connect, or the connection was lost for good, 130 Ctrl-C "
    "(a server that is up ends with 0)."
)


class ExitCode(IntEnum):
    """What a script can rely on; ``clawstream --help`` lists them."""

    OK = 0
    FAILED = 1  # the run failed, or receipts do not add up
    USAGE = 2  # bad option or configuration; the text names it
    MISSING = 3  # a model of that name and kind, a camera, file or package is not there
    CANNOT_CONNECT = 4
    INTERRUPTED = 130  # Ctrl-C; a server that is up ends with 0


class CommandError(Exception):
    """Ends the command with ``code``; the text is for the person at the terminal."""

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn the errors that a user can act on into a line and an exit code; others pass."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except (CommandError, ConfigError, EngineError, ModuleNotFoundError) as error:
        verdict = _judge(error)
        if verdict is None:
            raise
        code, text = verdict
        print_error(text)
        raise typer.Exit(code) from error


def print_error(text: str) -> None:
    """``error: text`` on standard error."""
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text.assemble(("error: ", "bold red"), text))


def _judge(error: Exception) -> tuple[ExitCode, str] | None:
    match error:
        case CommandError():
            return error.code, str(error)
        case ConfigError() | ManifestError():
            return ExitCode.USAGE, str(error)
        case MissingModel() | MissingPackage() | SourceError() | UnknownModel():
            return ExitCode.MISSING, str(error)
        case EngineError():
            return ExitCode.FAILED, str(error)
        case ModuleNotFoundError() if error.name in _SERVER_MODULES:
            return ExitCode.MISSING, needs_package(error.name, "server,cpu")
        case ModuleNotFoundError() if error.name in _LLM_MODULES:
            return ExitCode.MISSING, needs_package(error.name, "server,cpu,llm")
    return None


def needs_package(module: str, extras: str) -> str:
    """What to say when one of the extras is not installed."""
    return (
        f"this command needs the package {module}: "
        f"pip install 'clawstream[{extras}]', or '.[{extras}]' in a checkout"
    )
