from __future__ import annotations

import io
from collections.abc import Generator

import pytest
from rich.console import Console

from gateway.commands.chat_repl import ChatRepl
from gateway.commands.chat_talk import AnswerEnd, Message, Talk
from gateway.commands.exits import CommandError, ExitCode

pytestmark = pytest.mark.unit

CTRL_C = KeyboardInterrupt()
CTRL_D = EOFError()
Piece = str | BaseException


class FakeTerminal:
    """Types ``lines`` in order; an exception is a key. What is shown is in ``text``."""

    def __init__(self, *lines: Piece) -> None:
        self._lines = list(lines)
        self._shown = io.StringIO()
        self.console = Console(file=self._shown, width=200, color_system=None)

    @property
    def text(self) -> str:
        return self._shown.getvalue()

    def read_line(self, _prompt: str) -> str:
        line = self._lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line


class FakeModel:
    """Answers every question with ``pieces``; an exception among them is raised there."""

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = pieces
        self.asked: list[list[Message]] = []
        self.num_closed = 0

    def ask(self, messages: list[Message]) -> Generator[str | AnswerEnd, None, None]:
        self.asked.append(messages)
        try:
            for piece in self._pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
            yield AnswerEnd(finish_reason="stop", completion_tokens=len(self._pieces))
        finally:
            self.num_closed += 1


def _run(model: FakeModel, terminal: FakeTerminal, talk: Talk | None = None) -> ExitCode:
    return ChatRepl(model.ask, talk or Talk(), terminal.console, terminal.read_line).run()


def test_an_answer_is_shown_piece_by_piece_and_remembered() -> None:
    terminal, model = FakeTerminal("Hi", "And?", CTRL_D), FakeModel("Hel", "lo")
    assert _run(model, terminal) is ExitCode.OK
    assert terminal.text == "Hello\nHello\n\n"
    assert [message.content for message in model.asked[1]] == ["Hi", "Hello", "And?"]


def test_markup_and_control_characters_are_shown_as_text() -> None:
    terminal = FakeTerminal("Hi", "/quit")
    _run(FakeModel("[bold]x[/bold] :smile: \x1b]0;title\x07"), terminal)
    assert terminal.text == "[bold]x[/bold] :smile: ]0;title\n"


def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    terminal, model = FakeTerminal("Hi", "And?", "/quit"), FakeModel("par", CTRL_C)
    assert _run(model, terminal) is ExitCode.OK
    assert model.num_closed == 2
    assert "par\nstopped" in terminal.text
    assert [message.content for message in model.asked[1]] == ["Hi", "par", "And?"]


def test_ctrl_c_once_explains_and_twice_leaves() -> None:
    terminal = FakeTerminal(CTRL_C, "Hi", CTRL_C, CTRL_C)
    assert _run(FakeModel("Hello"), terminal) is ExitCode.INTERRUPTED
    assert terminal.text.count("Ctrl-C again") == 2


def test_ctrl_c_after_a_stopped_answer_leaves() -> None:
    assert _run(FakeModel(CTRL_C), FakeTerminal("Hi", CTRL_C)) is ExitCode.INTERRUPTED


def test_a_failed_answer_is_told_and_the_talk_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    model = FakeModel(CommandError(ExitCode.FAILED, "the prompt is too long"))
    assert _run(model, FakeTerminal("Hi", "/quit")) is ExitCode.OK
    assert "error: the prompt is too long" in capsys.readouterr().err


def test_a_lost_connection_ends_the_talk() -> None:
    model = FakeModel(CommandError(ExitCode.CANNOT_CONNECT, "gone"))
    with pytest.raises(CommandError, match="gone"):
        _run(model, FakeTerminal("Hi"))


def test_clear_and_system_change_the_next_prompt() -> None:
    terminal = FakeTerminal("Hi", "/clear", "/system Be brief.", "Who?", "/system", "/quit")
    model = FakeModel("Hello")
    _run(model, terminal)
    assert model.asked[1] == [Message("system", "Be brief."), Message("user", "Who?")]
    assert terminal.text.count("system prompt: Be brief.") == 2


def test_stats_are_those_of_the_last_answer() -> None:
    terminal = FakeTerminal("/stats", "Hi", "/stats", "/quit")
    _run(FakeModel("Hel", "lo"), terminal)
    assert "no answer yet" in terminal.text
    assert "2 tokens, first after 0 ms" in terminal.text


def test_unknown_commands_and_help_list_the_commands() -> None:
    terminal = FakeTerminal("/hlep", "/help", "", "/quit")
    model = FakeModel()
    _run(model, terminal)
    assert "/hlep is no command" in terminal.text
    assert terminal.text.count("/stats") == 2
    assert model.asked == []
