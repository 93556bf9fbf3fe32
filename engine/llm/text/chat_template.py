"""A model's chat template: messages to the text that the model was trained on.

Rendered by Jinja in its sandbox with what ``transformers.apply_chat_template`` offers to
templates. Importing transformers for this costs two to three seconds and 100 MB per worker; Jinja
costs 40 ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, nodes, parser, sandbox

from engine.errors import InvalidInput, StartupError

# What a template can stumble over when a conversation is not what it expects.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
)


class ChatTemplate:
    """Any thread may render.

    Args:
        variables: the special tokens by name (``bos_token`` and so on), as templates use them.

    Raises:
        StartupError: the template is not valid.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        try:
            self._template = _environment().from_string(source, globals=dict(variables))
        except jinja2.TemplateError as error:
            raise StartupError(f"the chat template is not valid: {error}") from None

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation, and the opening of the assistant's next turn.

        Raises:
            InvalidInput: the template refuses the conversation; the text is the template's own.
        """
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True
            )
        except _RENDER_ERRORS as error:
            raise InvalidInput(
                f"the model's chat template refuses the conversation: {error}"
            ) from None


def read_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The source: ``chat_template.jinja``, else that in tokenizer_config.json, else None."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = tokenizer_config.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    return source if isinstance(source, str) else None


def _environment() -> jinja2.Environment:
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(ext.Extension):
    """``{% generation %}`` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes HTML, which models are not trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
