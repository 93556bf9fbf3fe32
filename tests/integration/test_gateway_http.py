"""The HTTP side: inference, models, health, metrics, pages. Over real sockets."""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.errors import InvalidInput
from engine.models.store import ModelStore
from engine.types import Attachment, AttachmentKind, Item, Result
from gateway.app import Gateway
from gateway.config import parse_config
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway, size_of, wait_until
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.tiny_llm import write_tiny_llm
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = pytest.mark.integration

PICTURE = jpeg_header(320, 240)


class AnnotatingEngine(FakeEngine):
    """Attaches a picture when asked to, and notes the options."""

    def _result(self, lane: Any, item: Item) -> Result:
        attachments = ()
        if item.options:
            payload = b"annotated " + json.loads(item.options)["annotate"].encode()
            kind = AttachmentKind.ANNOTATED_FRAME
            attachments = (Attachment(kind=kind, meta=b"{}", payload=payload),)
        return Result(data=b"{}", model="fake", version="1", attachments=attachments)


async def post(gateway: Gateway, path: str, **request: Any) -> tuple[int, dict[str, Any]]:
    return await ask(gateway, path, "POST", **request)


async def ask(
    gateway: Gateway, path: str, method: str, **request: Any
) -> tuple[int, dict[str, Any]]:
    """Status and JSON; everything but 200 must be a problem."""
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"{gateway.url}{path}", **request) as response,
    ):
        body = await response.json(content_type=None)
        if response.status != 200:
            assert response.content_type == "application/problem+json"
            assert body["status"] == response.status
            assert body["instance"] == f"/{path}".split("?")[0]
        return response.status, body


def form(**fields: bytes) -> aiohttp.FormData:
    data = aiohttp.FormData()
    data.add_field("comment", "first, and no file")
    for name, value in fields.items():
        data.add_field(name, value, filename=f"{name}.jpg", content_type="image/jpeg")
    return data


@on_uvloop
async def test_raw_body_and_form_are_answered_alike() -> None:
    async with running_gateway() as gateway:
        for body in (PICTURE, form(file=PICTURE), form(anything=PICTURE)):
            status, answer = await post(gateway, "v1/infer/fake", data=body)
            assert (status, answer["data"]) == (200, {"bytes": len(PICTURE)})
            assert (answer["model"], answer["version"]) == ("fake", "1")
            assert set(answer["timing"]) == {"queue", "batch", "prepare", "run", "interpret"}
        assert gateway.engine.statistics().models[0].lanes == 0


@pytest.mark.parametrize("accept", [None, "*/*", "image/jpeg", "image/*;q=0.5, text/html"])
def test_annotate_is_answered_with_a_picture(accept: str | None) -> None:
    @on_uvloop
    async def run() -> None:
        async with (
            running_gateway(AnnotatingEngine()) as gateway,
            aiohttp.ClientSession(skip_auto_headers=["Accept"]) as client,
        ):
            url = f"{gateway.url}v1/infer/fake?annotate=blur"
            headers = {} if accept is None else {"Accept": accept}
            async with client.post(url, data=PICTURE, headers=headers) as response:
                assert response.content_type == "image/jpeg"
                assert await response.read() == b"annotated blur"

    run()


@pytest.mark.parametrize(
    ("query", "accept"), [("?annotate=boxes", "application/json"), ("", "image/jpeg")]
)
def test_answer_that_accept_rules_out_is_refused(query: str, accept: str) -> None:
    @on_uvloop
    async def run() -> None:
        engine = AnnotatingEngine()
        async with running_gateway(engine) as gateway:
            path, headers = f"v1/infer/fake{query}", {"Accept": accept}
            status, problem = await post(gateway, path, data=PICTURE, headers=headers)
            assert (status, problem["type"]) == (400, "urn:clawstream:problem:unsupported-option")
            assert "annotate" in problem["detail"]
            assert engine.statistics().models[0].accepted == 0

    run()


@on_uvloop
async def test_version_in_the_path_is_pinned_and_every_answer_names_its_own() -> None:
    async with (
        running_gateway(AnnotatingEngine()) as gateway,
        aiohttp.ClientSession() as client,
    ):
        status, answer = await post(gateway, "v1/infer/fake/versions/1", data=PICTURE)
        assert (status, answer["version"]) == (200, "1")
        status, problem = await post(gateway, "v1/infer/fake/versions/1+int8", data=PICTURE)
        assert (status, problem["title"]) == (404, "The model is not served here")
        assert "1+int8" in problem["detail"]
        url = f"{gateway.url}v1/infer/fake/versions/1?annotate=boxes"
        async with client.post(url, data=PICTURE) as response:
            assert response.headers["Clawstream-Version"] == "1"
            assert await response.read() == b"annotated boxes"


@on_uvloop
async def test_model_that_does_not_annotate_says_so() -> None:
    async with running_gateway() as gateway:
        status, problem = await post(gateway, "v1/infer/fake?annotate=boxes", data=PICTURE)
        assert (status, problem["detail"]) == (400, "this model does not annotate")


