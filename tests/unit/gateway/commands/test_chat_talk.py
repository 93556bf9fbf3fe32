from __future__ import annotations

import pytest

from gateway.commands.chat_talk import (
    MAX_MESSAGES_BYTES,
    MAX_TURNS,
    AnswerEnd,
    AnswerMeter,
    Command,
    Line,
    Message,
    Talk,
    parse_line,
    printable,
)

pytestmark = pytest.mark.unit


def test_a_prompt_holds_the_system_text_the_talk_and_the_question() -> None:
    talk = Talk("Be brief.")
    talk.add("One?", "1")
    assert talk.messages("Two?") == [
        Message("system", "Be brief."),
        Message("user", "One?"),
        Message("assistant", "1"),
        Message("user", "Two?"),
    ]


def test_a_blank_system_text_is_left_out() -> None:
    assert Talk("  ").messages("Hi") == [Message("user", "Hi")]


def test_a_question_without_an_answer_is_not_remembered() -> None:
    talk = Talk()
    talk.add("Lost?", "")
    assert talk.num_exchanges == 0


def test_clear_forgets_what_was_said_and_keeps_the_system_text() -> None:
    talk = Talk("Be brief.")
    talk.add("One?", "1")
    talk.clear()
    assert [message.role for message in talk.messages("Two?")] == ["system", "user"]


def test_the_oldest_exchanges_give_way_when_the_prompt_is_too_large() -> None:
    talk = Talk("s")
    talk.add("old?", "x" * MAX_MESSAGES_BYTES)
    talk.add("new?", "y")
    assert [message.content for message in talk.messages("now?")] == ["s", "new?", "y", "now?"]


def test_a_talk_never_holds_more_than_its_bound() -> None:
    talk = Talk()
    for number in range(MAX_TURNS):
        talk.add(f"{number}?", "x")
    assert talk.num_exchanges == MAX_TURNS // 2
    assert talk.messages("now?")[0].content == f"{MAX_TURNS // 2}?"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Hello ", Line(None, "Hello")),
        ("", Line(None, "")),
        ("/quit", Line(Command.QUIT, "")),
        ("/system Be  brief.", Line(Command.SYSTEM, "Be  brief.")),
        ("/sistem x", Line(Command.HELP, "/sistem")),
        ("/etc/hosts is what?", Line(None, "/etc/hosts is what?")),
        ("a /quit", Line(None, "a /quit")),
    ],
)
def test_lines_are_questions_or_commands(text: str, line: Line) -> None:
    assert parse_line(text) == line


def test_control_characters_of_a_model_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\x9b1mc\rd\x07\n\té→") == "a[2Jb1mcd\n\té→"


def test_the_meter_counts_from_question_and_first_token() -> None:
    meter = AnswerMeter(10.0)
    assert (meter.ttft_s, meter.tokens_per_s, meter.num_tokens) == (None, None, 0)
    for now in (10.1, 10.2, 10.4):
        meter.piece(now)
    assert meter.ttft_s == pytest.approx(0.1)
    assert meter.tokens_per_s == pytest.approx(2 / 0.3)
    meter.end(AnswerEnd(finish_reason="length", completion_tokens=4))
    assert meter.tokens_per_s == pytest.approx(10.0)
    assert meter.summary() == "4 tokens, first after 100 ms, 10.0 tokens/s, ended by: length"


def test_one_token_has_no_rate() -> None:
    meter = AnswerMeter(0.0)
    meter.piece(0.5)
    meter.end(AnswerEnd(finish_reason="stop", completion_tokens=1))
    assert meter.summary() == "1 token, first after 500 ms"
