from __future__ import annotations

import errno
import re
import subprocess
import sys
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from engine.manifest import Manifest
from engine.models.sources import ProgressCallback
from engine.models.store import ModelStore
from gateway.cli import app
from gateway.commands.exits import CommandError, ExitCode
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
    assert "130 Ctrl-C (a server that is up ends with 0)" in " ".join(result.output.split())


def test_demo_says_its_defaults_and_how_many_frames_it_writes() -> None:
    shown = " ".join(re.sub("[│╭╮╰╯]", " ", _run("demo", "--help").output).split())
    assert "How long, with --headless. Default: 10." in shown
    assert "With --headless: face, street, or a video file. Default: face." in shown
    assert "write annotated frames to this MP4 file, at most 15 a second of a video." in shown


@pytest.mark.parametrize("command", [*COMMANDS[:4], "check-config"])
def test_every_command_teaches_by_example(command: str) -> None:
    result = _run(command, "--help")
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert "Exit codes: 0 ok" in result.output
    assert f"clawstream {command}" in result.output


def _commands() -> list[tuple[tuple[str, ...], str]]:
    """Every command, as it is called, and its help."""
    root = typer.main.get_group(app)
    found: list[tuple[tuple[str, ...], str]] = [((), root.help or "")]
    for name, command in root.commands.items():
        found.append(((name,), command.help or ""))
        for sub_name, below in getattr(command, "commands", {}).items():
            found.append(((name, sub_name), below.help or ""))
    return found


@pytest.mark.parametrize(("names", "text"), _commands())
def test_help_flows_around_whole_examples_at_80_columns(names: tuple[str, ...], text: str) -> None:
    shown = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    lines = [line.strip() for line in shown.output.splitlines()]
    assert "Exit codes: 0 ok" in shown.output
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(" "):
            assert {line.strip() for line in paragraph.splitlines()} <= set(lines)
        else:
            assert "\n" not in paragraph


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


def test_unknown_name_is_told_before_anything_is_pulled(home: Path) -> None:
    result = _run("models", "pull", "centerface", "nothing")
    assert result.exit_code == 3
    assert "no model or clip named 'nothing' in the catalogue, which has: cen" in result.stderr
    assert not home.exists() or list(home.iterdir()) == []


def test_info_shows_the_manifest(home: Path) -> None:
    _install(home, "centerface")
    result = _run("models", "info", "centerface")
    assert result.exit_code == 0
    assert "name: centerface version 1" in result.output
    assert "licence: MIT" in result.output
    assert f"model: {home}/models/centerface/1/model.onnx" in result.output


