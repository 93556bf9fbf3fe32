"""The conversation at the terminal: reads lines, prints answers as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing

from rich.console import Console

from gateway.commands.chat_talk import (
    AnswerEnd,
    AnswerMeter,
    Command,
    Message,
    Talk,
    parse_line,
    printable,
)
from gateway.commands.exits import CommandError, ExitCode, print_error

Ask = Callable[[list[Message]], Generator[str | AnswerEnd, None, None]]
"""Yields the pieces of an answer, then how it ended. Closing it stops the answer."""

_HELP = """\
/system TEXT   how the model should answer; without a text, what it is now
/clear         forget what was said
/stats         time to the first token and tokens per second of the last answer
/quit          leave, like Ctrl-D; Ctrl-C stops an answer, twice in a row it leaves"""


class ChatRepl:
    """Asks and prints until the user leaves.

    ``read_line`` raises EOFError at the end of the input and KeyboardInterrupt on Ctrl-C, as
    ``input`` does. A failed answer is told and the talk goes on, unless the connection is gone.
    """

    def __init__(
        self, ask: Ask, talk: Talk, console: Console, read_line: Callable[[str], str]
    ) -> None:
        self._ask = ask
        self._talk = talk
        self._console = console
        self._read_line = read_line
        self._last: AnswerMeter | None = None
        self._num_interrupts = 0  # in a row

    def run(self) -> ExitCode:
        """OK when the user left, INTERRUPTED after two Ctrl-C in a row.

        Raises:
            CommandError: there is no connection any more.
        """
        while self._num_interrupts < 2:
            try:
                line = self._read_line("> ")
            except EOFError:
                self._console.print()
                return ExitCode.OK
            except KeyboardInterrupt:
                self._num_interrupts += 1
                if self._num_interrupts == 1:
                    self._say("\nCtrl-C again, /quit or Ctrl-D leaves")
                continue
            self._num_interrupts = 0
            if not self._take(line):
                return ExitCode.OK
        self._console.print()
        return ExitCode.INTERRUPTED

    def _take(self, text: str) -> bool:
        """Do what a line says; False when it says to leave."""
        line = parse_line(text)
        match line.command:
            case Command.QUIT:
                return False
            case Command.CLEAR:
                self._talk.clear()
                self._say("forgotten")
            case Command.SYSTEM:
                self._set_system(line.text)
            case Command.STATS:
                self._say(self._last.summary() if self._last is not None else "no answer yet")
            case Command.HELP:
                self._say(f"{line.text} is no command\n{_HELP}" if line.text else _HELP)
            case None if line.text:
                self._answer(line.text)
        return True

    def _set_system(self, text: str) -> None:
        if text:
            self._talk.system = text
        self._say(f"system prompt: {self._talk.system or 'none'}")

    def _answer(self, question: str) -> None:
        self._last = meter = AnswerMeter(time.monotonic())
        pieces: list[str] = []
        try:
            with closing(self._ask(self._talk.messages(question))) as answer:
                for piece in answer:
                    if isinstance(piece, AnswerEnd):
                        meter.end(piece)
                    else:
                        meter.piece(time.monotonic())
                        pieces.append(piece)
                        self._print(piece)
        except KeyboardInterrupt:
            self._num_interrupts = 1
            self._say("\nstopped")
        except CommandError as error:
            if error.code is ExitCode.CANNOT_CONNECT:
                raise
            self._console.print()
            print_error(str(error))
        else:
            self._console.print()
        self._talk.add(question, "".join(pieces))

    def _print(self, text: str) -> None:
        # Not wrapped by rich: it would break every piece as a line of its own.
        self._console.print(
            printable(text), end="", markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    def _say(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
