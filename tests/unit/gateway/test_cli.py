from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from engine.manifest import Manifest
from engine.models.sources import ProgressCallback
from engine.models.store import ModelStore
from gateway.cli import app
from gateway.commands.models import pull_with_progress
from gateway.commands.serve import serving_overrides

pytestmark = pytest.mark.unit

COMMANDS = ("demo", "serve", "stream", "chat", "models", "check-config")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAWSTREAM_HOME", str(tmp_path))
    return tmp_path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "120", "NO_COLOR": "1"})


def _install(home: Path, name: str) -> None:
    directory = home / "models" / name / "1"
    directory.mkdir(parents=True)
    manifest = Manifest(name=name, kind="faces", files={"model": "model.onnx"}, licence="MIT")
    (directory / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    (directory / "model.onnx").write_bytes(b"onnx")


def test_version_is_shown() -> None:
    result = _run("--version")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"clawstream (\d+\.\d+\.\d+|\(source tree, not installed\))\n", result.output
    )


def test_help_names_commands_and_exit_codes() -> None:
    result = _run("--help")
    assert result.exit_code == 0
    for command in COMMANDS:
        assert command in result.output
    assert "Exit codes: 0 ok" in result.output


@pytest.mark.parametrize("command", [*COMMANDS[:4], "check-config"])
def test_every_command_teaches_by_example(command: str) -> None:
    result = _run(command, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert "Exit codes: 0 ok" in result.output
    assert f"clawstream {command}" in result.output


@pytest.mark.parametrize("arguments", [["nonsense"], ["serve", "--nonsense"], ["models", "pull"]])
def test_wrong_usage_ends_with_2(arguments: list[str]) -> None:
    assert _run(*arguments).exit_code == 2


def test_list_shows_everything_and_the_cache(home: Path) -> None:
    _install(home, "centerface")
    result = _run("models", "list")
    assert result.exit_code == 0
    assert re.search(r"centerface +faces +yes +6\.9 MB", result.output)
    assert re.search(r"efficientnet-lite0 +classify +no +17\.9 MB", result.output)
    assert re.search(r"street +clip +no", result.output)
    assert f"cache: {home}" in result.output


def test_pull_of_what_is_here_needs_no_network(home: Path) -> None:
    _install(home, "centerface")
    (home / "clips").mkdir()
    (home / "clips" / "face.mp4").write_bytes(b"clip")
    result = _run("models", "pull", "centerface", "face")
    assert result.exit_code == 0
    assert result.stdout == "centerface: ready\nface: ready\n"


def test_pull_of_an_unknown_name_ends_with_2() -> None:
    result = _run("models", "pull", "nothing")
    assert result.exit_code == 2
    assert "no model named 'nothing' in the catalogue" in result.stderr


def test_info_shows_the_manifest(home: Path) -> None:
    _install(home, "centerface")
    result = _run("models", "info", "centerface")
    assert result.exit_code == 0
    assert "name: centerface version 1" in result.output
    assert "licence: MIT" in result.output
    assert f"model: {home}/models/centerface/1/model.onnx" in result.output


@pytest.mark.parametrize(("name", "licence"), [("centerface", "MIT"), ("face", "BSD")])
def test_info_of_what_is_not_here_shows_licence_and_command(name: str, licence: str) -> None:
    result = _run("models", "info", name)
    assert result.exit_code == 0
    assert f"licence: {licence}" in result.output
    assert f"clawstream models pull {name}" in result.output


def test_info_of_a_missing_file_ends_with_3() -> None:
    result = _run("models", "info", "none.onnx")
    assert result.exit_code == 3
    assert "there is no file" in result.stderr


def test_info_of_a_file_with_a_wrong_description_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(b"onnx")
    (tmp_path / "mine.toml").write_text('kind = "detect"\nlabel = 1\n')
    result = _run("models", "info", str(tmp_path / "mine.onnx"))
    assert result.exit_code == 2
    assert "mine.toml" in result.stderr
    assert "label" in result.stderr


def test_info_of_a_file_that_is_no_model_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").write_bytes(b"onnx")
    result = _run("models", "info", str(tmp_path / "mine.onnx"))
    assert result.exit_code == 2
    assert "mine.onnx: " in result.stderr


def test_piped_download_has_a_line_per_stage_up_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pull(store: ModelStore, name: str, progress: ProgressCallback) -> None:
        for done in range(0, 101, 10):
            progress(done, 100, "downloading something")
        progress(100, 100, "ready")

    monkeypatch.setattr(ModelStore, "pull", pull)
    written = StringIO()
    pull_with_progress(ModelStore(), ["centerface"], Console(file=written))
    assert written.getvalue() == "centerface: downloading something\ncenterface: ready\n"


def test_unwritable_video_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    out = str(tmp_path / "gone" / "out.mp4")
    for command in (["stream", "none.mp4", "--model", "x"], ["demo", "--headless"]):
        result = _run(*command, "--out", out)
        assert result.exit_code == 2
        assert result.stderr == f"error: --out: cannot write {out}: No such file or directory\n"


def test_check_config_shows_what_would_be_served(home: Path, tmp_path: Path) -> None:
    _install(home, "centerface")
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[server]\nport = 9000\napi_keys = ["secret"]\n[models.centerface]\nworkers = 2\n'
    )
    result = _run("check-config", str(file))
    assert result.exit_code == 0
    assert result.output.startswith("address: http://127.0.0.1:9000\napi keys: 1\n")
    assert "model centerface: version 1; workers 2" in result.output
    assert result.output.endswith("\nok\n")
    assert "secret" not in result.output


def test_check_config_names_every_missing_model_and_ends_with_3(home: Path, tmp_path: Path) -> None:
    _install(home, "centerface")
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[models.efficientnet-lite0]\n[models.centerface]\n[models.mine]\npath = "./mine.onnx"\n'
    )
    result = _run("check-config", str(file))
    assert result.exit_code == 3
    assert "ok" not in result.stdout.splitlines()
    assert "model 'efficientnet-lite0' is not in" in result.stderr
    assert "clawstream models pull efficientnet-lite0" in result.stderr
    assert "there is no file" in result.stderr


@pytest.mark.parametrize(
    ("toml", "option"),
    [
        ("[server]\nport = 70000\n", "server.port"),
        ("[limits]\nmax_stream = 4\n", "limits.max_stream"),
        ("[models.centerface]\nworkers = 0\n", "models.centerface.workers"),
        ("server = [\n", "gateway.toml"),
    ],
)
def test_check_config_names_the_wrong_option(tmp_path: Path, toml: str, option: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(toml)
    result = _run("check-config", str(file))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert option in result.stderr


def test_serving_options_become_tables(tmp_path: Path) -> None:
    path = str(tmp_path / "yolov8n.onnx")
    assert serving_overrides("::1", 0, ["centerface", path]) == {
        "server": {"host": "::1", "port": 0},
        "models": {"centerface": {}, "yolov8n": {"path": path}},
    }
    assert serving_overrides(None, None, []) == {"server": {}}
