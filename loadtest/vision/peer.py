"""LitServe and Mosec serving CenterFace, each in an environment of its own."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadtest.batching.sleeping import pinned, stop_group, wait_listening
from loadtest.gateway_process import free_port
from loadtest.peers.environment import python_of

ROOT = Path(__file__).resolve().parents[2]
PATHS = {"litserve": "/predict", "mosec": "/inference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server that is told its batch size. It is stopped (SIGSTOP) while others are measured."""

    name: str
    batch_size: int
    port: int
    process: subprocess.Popen[bytes]

    @contextmanager
    def awake(self) -> Iterator[None]:
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGSTOP)

    def request(self, jpeg: bytes) -> bytes:
        """One whole HTTP request with a picture."""
        body, kind = jpeg, "application/octet-stream"
        if self.name == "litserve":
            body, kind = b'{"input": "%s"}' % base64.b64encode(jpeg), "application/json"
        head = (
            f"POST {PATHS[self.name]} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@contextmanager
def serving(
    name: str, batch_size: int, model: Path, environments: Path, *, core: int
) -> Iterator[Peer]:
    """On one core, and asleep."""
    port = free_port()
    command = [str(python_of(name, environments))]
    command.append(str(ROOT / "loadtest" / "peers" / f"{name}_centerface.py"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if name == "mosec":
        command += ["--port", str(port), "--address", "127.0.0.1", "--timeout", "60000"]
        environment["CENTERFACE"] = f"{batch_size} {model}"
    else:
        command += [str(port), str(batch_size), str(model)]
    with tempfile.TemporaryFile() as log:
        with pinned(core=core):
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            if not wait_listening(port, process):
                log.seek(0)
                raise RuntimeError(f"{name} did not start:\n{log.read().decode()[-2000:]}")
            os.killpg(process.pid, signal.SIGSTOP)
            yield Peer(name=name, batch_size=batch_size, port=port, process=process)
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            stop_group(process)
