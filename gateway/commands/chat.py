"""``clawstream chat``: talk to a language model that a gateway serves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gateway.commands.ask_gateway import DEFAULT_URL, ApiKey, Url
from gateway.commands.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from gateway.client import Event
    from gateway.commands.chat_line import ChatLine
    from gateway.commands.chat_talk import AnswerEnd, Message

DEFAULT_MODEL = "smollm2-135m"
_ADVICE = "`clawstream demo --chat` serves one"
_MAX_QUESTION_BYTES = 32 * 1024


def chat(
    question: Annotated[
        str | None, typer.Argument(help="Ask this one question; without it, talk.")
    ] = None,
    model: Annotated[str, typer.Option(help="A language model that the gateway serves.")] = (
        DEFAULT_MODEL
    ),
    url: Url = DEFAULT_URL,
    system: Annotated[str, typer.Option(help="How the model should answer.")] = "",
    temperature: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="0 always takes the likeliest token.")
    ] = 0.7,
    max_tokens: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Where an answer ends at the latest.")
    ] = 512,
    api_key: ApiKey = None,
) -> None:
    """Talk to a language model; the answer is printed as it is made.

    Ctrl-C stops an answer, twice in a row it leaves, like /quit and Ctrl-D. With a question on the
    command line or on standard input, only the answer is printed. A model that is still starting
    is waited for, up to five minutes.

    [bold]Examples[/bold]

      clawstream chat
      clawstream chat --system "Answer in one sentence." --temperature 0
      clawstream chat "What is a socket?"
      cat letter.txt | clawstream chat --system "Summarise this." > summary.txt
    """
    from gateway.client import connect
    from gateway.commands.chat_gateway import GatewayAnswers
    from gateway.commands.chat_line import ChatLine
    from gateway.commands.client_errors import readable_client_errors

    if question is None and not sys.stdin.isatty():
        question = _read_question()
    if question is not None and not question.strip():
        raise CommandError(ExitCode.USAGE, "the question is empty")
    sampling = {"temperature": temperature, "max_tokens": max_tokens}
    client = connect(url, api_key=api_key, on_event=_show_event)
    answers = GatewayAnswers(client, model, sampling, _say_waiting)
    readable = partial(readable_client_errors, url, model, _ADVICE, lambda: client.models)
    with readable(), ChatLine(answers) as line:
        if question is None:
            code = _talk(line, system, f"{model} at {url}", readable)
        else:
            code = _answer_once(line, system, question)
    raise typer.Exit(code)


def _show_event(event: Event) -> None:
    """An operator's words and breaks of the connection, at once, beside the answer."""
    from gateway.commands.chat_talk import printable

    texts = {
        "message": f"*** {printable(event.detail)} ***",
        "disconnected": "*** the connection is lost, trying again ***",
        "reconnected": "*** connected again ***",
    }
    if event.name in texts:
        sys.stderr.write(f"\n{texts[event.name]}\n")
        sys.stderr.flush()


def _talk(
    line: ChatLine,
    system: str,
    title: str,
    readable: Callable[[], AbstractContextManager[None]],
) -> ExitCode:
    import readline  # noqa: F401 - gives input() its editing keys and history

    from gateway.commands.chat_repl import ChatRepl
    from gateway.commands.chat_talk import Talk

    def ask(messages: list[Message]) -> Generator[str | AnswerEnd, None, None]:
        with readable():
            yield from line.ask(messages)

    console = Console()
    console.print(f"{title}; /help for help", style="dim", highlight=False)
    return ChatRepl(ask, Talk(system), console, input).run()


def _say_waiting(reason: str) -> None:
    """On standard error: the answer is what a pipe is for."""
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"waiting for the model ({reason}); Ctrl-C stops", style="dim", markup=False)


def _answer_once(line: ChatLine, system: str, question: str) -> ExitCode:
    """Print the answer and nothing else; a reader of the pipe sees it as it comes."""
    from gateway.commands.chat_talk import Talk, printable

    show = printable if sys.stdout.isatty() else str
    ended_with_line = True
    try:
        for piece in line.ask(Talk(system).messages(question)):
            if isinstance(piece, str) and piece:
                sys.stdout.write(show(piece))
                sys.stdout.flush()
                ended_with_line = piece.endswith("\n")
    finally:
        if not ended_with_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return ExitCode.OK


def _read_question() -> str:
    """Standard input, whole."""
    data = sys.stdin.buffer.read(_MAX_QUESTION_BYTES + 1)
    if len(data) > _MAX_QUESTION_BYTES:
        limit = f"a question has at most {_MAX_QUESTION_BYTES} bytes"
        raise CommandError(ExitCode.USAGE, f"standard input: {limit}")
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise CommandError(ExitCode.USAGE, "standard input is empty: there is no question")
    return text