@pytest.mark.parametrize(
    ("path", "body", "status", "slug"),
    [
        ("v1/infer/none", PICTURE, 404, "unknown-model"),
        ("v1/infer/fake/versions/7", PICTURE, 404, "unknown-model"),
        ("v1/infer/fake/versions/", PICTURE, 404, "not-found"),
        ("v1/infer/fake", b"", 415, "unknown-codec"),
        ("v1/infer/fake", b"no picture", 415, "unknown-codec"),
        ("v1/infer/fake", PICTURE[:9], 422, "invalid-picture"),
        ("v1/infer/fake", jpeg_header(65500, 65500), 413, "picture-too-large"),
        ("v1/infer/fake", PICTURE + b"x" * 70_000, 413, "frame-too-large"),
        ("v1/infer/fake?annotate=hats", PICTURE, 400, "unsupported-option"),
        ("v1/infer/fake?deadline_ms=0", PICTURE, 400, "unsupported-option"),
        ("v1/infer/fake?deadline_ms=soon", PICTURE, 400, "unsupported-option"),
        ("v1/models", b"", 405, "method-not-allowed"),
        ("nowhere", b"", 404, "not-found"),
    ],
    ids=lambda value: None if isinstance(value, str | int) else str(len(value)),
)
def test_bad_request_is_a_problem(path: str, body: bytes, status: int, slug: str) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway(limits={"max_frame_bytes": 65536}) as gateway:
            found, problem = await post(gateway, path, data=body)
            assert (found, problem["type"]) == (status, f"urn:clawstream:problem:{slug}")

    run()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("v1/infer/fake?version=1", ["version", "annotate, deadline_ms", "/versions/N"]),
        ("v1/infer/fake/versions/1?deadline=9", ["deadline", "annotate, deadline_ms"]),
        ("v1/infer/none?annotate=boxes&anotate=blur", ["anotate", "annotate, deadline_ms"]),
        ("v1/stream?tickets=a", ["tickets", "ticket"]),
    ],
)
def test_query_that_nobody_reads_is_refused_with_the_names_that_are(
    path: str, words: list[str]
) -> None:
    @on_uvloop
    async def run() -> None:
        async with running_gateway() as gateway:
            method = "GET" if "stream" in path else "POST"
            status, problem = await ask(gateway, path, method)
            assert (status, problem["type"]) == (400, "urn:clawstream:problem:unsupported-option")
            assert all(word in problem["detail"] for word in words)
            assert ("/versions/N" in problem["detail"]) == ("/versions/N" in words)

    run()


@on_uvloop
async def test_paths_without_a_query_of_their_own_take_any() -> None:
    async with running_gateway() as gateway:
        assert (await ask(gateway, "v1/models?api-version=1", "GET"))[0] == 200


@on_uvloop
async def test_malformed_forms_are_problems() -> None:
    async with running_gateway() as gateway:
        empty = aiohttp.FormData({"comment": "no file"}, default_to_multipart=True)
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        for request in (
            {"data": empty},
            {"data": b"garbage", "headers": headers},
            {"data": b"--x\r\nbroken", "headers": headers},
            {"data": PICTURE, "headers": {"Content-Type": "multipart/form-data"}},
        ):
            status, problem = await post(gateway, "v1/infer/fake", **request)
            assert (status, problem["type"]) == (400, "urn:clawstream:problem:invalid-message")


@on_uvloop
async def test_engine_outcomes_are_problems() -> None:
    engine = FakeEngine(respond=size_of)
    async with running_gateway(engine) as gateway:
        engine.fail_next(InvalidInput("cannot be decoded"))
        status, problem = await post(gateway, "v1/infer/fake", data=PICTURE)
        assert (status, problem["detail"]) == (422, "cannot be decoded")
        engine.set_unavailable("circuit open")
        status, problem = await post(gateway, "v1/infer/fake", data=PICTURE)
        assert (status, problem["detail"]) == (503, "circuit open")
        engine.set_unavailable(None)
        engine.block()
        path = "v1/infer/fake?deadline_ms=100"
        started_at = asyncio.get_running_loop().time()
        assert (await post(gateway, path, data=PICTURE))[0] == 504
        assert asyncio.get_running_loop().time() - started_at < 5.0


def test_language_model_is_refused_before_a_picture_is_read(tmp_path: Path) -> None:
    model = {"path": str(write_tiny_llm(tmp_path / "tiny"))}
    config = {"models": {"tiny": model}, "server": {"port": 0, "shutdown_budget_s": 2.0}}

    @on_uvloop
    async def run() -> None:
        gateway = Gateway(parse_config(config), store=ModelStore(tmp_path))
        await gateway.listen()
        try:
            for path in ("/v1/infer/tiny", "/v1/infer/tiny/versions/1"):
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Length: 9", "", "")
                writer.write("\r\n".join(lines).encode())  # and no body
                async with asyncio.timeout(20):
                    answer = await reader.readuntil(b"}")
                writer.close()
                await writer.wait_closed()
                assert answer.startswith(b"HTTP/1.1 400")
                problem = json.loads(answer.partition(b"\r\n\r\n")[2])
                assert problem["type"] == "urn:clawstream:problem:unsupported-option"
                assert "/v1/chat/completions" in problem["detail"]
        finally:
            await gateway.aclose()

    run()


