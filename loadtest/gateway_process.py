"""A gateway in its own process, as a user starts it, for benches and long tests."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from loadtest import machine


class GatewayProcess:
    """``clawstream serve`` with ``config`` (TOML text) on a free loopback port.

    A context manager: ready on entry (or ``RuntimeError`` with the log), ended with SIGTERM on
    exit and killed only when that takes longer than ``stop_s``.
    """

    def __init__(self, config: str, *, start_s: float = 180.0, stop_s: float = 30.0) -> None:
        self._config = config
        self._start_s = start_s
        self._stop_s = stop_s
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def worker_pids(self) -> list[int]:
        return machine.children(self.pid)

    @property
    def log_path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "gateway.log"

    def __enter__(self) -> GatewayProcess:
        self._folder = tempfile.TemporaryDirectory(prefix="clawstream-")
        config_path = Path(self._folder.name) / "config.toml"
        config_path.write_text(self._config)
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config_path)]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()

    def stop(self) -> int:
        """SIGTERM, bounded; returns the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(self._stop_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        return self.process.returncode

    def _wait_ready(self) -> None:
        assert self.process is not None
        give_up = time.monotonic() + self._start_s
        while time.monotonic() < give_up:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.http_url}/readyz", timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass  # not listening or not warm yet
            time.sleep(0.1)
        raise RuntimeError(
            "the gateway did not become ready:\n" + self.log_path.read_text()[-4000:]
        )


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
