"""The gateway in a process of its own, so that what a client measures is not its own load."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import BinaryIO

from gateway.commands.exits import CommandError, ExitCode
from gateway.commands.serve import LISTENING

_START_S = 180.0  # a model may be large and the machine small
_STOP_S = 20.0  # beyond the gateway's own default budget of 10 s
_LOG_BYTES = 4096


@asynccontextmanager
async def gateway_process(arguments: Sequence[str]) -> AsyncIterator[str]:
    """Run ``clawstream serve ARGUMENTS`` and yield its address, such as ``http://127.0.0.1:8400``.

    Ready on entry; on exit it is asked to end, and killed only if it takes longer than 20 s.

    Raises:
        CommandError: it could not start; the text and the code are the process's own.
    """
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "gateway", "serve", "--end-with-parent", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is ours: first the receipts, then the gateway's end
        )
        try:
            yield await _wait_until_listening(process, log)
        finally:
            await _end(process)


async def _wait_until_listening(process: asyncio.subprocess.Process, log: BinaryIO) -> str:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        address = re.search(rf"{LISTENING} (\S+)", line.decode("utf-8", "replace"))
        if address is not None:
            return address[1]
        code = await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        raise CommandError(
            ExitCode.FAILED, f"the gateway was not ready within {_START_S:.0f} s\n{_tail(log)}"
        ) from None
    known = code in (ExitCode.USAGE, ExitCode.MISSING)
    text = _tail(log).rpartition("error: ")[2].strip() if known else _tail(log)
    raise CommandError(
        ExitCode(code) if known else ExitCode.FAILED, text or f"the gateway ended with {code}"
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: BinaryIO) -> str:
    size = log.seek(0, 2)
    log.seek(max(0, size - _LOG_BYTES))
    return log.read(_LOG_BYTES).decode("utf-8", "replace").strip()
