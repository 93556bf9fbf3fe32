"""Connecting: greetings, keys, refusals in words, pings, and ends that are bounded."""

from __future__ import annotations

import asyncio
import http
import time

import pytest
from websockets.asyncio.server import Response, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request

from gateway.client import (
    AuthError,
    ConnectError,
    Event,
    LinkSettings,
    connect,
    frames_from_bytes,
)
from gateway.wire.codec import BinaryMessage
from gateway.wire.messages import CreditGrant, ErrorMessage, Ping
from tests.fakes.stream_server import NOW_US, Peer, StreamServer, picture, problem, stream_server

pytestmark = pytest.mark.integration

QUICK = LinkSettings(
    open_timeout_s=0.3,
    send_timeout_s=0.5,
    close_timeout_s=0.5,
    ping_interval_s=0.1,
    pong_timeout_s=0.4,
)


async def enter(url: str, *, settings: LinkSettings = QUICK, api_key: str | None = None) -> None:
    async with connect(url, settings=settings, api_key=api_key):
        pass


async def test_key_travels_in_the_first_message() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url, api_key="secret") as client:
        assert server.hellos[0].token == "secret"
        assert client.models == ["centerface"]
        assert client.limits.max_streams == 4
        assert client.is_connected
        request = server.peers[0].socket.request
        assert request is not None
        assert "secret" not in f"{request.path} {list(request.headers.raw_items())}"
        assert request.path == "/v1/stream"
    assert not client.is_connected


async def test_wrong_key_is_an_auth_error_with_the_servers_words() -> None:
    server = StreamServer()

    async def refuse(peer: Peer) -> None:
        await peer.send(ErrorMessage(problem=problem("unauthorized", 401), retryable=False))
        await peer.socket.close(4501, "key")

    server.greet = refuse
    async with stream_server(server):
        with pytest.raises(AuthError, match="unauthorized: why") as caught:
            await enter(server.url, api_key="wrong")
    assert caught.value.code == 4501


async def test_refusal_without_words_names_the_code() -> None:
    server = StreamServer()

    async def refuse(peer: Peer) -> None:
        await peer.socket.close(1013, "too many")

    server.greet = refuse
    async with stream_server(server):
        with pytest.raises(ConnectError, match=r"too many \(code 1013\)"):
            await enter(server.url)


async def test_silent_server_is_given_up_at_the_deadline() -> None:
    server = StreamServer()

    async def say_nothing(peer: Peer) -> None:
        await peer.socket.wait_closed()

    server.greet = say_nothing
    async with stream_server(server):
        started = time.monotonic()
        with pytest.raises(ConnectError, match="did not answer"):
            await enter(server.url)
        assert time.monotonic() - started < 3.0


async def test_other_first_message_is_no_greeting() -> None:
    server = StreamServer()

    async def drop_first(peer: Peer) -> None:
        await peer.socket.send(b"picture")

    server.greet = drop_first
    async with stream_server(server):
        with pytest.raises(ConnectError, match="before its greeting"):
            await enter(server.url)


async def test_nobody_listening_is_a_connect_error() -> None:
    server = StreamServer()
    async with stream_server(server):
        pass
    with pytest.raises(ConnectError, match=r"^cannot reach .*: nothing listens there; start one"):
        await enter(server.url)


@pytest.mark.parametrize(
    ("status", "kind"), [(503, ConnectError), (401, AuthError), (403, AuthError)]
)
async def test_http_refusal_is_told_with_its_problem(status: int, kind: type[ConnectError]) -> None:
    body = b'{"type":"x","title":"No room","status":503,"detail":"try later"}'

    def refuse(connection: ServerConnection, request: Request) -> Response:
        phrase = http.HTTPStatus(status).phrase
        return Response(status, phrase, Headers({"Content-Length": str(len(body))}), body)

    async with serve(lambda socket: asyncio.sleep(0), "127.0.0.1", 0, process_request=refuse) as s:
        port = s.sockets[0].getsockname()[1]
        with pytest.raises(kind, match="No room: try later"):
            await enter(f"http://127.0.0.1:{port}")


