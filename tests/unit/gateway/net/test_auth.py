"""The origin table, keys and tickets."""

from __future__ import annotations

import pytest

from gateway.errors import ProblemKind, RequestProblem
from gateway.net.auth import ANONYMOUS, Keyring, OriginPolicy, TicketBox

pytestmark = pytest.mark.unit

POLICY = OriginPolicy(
    host="127.0.0.1",
    hosts=("Gateway.Example",),
    origins=("https://app.example", "http://other.example:8080"),
)


def is_allowed(host: str | None, origin: str | None, scheme: str = "http") -> bool:
    headers = {"Host": host, "Origin": origin}
    try:
        POLICY.check({k: v for k, v in headers.items() if v is not None}, scheme)
    except RequestProblem as problem:
        return problem.kind is not ProblemKind.FORBIDDEN
    return True


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8400", None),
        ("127.0.0.1:8400", "http://127.0.0.1:8400"),
        ("localhost:8400", "http://localhost:8400"),
        ("LocalHost:8400", "http://localhost:8400"),
        ("[::1]:8400", "http://[::1]:8400"),
        ("192.168.1.7:8400", "http://192.168.1.7:8400"),
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("gateway.example", "http://gateway.example"),
        ("127.0.0.1:8400", "https://app.example"),
        ("app.example", "https://app.example"),
        ("127.0.0.1:8400", "http://other.example:8080"),
    ],
)
def test_own_and_listed_origins_may_connect(host: str, origin: str | None) -> None:
    assert is_allowed(host, origin)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://127.0.0.1",
        "http://127.0.0.1:8401",
        "https://127.0.0.1:8400",
        "http://localhost:8400",
        "http://127.0.0.1:8400.evil.example",
        "http://127.0.0.1:8400@evil.example",
        "http://evil.example#127.0.0.1:8400",
        "http://127.0.0.1:8400/",
        "http://x127.0.0.1:8400",
        "https://app.example.evil.example",
        "https://evil-app.example",
        "http://app.example",
        "https://app.example:444",
        "file://",
        "chrome-extension://abcdef",
        "127.0.0.1:8400",
    ],
)
def test_every_other_origin_is_refused(origin: str) -> None:
    assert not is_allowed("127.0.0.1:8400", origin)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:8400",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost:99999",
        "localhost:port",
        "user@localhost",
        "localhost/path",
        "local host",
        "[::1",
        "0x7f000001",
    ],
)
def test_rebound_and_malformed_hosts_are_refused_with_and_without_origin(host: str | None) -> None:
    assert not is_allowed(host, None)
    assert not is_allowed(host, f"http://{host}")


def test_own_origin_follows_the_scheme() -> None:
    assert is_allowed("127.0.0.1:8400", "https://127.0.0.1:8400", scheme="https")
    assert is_allowed("127.0.0.1", "https://127.0.0.1", scheme="https")
    assert not is_allowed("127.0.0.1:8400", "http://127.0.0.1:8400", scheme="https")


def test_without_keys_everybody_is_anonymous() -> None:
    keyring = Keyring(())
    assert not keyring.is_required
    assert keyring.identify_headers({}) == ANONYMOUS
    assert keyring.identify_headers({"X-API-Key": "whatever"}) == ANONYMOUS


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer two"},
        {"Authorization": "bearer  two"},
        {"X-API-Key": "two"},
        {"Authorization": "Basic eA==", "X-API-Key": "two"},
    ],
)
def test_a_key_is_found_in_either_header(headers: dict[str, str]) -> None:
    assert Keyring(("one", "two")).identify_headers(headers) is not None


def test_different_keys_are_different_principals_and_neither_shows_its_key() -> None:
    keyring = Keyring(("one", "two"))
    one, two = keyring.identify("one"), keyring.identify("two")
    assert one is not None
    assert two is not None
    assert one != two
    assert "one" not in one.removeprefix("key-")


@pytest.mark.parametrize("token", ["", "on", "one ", "One", "onetwo", "\ud800", "ключ"])
def test_what_is_not_a_key_identifies_nobody(token: str) -> None:
    assert Keyring(("one", "two")).identify(token) is None


def test_an_empty_token_identifies_nobody_whatever_the_keys() -> None:
    assert Keyring(("",)).identify("") is None


def test_no_key_is_nobody_and_a_wrong_one_is_refused() -> None:
    keyring = Keyring(("one",))
    assert keyring.identify_headers({}) is None
    with pytest.raises(RequestProblem) as caught:
        keyring.identify_headers({"X-API-Key": "sesame"})
    assert caught.value.kind is ProblemKind.UNAUTHORIZED
    assert "sesame" not in str(caught.value)


def test_a_ticket_is_worth_one_connection() -> None:
    box = TicketBox()
    ticket = box.issue("alice", now=0.0)
    assert box.redeem(ticket, now=29.9) == "alice"
    with pytest.raises(RequestProblem, match="unauthorized"):
        box.redeem(ticket, now=29.9)


def test_a_ticket_expires_and_a_made_up_one_is_worth_nothing() -> None:
    box = TicketBox()
    ticket = box.issue("alice", now=0.0)
    for presented in (ticket, "", "made-up"):
        with pytest.raises(RequestProblem, match="unauthorized"):
            box.redeem(presented, now=30.0)


def test_tickets_are_bounded_and_expired_ones_make_room() -> None:
    box = TicketBox(capacity=2)
    box.issue("a", now=0.0)
    box.issue("a", now=1.0)
    with pytest.raises(RequestProblem, match="overloaded"):
        box.issue("a", now=2.0)
    box.issue("a", now=30.0)
    with pytest.raises(RequestProblem, match="overloaded"):
        box.issue("a", now=30.5)
