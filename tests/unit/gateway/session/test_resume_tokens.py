"""Tokens: whose they are, how often they are good, and what is told of them."""

from __future__ import annotations

import logging

import pytest

from gateway.session.attachment import Attachment
from gateway.session.resume_tokens import ResumeTokens
from gateway.wire.messages import ResumeRequest

pytestmark = pytest.mark.unit


class Owner:
    """A session that can be resumed."""

    def __init__(self, name: str = "s1", principal: str | None = "key-1") -> None:
        self.id = name
        self.principal = principal

    def take_over(self, attachment: Attachment, request: ResumeRequest) -> None:
        raise AssertionError("tokens resume nothing themselves")


def asking(token: str, session: str = "s1") -> ResumeRequest:
    return ResumeRequest(session=session, token=token)


def test_a_token_is_good_for_its_session_and_principal() -> None:
    tokens, owner = ResumeTokens(), Owner()
    token = tokens.issue(owner)
    assert tokens.claim(asking(token), "key-1") is owner
    assert tokens.claim(asking(token), "key-2") is None
    assert tokens.claim(asking(token, session="s2"), "key-1") is None
    assert tokens.claim(asking(token + "x"), "key-1") is None
    assert tokens.claim(asking(""), "key-1") is None


def test_a_token_of_another_session_is_no_good() -> None:
    tokens = ResumeTokens()
    tokens.issue(Owner("s1"))
    foreign = tokens.issue(Owner("s2"))
    assert tokens.claim(asking(foreign, session="s1"), "key-1") is None


def test_a_token_is_void_once_its_successor_has_arrived() -> None:
    tokens, owner = ResumeTokens(), Owner()
    first = tokens.issue(owner)
    second = tokens.issue(owner, used=first)
    # The welcome with the second may have been lost.
    assert tokens.claim(asking(first), "key-1") is owner
    tokens.confirm(owner.id)
    assert tokens.claim(asking(first), "key-1") is None
    assert tokens.claim(asking(second), "key-1") is owner


def test_a_session_that_is_over_has_no_token() -> None:
    tokens, owner = ResumeTokens(), Owner()
    token = tokens.issue(owner)
    tokens.forget(owner.id)
    tokens.forget(owner.id)
    tokens.confirm(owner.id)
    assert tokens.claim(asking(token), "key-1") is None
    assert len(tokens) == 0


def test_a_token_names_its_node_and_the_log_only_that(caplog: pytest.LogCaptureFixture) -> None:
    here, there = ResumeTokens(), ResumeTokens()
    token = there.issue(Owner())
    assert token.startswith(f"{there.node}.")
    with caplog.at_level(logging.INFO):
        assert here.claim(asking(token), "key-1") is None
    assert there.node in caplog.text
    assert token.partition(".")[2] not in caplog.text


@pytest.mark.parametrize("token", ["x", "\n.y", "0123456\n.x", "é" * 50, "a" * 60_000, "\ud800"])
def test_what_is_no_token_is_refused_and_not_logged(
    token: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = ResumeTokens()
    tokens.issue(Owner())
    with caplog.at_level(logging.DEBUG):
        assert tokens.claim(asking(token), "key-1") is None
    assert caplog.text == ""
