"""How the help of every command looks: prose flows, examples keep their lines, exit codes below."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

from gateway.commands.exits import EXIT_CODES


class HelpfulCommand(TyperCommand):
    """A command whose docstring is wrapped by the terminal alone."""

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name, **options)
        self.help, self.epilog = flowing(self.help or ""), EXIT_CODES


class HelpfulGroup(TyperGroup):
    """The same for a group of commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.help, self.epilog = flowing(self.help or ""), EXIT_CODES


def flowing(text: str) -> str:
    """A docstring with each paragraph on one line; indented ones, the examples, stay as they are.

    Typer joins the lines of the first paragraph only and would wrap the others a second time.
    """
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        each if each.startswith(" ") else each.replace("\n", " ") for each in paragraphs
    )