async def test_server_of_another_protocol_is_refused() -> None:
    async with serve(lambda socket: asyncio.sleep(0), "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="does not speak"):
            await enter(f"127.0.0.1:{port}")


async def test_ping_measures_the_servers_clock() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        before = time.monotonic()
        estimate = await client.ping()
        after = time.monotonic()
        assert 0.0 <= estimate.rtt_s <= after - before
        assert before <= NOW_US / 1e6 - estimate.offset_s <= after
        assert client.clock is not None


async def test_pings_of_the_server_are_answered() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        await server.peers[0].send(Ping(t=7.5))
        await client.ping()  # behind our pong
        assert [pong.t for pong in server.peers[0].pongs] == [7.5]


async def test_server_without_pongs_is_left_with_4009() -> None:
    server = StreamServer()
    server.answers_pings = False
    left = Left()
    async with (
        stream_server(server),
        connect(server.url, settings=QUICK, reconnect=False, on_event=left) as client,
    ):
        with pytest.raises(ConnectError, match="does not answer pings") as caught:
            await client.ping()
        assert caught.value.code == 4009
        await left.happened.wait()
        assert "4009" in left.detail


class Left:
    """Notes when, and why, the client lost its connection."""

    def __init__(self) -> None:
        self.happened = asyncio.Event()
        self.detail = ""

    def __call__(self, event: Event) -> None:
        if event.name == "disconnected":
            self.detail = event.detail
            self.happened.set()


async def test_server_that_stops_reading_does_not_hold_the_client() -> None:
    server = StreamServer()

    async def stop_reading(peer: Peer, frame: BinaryMessage) -> None:
        peer.socket.transport.pause_reading()
        await peer.socket.wait_closed()

    server.answer = stop_reading
    server.credit = CreditGrant(max_frames=1000, max_bytes=2**30)
    async with stream_server(server):
        started = time.monotonic()
        async with connect(server.url, settings=QUICK, reconnect=False) as client:
            source = frames_from_bytes([picture(8, 8) + bytes(900_000)], loop=True)
            stream = client.stream_frames(source, model="m")
            with pytest.raises(ConnectError):
                assert [result async for result in stream] == []
        assert time.monotonic() - started < 5.0
        server.peers[0].socket.transport.abort()
    assert stream.statistics.dropped["disconnected"] == stream.statistics.sent > 0


@pytest.mark.parametrize("garbage", [b"\x01", b"not a header but long enough to be one .."])
async def test_server_that_breaks_the_protocol_is_left(garbage: bytes) -> None:
    server = StreamServer()
    left = Left()
    async with stream_server(server), connect(server.url, on_event=left) as client:
        await server.peers[0].socket.send(garbage)
        await server.peers[0].socket.wait_closed()
        assert server.peers[0].socket.close_code == 1002
        await left.happened.wait()
        with pytest.raises(ConnectError, match="broke the protocol"):
            await client.ping()
    assert len(server.peers) == 1


async def test_messages_of_unknown_types_and_streams_are_ignored() -> None:
    server = StreamServer()
    async with stream_server(server), connect(server.url) as client:
        socket = server.peers[0].socket
        await socket.send('{"type":"from the future"}')
        await socket.send('{"type":"need_key","stream":77}')
        await socket.send(
            '{"type":"closed","stream":77,"accepted":0,"results":0,"dropped":0,'
            '"errors":0,"cancelled":0}'
        )
        await client.ping()
        assert client.is_connected


async def test_client_that_was_never_entered_says_so() -> None:
    client = connect("ws://127.0.0.1:1")
    with pytest.raises(ConnectError, match="not connected"):
        await client.ping()
    with pytest.raises(ConnectError, match="not connected"):
        _ = client.models
    await client.aclose()


async def test_no_tasks_are_left_behind() -> None:
    server = StreamServer()
    before = asyncio.all_tasks()
    async with stream_server(server):
        within = asyncio.all_tasks()
        async with connect(server.url) as client:
            await client.ping()
        await server.peers[0].socket.wait_closed()
        await asyncio.sleep(0.05)
        assert {task.get_name() for task in asyncio.all_tasks() - within} <= set()
    assert asyncio.all_tasks() == before
