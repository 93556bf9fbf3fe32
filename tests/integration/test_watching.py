"""``clawstream top`` and ``clawstream profile`` at a running gateway."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.models.store import ModelStore

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "gateway")
LIMIT_S = 60


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    ModelStore().pull("centerface")
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--model", "centerface"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    address = re.match(r"listening on (\S+) ", process.stdout.readline())
    assert address is not None
    try:
        yield address[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_top_shows_the_models_of_a_running_gateway(gateway: str) -> None:
    shown = run("top", "--url", gateway, "--once", "--interval", "0.2")
    assert shown.returncode == 0, shown.stderr
    assert "centerface" in shown.stdout
    assert "1/1" in shown.stdout


def test_top_without_a_gateway_ends_with_4() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and never listening
        port = nobody.getsockname()[1]
        shown = run("top", "--url", f"http://127.0.0.1:{port}", "--once")
    assert shown.returncode == 4
    assert f"error: cannot reach http://127.0.0.1:{port}/metrics: nothing listens" in shown.stderr
    assert "Traceback" not in shown.stderr


@contextmanager
def busy(gateway: str) -> Iterator[None]:
    """Requests, one after the other: of a gateway that rests there is nothing to draw."""
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            urllib.request.urlopen(f"{gateway}/metrics", timeout=LIMIT_S).read()

    asking = threading.Thread(target=ask, name="asking")
    asking.start()
    try:
        yield
    finally:
        is_over.set()
        asking.join()


def test_profile_draws_the_gateway_and_its_worker(gateway: str, tmp_path: Path) -> None:
    out = tmp_path / "profile.svg"
    with busy(gateway):
        made = run("profile", "--url", gateway, "--seconds", "1", "--out", str(out))
    if "denied" in made.stderr.lower() or "permitted" in made.stderr.lower():
        pytest.skip("this system lets no process look into another one")
    assert made.returncode == 0, made.stderr
    assert "1 process(es) below it" in made.stdout
    assert "<svg" in out.read_text()


def test_profile_of_nothing_ends_with_4(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        out = tmp_path / "profile.svg"
        made = run("profile", "--url", f"http://127.0.0.1:{port}", "--out", str(out))
    assert made.returncode == 4
    assert "nothing on this machine listens" in made.stderr
    assert not out.exists()