@on_uvloop
async def test_slow_body_is_bounded_in_time() -> None:
    async def trickle() -> Any:
        for byte in PICTURE * 100:
            yield bytes([byte])
            await asyncio.sleep(0.02)

    async with running_gateway(limits={"assembly_timeout_s": 0.2}) as gateway:
        status, problem = await post(gateway, "v1/infer/fake", data=trickle())
        assert (status, problem["type"]) == (408, "urn:clawstream:problem:timeout")


@on_uvloop
async def test_body_without_a_length_is_bounded_too() -> None:
    async def endless() -> Any:
        while True:
            yield b"x" * 8192

    async with running_gateway(limits={"max_frame_bytes": 65536}) as gateway:
        status, problem = await post(gateway, "v1/infer/fake", data=endless())
        assert (status, problem["type"]) == (413, "urn:clawstream:problem:frame-too-large")


@on_uvloop
async def test_compressed_body_is_not_unpacked() -> None:
    async with running_gateway() as gateway:
        headers = {"Content-Encoding": "deflate"}
        body = zlib.compress(PICTURE)
        status, _ = await post(gateway, "v1/infer/fake", data=body, headers=headers)
        assert status == 415


@on_uvloop
async def test_client_that_leaves_cancels_its_item() -> None:
    engine = FakeEngine()
    engine.block()
    async with running_gateway(engine) as gateway:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(gateway, "v1/infer/fake", data=PICTURE), 0.2)
        await wait_until(lambda: engine.statistics().models[0].cancelled == 1)
        assert engine.statistics().models[0].lanes == 0


@on_uvloop
async def test_models_have_the_shape_of_openai_lists() -> None:
    async with (
        running_gateway(FakeEngine(("a", "b"))) as gateway,
        aiohttp.ClientSession() as client,
        client.get(f"{gateway.url}v1/models") as response,
    ):
        listed = await response.json()
    assert listed["object"] == "list"
    assert [(m["id"], m["object"], m["ready"]) for m in listed["data"]] == [
        ("a", "model", True),
        ("b", "model", True),
    ]


@on_uvloop
async def test_metrics_can_be_parsed_and_count() -> None:
    async with running_gateway() as gateway, aiohttp.ClientSession() as client:
        await post(gateway, "v1/infer/fake", data=PICTURE)
        async with client.get(f"{gateway.url}metrics") as response:
            families = {f.name: f for f in text_string_to_metric_families(await response.text())}
    (sample,) = families["clawstream_item_results"].samples
    assert (sample.labels, sample.value) == ({"model": "fake"}, 1.0)
    assert "process_open_fds" in families


@on_uvloop
async def test_page_is_served_strictly() -> None:
    async with running_gateway() as gateway, aiohttp.ClientSession() as client:
        async with client.get(gateway.url) as response:
            assert response.headers["Content-Type"] == "text/html; charset=utf-8"
            assert response.headers["Cache-Control"] == "no-store"
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
            assert response.headers["X-Content-Type-Options"] == "nosniff"
        async with client.get(f"{gateway.url}js/client.js") as response:
            assert response.headers["Content-Type"] == "text/javascript; charset=utf-8"
        for path in ("js/__init__.py", "__init__.py", "js", "js/../__init__.py", "..%2fapp.py"):
            async with client.get(gateway.url + path) as response:
                assert response.status == 404, path
                assert response.headers["X-Content-Type-Options"] == "nosniff"


@on_uvloop
async def test_clips_come_from_the_store_in_ranges(tmp_path: Path) -> None:
    name = next(item.name for item in ModelStore(tmp_path).list() if item.kind == "clip")
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / f"{name}.mp4").write_bytes(bytes(range(100)))
    config = parse_config({"server": {"port": 0}})
    gateway = Gateway(config, FakeEngine(), ModelStore(tmp_path))
    await gateway.start()
    async with aiohttp.ClientSession() as client:
        url = f"{gateway.url}clips/{name}.mp4"
        async with client.get(url, headers={"Range": "bytes=10-19"}) as response:
            assert (response.status, response.content_type) == (206, "video/mp4")
            assert await response.read() == bytes(range(10, 20))
        async with client.get(url, headers={"Range": "bytes=500-"}) as response:
            assert response.status == 416
        for absent in ("clips/none.mp4", "clips/..%2f..%2fx.mp4"):
            async with client.get(gateway.url + absent) as response:
                assert response.status == 404
    await gateway.aclose()
