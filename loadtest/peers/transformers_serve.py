"""transformers' own server, ``transformers serve``, as its documentation starts it.

``python -m loadtest.peers.transformers_serve MODEL_FOLDER [OPTION …]`` prints its address and its
settings, and serves until its standard input ends. Its requests cannot say ``ignore_eos``: it gets
the same model with no end-of-text token in its configuration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path

from loadtest.gateway_process import free_port

START_S = 120.0


def main() -> None:
    options, port = sys.argv[2:], free_port()
    with tempfile.TemporaryDirectory(prefix="clawstream-") as folder:
        model = Path(folder) / "model"
        copy_without_end(Path(sys.argv[1]), model)
        program = str(Path(sys.executable).parent / "transformers")
        command = [program, "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(
            [*command, "--device", "cpu", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        try:
            wait_until_healthy(process, port)
            print(f"http://127.0.0.1:{port}")
            print(f"transformers {version('transformers')} serve {' '.join(options)}, 1 thread")
            print(model, flush=True)
            sys.stdin.read()
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def copy_without_end(source: Path, target: Path) -> None:
    """The same model by links, but for the configurations that name its end-of-text token."""
    target.mkdir()
    for file in source.iterdir():
        if file.name in ("config.json", "generation_config.json"):
            settings = json.loads(file.read_text())
            settings["eos_token_id"] = None
            (target / file.name).write_text(json.dumps(settings))
        else:
            (target / file.name).symlink_to(file)


def wait_until_healthy(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError("transformers serve did not start: is transformers[serving] installed?")


if __name__ == "__main__":
    main()
