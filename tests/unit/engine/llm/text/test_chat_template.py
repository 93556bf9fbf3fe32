from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import InvalidInput, StartupError
from engine.llm.text.chat_template import ChatTemplate, read_chat_template

pytestmark = pytest.mark.unit

MESSAGES = [{"role": "user", "content": "Hi"}]


def render(source: str, **variables: str) -> str:
    return ChatTemplate(source, variables).render(MESSAGES)


def test_templates_get_what_transformers_gives_them() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}", bos_token="<s>") == "<s>Hi"
    assert render("{{ eos_token }}|{{ add_generation_prompt }}|{{ tools }}") == "|True|None"
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_blocks_leave_no_white_space() -> None:
    assert render("{% for message in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}")
    assert render("  {% if true %}\nx\n  {% endif %}\n") == "x\n"


def test_loop_controls_and_training_marks_are_known() -> None:
    assert render(
        "{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    )
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hi!"


def test_the_templates_own_complaint_is_told() -> None:
    with pytest.raises(InvalidInput, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{ messages[0].parts[0] }}", "{{ messages | length + 'x' }}", "{{ 1 // 0 }}"]
)
def test_a_template_that_stumbles_refuses_the_conversation(source: str) -> None:
    with pytest.raises(InvalidInput, match="refuses the conversation"):
        render(source)


def test_a_template_cannot_leave_its_sandbox() -> None:
    with pytest.raises(InvalidInput):
        render("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(InvalidInput):
        render("{% set _ = messages.append(1) %}")


def test_a_template_that_is_not_valid_stops_the_start() -> None:
    with pytest.raises(StartupError, match="not valid"):
        ChatTemplate("{% for %}", {})


def test_the_file_comes_before_the_configuration(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path, {}) is None
    assert read_chat_template(tmp_path, {"chat_template": "one"}) == "one"
    named = [{"name": "tools", "template": "a"}, {"name": "default", "template": "b"}]
    assert read_chat_template(tmp_path, {"chat_template": named}) == "b"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_chat_template(tmp_path, {"chat_template": "one"}) == "file"
