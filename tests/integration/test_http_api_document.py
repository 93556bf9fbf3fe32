"""The commands of docs/http-api.md, run as they are written there, and the answers they show."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.types import Attachment, AttachmentKind, Item, Result
from gateway.errors import ProblemKind
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway
from tests.fakes.picture_headers import jpeg_header
from tests.fakes.uvloop_runner import on_uvloop

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]

DOCUMENT = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
# A command, and the answer that is shown for it, if one is.
EXAMPLE = re.compile(r"```sh\n(.+?)\n```(?:\n\n```json\n(.+?)\n```)?", re.DOTALL)
EXAMPLES = EXAMPLE.findall(DOCUMENT)
FACE = {"label": "face", "score": 0.5, "box": [0.5] * 4, "landmarks": [[0.5] * 2]}


class FaceEngine(FakeEngine):
    """Finds one face everywhere, and draws when asked to."""

    def __init__(self) -> None:
        super().__init__(("centerface",))

    def _result(self, lane: Any, item: Item) -> Result:
        data = json.dumps({"width": 64, "height": 64, "objects": [FACE]}).encode()
        kind = AttachmentKind.ANNOTATED_FRAME
        drawn = (Attachment(kind=kind, meta=b"{}", payload=b"drawn"),) if item.options else ()
        return Result(data=data, model="centerface", version="1", attachments=drawn)


async def run_curl(command: str, port: int, folder: Path) -> tuple[int, bytes]:
    """Status and body."""
    command, _, _ = command.partition(" #")
    command = command.replace(":8400/", f":{port}/").replace(
        "curl ", "curl -sS -w '\\n%{http_code}' ", 1
    )
    process = await asyncio.create_subprocess_shell(
        command, cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(10):
        output, _ = await process.communicate()
    assert process.returncode == 0
    body, _, status = output.rpartition(b"\n")
    return int(status), body


def shape(value: Any) -> Any:
    """Members and types all the way down; values left out."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


@pytest.mark.parametrize(
    ("command", "shown"), EXAMPLES, ids=[c.split("/")[-1] for c, _ in EXAMPLES]
)
def test_command_does_what_the_document_says(command: str, shown: str, tmp_path: Path) -> None:
    @on_uvloop
    async def run() -> None:
        (tmp_path / "face.jpg").write_bytes(jpeg_header(64, 64))
        async with running_gateway(FaceEngine(), server={"admin_keys": ["KEY"]}) as gateway:
            keyed = command.replace("curl ", "curl -H 'X-API-Key: KEY' ", 1)
            status, body = await run_curl(keyed, gateway.port, tmp_path)
        _, _, expected = command.partition("# ")
        assert status == int(expected or 200)
        if shown:
            assert shape(json.loads(body)) == shape(json.loads(shown))
        if "boxes.jpg" in command:
            assert (tmp_path / "boxes.jpg").read_bytes() == b"drawn"

    run()


def test_statuses_of_the_table_are_those_of_the_problems() -> None:
    rows = [line for line in DOCUMENT.splitlines() if re.match(r"\| \d{3}", line)]
    for row in rows:
        statuses = {int(text) for text in row.split("|")[1].split(",")}
        for slug in re.findall(r"`([a-z-]+)`", row.split("|")[2]):
            (kind,) = (kind for kind in ProblemKind if kind.slug == slug)
            assert kind.status in statuses, slug
