from __future__ import annotations

import pytest
import typer

from engine.errors import StartupError, UnknownModel
from engine.models.errors import ManifestError, MissingModel, SourceError, StoreError
from gateway.commands.exits import CommandError, ExitCode, readable_errors
from gateway.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("server.port: must be >= 0"), ExitCode.USAGE),
        (ManifestError("yolo.toml: kind"), ExitCode.USAGE),
        (UnknownModel("no model named 'x'"), ExitCode.MISSING),
        (MissingModel("model 'centerface' is not here"), ExitCode.MISSING),
        (SourceError("cannot download"), ExitCode.MISSING),
        (StoreError("cannot import"), ExitCode.FAILED),
        (StartupError("the worker did not start"), ExitCode.FAILED),
        (CommandError(ExitCode.CANNOT_CONNECT, "nobody listens"), ExitCode.CANNOT_CONNECT),
        (ModuleNotFoundError("no", name="aiohttp"), ExitCode.MISSING),
        (ModuleNotFoundError("no", name="torch"), ExitCode.MISSING),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_errors_end_with_their_code(error: BaseException, code: ExitCode) -> None:
    with pytest.raises(typer.Exit) as ended, readable_errors():
        raise error
    assert ended.value.exit_code == code


def test_error_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), readable_errors():
        raise ConfigError("limits.max_streams: must be >= 1, got 0 [not markup]")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: limits.max_streams: must be >= 1, got 0 [not markup]\n"


def test_missing_extra_says_how_to_install_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), readable_errors():
        raise ModuleNotFoundError("no", name="aiohttp")
    assert "needs the package aiohttp: pip install 'clawstream[server,cpu]'" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("error", [RuntimeError("a fault"), ModuleNotFoundError("x", name="x")])
def test_faults_of_ours_are_not_hidden(error: Exception) -> None:
    with pytest.raises(type(error)), readable_errors():
        raise error