def test_info_leaves_out_what_a_language_model_has_not(home: Path) -> None:
    directory = home / "models" / "smollm2-135m" / "1"
    directory.mkdir(parents=True)
    manifest = Manifest(name="smollm2-135m", kind="chat", description="old", files={"model": "m"})
    (directory / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    (directory / "m").mkdir()
    result = _run("models", "info", "smollm2-135m")
    assert result.exit_code == 0
    keys = [line.partition(":")[0] for line in result.output.splitlines()]
    assert keys == ["name", "description", "licence", "kind", "model", "versions here"]
    assert "4,096 tokens of context, 8,192 at most" in result.output


def test_info_takes_no_text_for_markup(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(home, "centerface")
    found = [{"version": "[/x]", "role": "[bold]", "reason": "[/y]"}]
    monkeypatch.setattr("gateway.commands.models.versions_of", lambda *_: found)
    result = _run("models", "info", "centerface", "--url", "ws://127.0.0.1:1")
    assert "version [/x]: [bold]: [/y]\n" in result.output


def test_info_of_an_unknown_name_lists_models_and_clips() -> None:
    result = _run("models", "info", "nothing")
    assert result.exit_code == 3
    assert "centerface, efficientnet-lite0, face, smollm2-135m, street" in result.stderr


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


def test_check_config_tells_cheaper_weights_and_an_inference_table_without_a_use(
    home: Path, tmp_path: Path
) -> None:
    _install(home, "centerface")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "config.json").write_text("{}")
    file = tmp_path / "gateway.toml"
    inference = '[inference]\nweights = "fp32"\ncheaper_weights = "int8"\n'
    file.write_text(f"{inference}[models.centerface]\n")
    assert "warning: inference: changes nothing" in _run("check-config", str(file)).output
    file.write_text(f'{inference}[models.words]\npath = "{tmp_path}/words"\n')
    shown = _run("check-config", str(file)).output
    assert "weights fp32, cheaper int8, max_batch_size" in shown
    assert "warning" not in shown


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


def test_demo_without_its_clip_ends_before_anything_is_pulled(home: Path) -> None:
    result = _run("demo", "--headless", "--clip", "nope")
    assert result.exit_code == 3
    assert "--clip: file not found: nope; take face or street, or a video file" in result.stderr
    assert not home.exists() or list(home.iterdir()) == []


@pytest.mark.parametrize("option", [["--out", "o.mp4"], ["--clip", "face"], ["--seconds", "3"]])
def test_demo_with_its_page_refuses_what_is_for_the_headless_one(
    home: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.chdir(home)
    result = _run("demo", *option)
    assert result.exit_code == 2
    assert result.stderr == f"error: {option[0]}: only together with --headless\n"
    assert list(home.iterdir()) == []


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the demo gets; nothing is downloaded, and it ends there."""
    names: list[str] = []

    def pull(store: ModelStore, wanted: Iterable[str], console: Console) -> None:
        names.extend(wanted)
        raise CommandError(ExitCode.FAILED, "enough")

    monkeypatch.setattr("gateway.commands.demo.pull_with_progress", pull)
    return names


@pytest.mark.parametrize("mode", [[], ["--headless"]])
def test_demo_on_a_taken_port_ends_before_anything_is_pulled(
    monkeypatch: pytest.MonkeyPatch, pulled: list[str], mode: list[str]
) -> None:
    def refuse(host: str, port: int, *, user_timeout_s: float) -> NoReturn:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr("gateway.net.socket_options.open_listeners", refuse)
    result = _run("demo", *mode, "--port", "8400")
    assert result.exit_code == 2
    assert "error: server.port: 8400 on 127.0.0.1 is taken" in result.stderr
    assert pulled == []
    assert "enough" in _run("demo", *mode, "--port", "0").stderr


def test_demo_never_writes_over_its_clip(
    home: Path, monkeypatch: pytest.MonkeyPatch, pulled: list[str]
) -> None:
    (home / "clips").mkdir()
    cached, own = home / "clips" / "face.mp4", home / "own.mp4"
    monkeypatch.chdir(home)
    for file, clip in ((cached, "face"), (own, str(own)), (own, "own.mp4")):
        file.write_bytes(b"clip")
        result = _run("demo", "--headless", "--clip", clip, "--out", str(file))
        assert result.exit_code == 2
        assert result.stderr == f"error: --out: {file} is the source itself\n"
        assert file.read_bytes() == b"clip"
    assert pulled == []


@pytest.mark.parametrize(("command", "what"), [("say", "message"), ("chat", "question")])
@pytest.mark.parametrize("text", ["", " \n"])
def test_saying_nothing_is_wrong_usage(command: str, what: str, text: str) -> None:
    result = _run(command, text)
    assert result.exit_code == 2
    assert result.stderr == f"error: the {what} is empty\n"


def test_model_that_is_a_file_is_told_how_to_name_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    Path("README.md").write_text("text")
    for command in (["demo", "--headless", "--model"], ["models", "info"]):
        result = _run(*command, "README.md")
        assert result.exit_code == 3
        assert "named 'README.md' in the catalogue, which has: " in result.stderr
        assert result.stderr.endswith("; the file is ./README.md\n")


def test_an_interrupt_while_the_command_is_imported_is_quiet() -> None:
    script = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gateway.commands.demo': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from gateway.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
