"""The command line as a user runs it: real processes, a real gateway, the real model."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.models.store import ModelStore

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "gateway")
LIMIT_S = 60

WITHOUT_SERVER_EXTRA = """
import sys
for name in ("aiohttp", "filelock", "onnx", "onnxruntime", "prometheus_client", "psutil",
             "pydantic_settings", "uvloop"):
    sys.modules[name] = None
from gateway.__main__ import main
sys.argv = ["clawstream", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def face_clip() -> Path:
    store = ModelStore()
    store.pull("centerface")
    store.pull_clip("street")
    return store.pull_clip("face")


@pytest.fixture(scope="module")
def gateway(face_clip: Path) -> Iterator[str]:
    """The default model, served."""
    with _served() as url:
        yield url


@contextmanager
def _served(*options: str) -> Iterator[str]:
    """A gateway's address; it must end with 0 when it is told to."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = re.match(r"listening on (http://127\.0\.0\.1:\d+) ", process.stdout.readline())
    assert address is not None, process.communicate(timeout=LIMIT_S)
    try:
        yield address[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0


def _run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT_S, **options
    )


def _num_frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_headless_demo_adds_up_and_writes_the_video(face_clip: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mp4"
    with socket.socket() as page:
        page.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # somebody else has it: as good
            page.bind(("127.0.0.1", 8400))
        result = _run("demo", "--headless", "--seconds", "2", "--out", str(out))
    assert result.returncode == 0, result.stderr
    assert re.search(r"results +│ +[1-9]\d*", result.stdout)
    assert re.search(r"receipts add up +│ +yes", result.stdout)
    written = re.search(r"(\d+) annotated frames", result.stdout)
    assert written is not None
    assert 0 < int(written[1]) == _num_frames(out)


@pytest.mark.parametrize("options", [(), ("--headless",)])
def test_taken_port_is_told_and_ends_with_2(face_clip: Path, options: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = _run("demo", *options, "--port", str(port))
    assert result.returncode == 2
    assert f"error: server.port: {port} on 127.0.0.1 is taken" in result.stderr
    assert result.stdout == ""


def test_lossless_clip_gives_one_line_per_frame_in_order(gateway: str, face_clip: Path) -> None:
    options = ("--url", gateway, "--policy", "lossless", "--json")
    result = _run("stream", str(face_clip), "--model", "centerface", *options)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(lines) == _num_frames(face_clip)
    seqs = [line["seq"] for line in lines]
    assert seqs == sorted(set(seqs))
    assert {line["event"] for line in lines} == {"result"}
    assert lines[0]["data"]["objects"][0]["label"] == "face"
    assert re.search(r"receipts add up +│ +yes", result.stderr)


def test_detector_export_is_served_by_a_toml_file_alone(face_clip: Path, tmp_path: Path) -> None:
    _write_detector(tmp_path / "finder.onnx")
    (tmp_path / "finder.toml").write_text(
        'kind = "detect"\nlabels = ["cat", "dog"]\n'
        '[input]\nwidth = 64\nheight = 64\nfit = "stretch"\nscale = [0.004, 0.004, 0.004]\n'
    )
    with _served("--model", str(tmp_path / "finder.onnx")) as url:
        options = ("--url", url, "--policy", "lossless", "--json")
        result = _run("stream", str(face_clip), "--model", "finder", *options)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[0])["data"]
    assert (found["width"], found["height"]) == (176, 144)
    assert [(o["label"], o["score"], o["box"]) for o in found["objects"]] == [
        ("dog", 0.75, [44.0, 36.0, 132.0, 108.0])
    ]


def test_interrupted_stream_waits_for_its_receipts(gateway: str, face_clip: Path) -> None:
    command = [*COMMAND, "stream", str(face_clip), "--model", "centerface", "--url", gateway]
    process = subprocess.Popen(
        [*command, "--fps", "5", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["event"] == "result"  # it streams
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert re.search(r"receipts add up +│ +yes", errors)


def test_interrupted_demo_ends_its_gateway_too(face_clip: Path) -> None:
    command = [*COMMAND, "demo", "--headless", "--seconds", "60", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert address is not None
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    assert re.search(r"receipts add up +│ +yes", shown)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(address[1]))) != 0


def test_killed_demo_leaves_no_gateway(face_clip: Path) -> None:
    command = [*COMMAND, "demo", "--headless", "--seconds", "60", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert address is not None
    process.kill()
    process.communicate(timeout=LIMIT_S)
    give_up = time.monotonic() + 15
    while time.monotonic() < give_up:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(address[1]))) != 0:
                return
        time.sleep(0.05)
    pytest.fail("the gateway is still there")


def test_unknown_model_ends_with_3(gateway: str, face_clip: Path) -> None:
    result = _run("stream", str(face_clip), "--model", "nothing", "--url", gateway)
    assert result.returncode == 3
    assert result.stderr == (
        f"error: {gateway}: no model 'nothing' is served there; those that are: centerface\n"
    )


def test_missing_source_ends_with_3(gateway: str) -> None:
    result = _run("stream", "none.mp4", "--model", "centerface", "--url", gateway)
    assert result.returncode == 3
    assert "none.mp4" in result.stderr


def test_nobody_listening_ends_with_4(face_clip: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening: refused
        url = f"ws://127.0.0.1:{free.getsockname()[1]}"
        result = _run("stream", str(face_clip), "--model", "centerface", "--url", url)
    assert result.returncode == 4
    assert result.stderr == (
        f"error: cannot reach {url}/v1/stream: nothing listens there; "
        "start one with `clawstream demo` or `clawstream serve`\n"
    )


def test_serving_a_missing_model_ends_with_3_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAWSTREAM_HOME", str(tmp_path))
    result = _run("serve", "--port", "0")
    assert result.returncode == 3
    assert "clawstream models pull centerface" in result.stderr
    assert "Traceback" not in result.stderr


def test_client_commands_need_no_server_extra(gateway: str, face_clip: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_SERVER_EXTRA]
    streaming = ["stream", str(face_clip), "--model", "centerface", "--url", gateway]
    result = subprocess.run(
        [*command, *streaming, "--policy", "lossless"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert result.returncode == 0, result.stderr
    refused = subprocess.run([*command, "serve"], capture_output=True, text=True, timeout=LIMIT_S)
    assert refused.returncode == 3
    assert "pip install 'clawstream[server,cpu]'" in refused.stderr


def _write_detector(path: Path) -> None:
    """A detector that always sees one dog in the middle: output [batch, 4 + 2, 8]."""
    anchors = np.zeros((1, 6, 8), dtype=np.float32)
    anchors[0, :, 3] = (32, 32, 32, 32, 0.1, 0.75)  # centre, size, then cat and dog
    nodes = [
        # A number per item that is always 0, to give the answer the batch's size.
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Squeeze", ["nothing", "last"], ["column"]),
        helper.make_node("Add", ["anchors", "column"], ["output0"]),
    ]
    weights = [
        numpy_helper.from_array(anchors, "anchors"),
        numpy_helper.from_array(np.float32(0), "zero"),
        numpy_helper.from_array(np.array([3], dtype=np.int64), "last"),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 64, 64])
    output = helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["batch", 6, 8])
    graph = helper.make_graph(nodes, "finder", [images], [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
