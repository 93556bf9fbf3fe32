"""``clawstream profile``: where a running gateway and its workers spend their time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from gateway.commands.ask_gateway import DEFAULT_URL, http_address
from gateway.commands.exits import CommandError, ExitCode, needs_package
from gateway.commands.out_file import check_out_file

if TYPE_CHECKING:
    import psutil

_EXTRA_S = 60.0  # to start, and to write the picture


def profile(
    out: Annotated[
        Path,
        typer.Option(callback=check_out_file, help="The flame graph, an SVG for the browser."),
    ] = Path("clawstream-profile.svg"),
    seconds: Annotated[int, typer.Option(min=1, max=600, help="How long to look.")] = 10,
    rate_hz: Annotated[
        int, typer.Option("--rate", min=1, max=1000, help="Samples a second, per process.")
    ] = 100,
    native: Annotated[
        bool,
        typer.Option("--native", help="Also functions of C and C++ libraries; slower."),
    ] = False,
    url: Annotated[
        str, typer.Option(help="The gateway; it must run on this machine.")
    ] = DEFAULT_URL,
) -> None:
    """Write a flame graph of a running gateway and all of its workers.

    py-spy samples the processes from outside: they go on serving, each stopped for well under a
    millisecond per sample. Where the system forbids that, run it as root.

    [bold]Examples[/bold]

      clawstream profile --seconds 10
      clawstream profile --native --out with-onnxruntime.svg
    """
    console = Console()
    gateway = find_gateway(url)
    workers = gateway.children(recursive=True)
    console.print(
        f"gateway: pid {gateway.pid}, {len(workers)} process(es) below it", highlight=False
    )
    command = py_spy_command(gateway.pid, out, seconds=seconds, rate_hz=rate_hz, native=native)
    with console.status(f"looking for {seconds} s"):
        _run(command, seconds + _EXTRA_S)
    console.print(f"flame graph in {out}", highlight=False)


def find_gateway(url: str) -> psutil.Process:
    """The process of this machine that listens where ``url`` points.

    Raises:
        CommandError: there is none, or the system does not say whose it is.
    """
    import psutil

    parts = urlsplit(http_address(url))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    owners = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    }
    if not owners:
        text = f"nothing on this machine listens on port {port}; a profile is made where it runs"
        raise CommandError(ExitCode.CANNOT_CONNECT, text)
    known = sorted(pid for pid in owners if pid is not None)
    if not known:
        text = f"the process on port {port} belongs to another user: run this as that user, or root"
        raise CommandError(ExitCode.FAILED, text)
    return psutil.Process(known[0])


def py_spy_command(pid: int, out: Path, *, seconds: int, rate_hz: int, native: bool) -> list[str]:
    """How py-spy is called; raises CommandError when it is not installed."""
    beside_us = Path(sys.executable).parent / "py-spy"
    program = str(beside_us) if os.access(beside_us, os.X_OK) else shutil.which("py-spy")
    if program is None:
        raise CommandError(ExitCode.MISSING, needs_package("py-spy", "server,cpu"))
    return [
        program,
        "record",
        *("--pid", str(pid), "--subprocesses"),
        *("--duration", str(seconds), "--rate", str(rate_hz)),
        *("--format", "flamegraph", "--output", str(out)),
        *(["--native"] if native else []),
    ]


def _run(command: list[str], limit_s: float) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"py-spy did not end within {limit_s:.0f} s"
        raise CommandError(ExitCode.FAILED, text) from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").splitlines()
        errors = [line for line in said if line.startswith(("Error:", "Reason:"))]
        reason = " ".join(errors) or f"it ended with {done.returncode}"
        if "No stack counts" in reason:
            reason = "nothing ran while it looked; profile a gateway under load"
        raise CommandError(ExitCode.FAILED, f"py-spy: {reason}")
