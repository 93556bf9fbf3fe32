"""``clawstream chat`` as a process, against a gateway that answers word by word."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.commands.exits import ExitCode
from tests.fakes.page_gateway import CHAT_MODEL, FakePageGateway

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "gateway", "chat", "--model", CHAT_MODEL)
ANSWER = "Streams carry bytes in order. Sockets are their ends."
LIMIT_S = 30.0
CTRL_D = "\x04"


@pytest.fixture
async def gateway() -> AsyncIterator[FakePageGateway]:
    async with FakePageGateway() as gateway:
        gateway.behaviour.kinds = ("chat",)
        yield gateway


async def _run(
    url: str, *arguments: str, stdin: bytes | None = None
) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--url", url, *arguments),
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )
    out, err = await asyncio.wait_for(process.communicate(stdin), LIMIT_S)
    return process.returncode, out.decode(), err.decode()


class Terminal:
    """The process with a terminal of its own; ``seen`` is everything that it showed."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self.process = process
        self.seen = ""
        self._descriptor = descriptor

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def wait_for(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(LIMIT_S):
            while self.seen.count(text) < times:
                await asyncio.sleep(0.02)
                self._read()

    async def wait_for_prompt(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not self.seen.endswith("> "):
                await asyncio.sleep(0.02)
                self._read()

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), LIMIT_S)

    def _read(self) -> None:
        try:
            self.seen += os.read(self._descriptor, 65536).decode("utf-8", "replace")
        except BlockingIOError:
            pass  # nothing new
        except OSError:
            pass  # the process has ended


@asynccontextmanager
async def terminal(url: str, *arguments: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    os.set_blocking(ours, False)
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--url", url, *arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"},
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        os.close(ours)


async def test_a_question_prints_the_answer_and_nothing_else(gateway: FakePageGateway) -> None:
    options = ("--system", "Be brief.", "--temperature", "0", "--max-tokens", "100")
    code, out, err = await _run(gateway.url, "What is a stream?", *options)
    assert (code, out, err) == (ExitCode.OK, f"{ANSWER}\n", "")
    (prompt,) = gateway.prompts
    assert prompt["sampling"] == {"temperature": 0.0, "max_tokens": 100}
    assert prompt["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a stream?"},
    ]


async def test_a_pipe_is_a_question(gateway: FakePageGateway) -> None:
    code, out, _ = await _run(gateway.url, stdin=b"What is\na stream?\n")
    assert (code, out) == (ExitCode.OK, f"{ANSWER}\n")
    assert gateway.prompts[0]["messages"][0]["content"] == "What is\na stream?"


async def test_an_empty_pipe_is_a_mistake(gateway: FakePageGateway) -> None:
    code, out, err = await _run(gateway.url)
    assert (code, out) == (ExitCode.USAGE, "")
    assert "standard input is empty" in err


async def test_nobody_there_is_a_connection_error() -> None:
    code, out, err = await _run("ws://127.0.0.1:9", "Hi")
    assert (code, out) == (ExitCode.CANNOT_CONNECT, "")
    assert err.startswith("error: cannot reach ws://127.0.0.1:9/")


async def test_a_refused_prompt_fails_with_the_reason(gateway: FakePageGateway) -> None:
    gateway.behaviour.speech.error = "The prompt is too long"
    code, out, err = await _run(gateway.url, "Hi")
    assert (code, out) == (ExitCode.FAILED, "")
    assert "The prompt is too long" in err


async def test_an_interrupted_question_ends_with_130(gateway: FakePageGateway) -> None:
    gateway.behaviour.speech.ends.clear()
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--url", gateway.url, "Hi"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await asyncio.wait_for(process.stdout.readuntil(b"ends."), LIMIT_S)
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == ExitCode.INTERRUPTED


async def test_a_talk_at_the_terminal(gateway: FakePageGateway) -> None:
    async with terminal(gateway.url) as shell:
        await shell.wait_for("> ")
        shell.type("What is a stream?\n")
        await shell.wait_for("their ends.")
        shell.type("/stats\n")
        await shell.wait_for("tokens/s")
        shell.type("And a socket?\n")
        await shell.wait_for("their ends.", times=2)
        await shell.wait_for_prompt()  # as in a shell, Ctrl-D is for who asks
        shell.type(CTRL_D)
        assert await shell.exit_code() == ExitCode.OK
    assert [len(prompt["messages"]) for prompt in gateway.prompts] == [1, 3]


async def test_ctrl_c_stops_the_answer_and_twice_leaves(gateway: FakePageGateway) -> None:
    gateway.behaviour.speech.ends.clear()
    async with terminal(gateway.url) as shell:
        await shell.wait_for("> ")
        shell.type("Hi\n")
        await shell.wait_for("their ends.")
        shell.process.send_signal(signal.SIGINT)
        await shell.wait_for("stopped")
        await shell.wait_for("stopped\r\n> ")
        shell.process.send_signal(signal.SIGINT)
        assert await shell.exit_code() == ExitCode.INTERRUPTED


async def test_a_gateway_that_restarts_is_waited_for(gateway: FakePageGateway) -> None:
    async with terminal(gateway.url) as shell:
        await shell.wait_for("> ")
        await gateway.close_sockets(1012)
        await asyncio.sleep(1.5)
        shell.type("Are you back?\n")
        await shell.wait_for("their ends.")
        shell.type("/quit\n")
        assert await shell.exit_code() == ExitCode.OK


async def test_a_model_that_is_starting_is_waited_for(gateway: FakePageGateway) -> None:
    gateway.behaviour.is_ready = False
    async with terminal(gateway.url, "What is a stream?") as process:
        await process.wait_for("waiting for the model")
        gateway.behaviour.is_ready = True
        await process.wait_for(ANSWER)
        assert await process.exit_code() == ExitCode.OK
    assert process.seen.count("waiting") == 1


async def test_ctrl_c_ends_the_waiting(gateway: FakePageGateway) -> None:
    gateway.behaviour.is_ready = False
    async with terminal(gateway.url, "What is a stream?") as process:
        await process.wait_for("waiting for the model")
        process.process.send_signal(signal.SIGINT)
        assert await process.exit_code() == ExitCode.INTERRUPTED
