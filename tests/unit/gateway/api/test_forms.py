"""Finding the file in a form: shapes that clients send, malformed ones, and bounded work."""

from __future__ import annotations

import time

import pytest

from gateway.api.forms import MAX_PARTS, first_file
from gateway.errors import ProblemKind, RequestProblem

pytestmark = pytest.mark.unit

TYPE = "multipart/form-data; boundary=x"
PICTURE = b"\xff\xd8 a picture\r\n--y with lines\r\n\r\n in it"


def part(head: str, content: bytes = b"v") -> bytes:
    return b"--x\r\n" + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def field(name: str) -> bytes:
    return part(f'Content-Disposition: form-data; name="{name}"')


def file(name: str = "file", content: bytes = PICTURE, head: str = "") -> bytes:
    return part(f'Content-Disposition: form-data; name="{name}"; filename="a.jpg"{head}', content)


END = b"--x--\r\n"


@pytest.mark.parametrize(
    "body",
    [
        file() + END,
        file() + b"--x--",
        b"a preamble\r\n" + file() + END + b"an epilogue",
        field("comment") + file("anything") + file("file", b"second") + END,
        file(head="\r\nContent-Type: image/jpeg") + END,
        part("content-disposition: form-data; name=file", PICTURE) + END,
        part("Content-Disposition: form-data; name=\"p\"; filename*=UTF-8''a%20b.jpg", PICTURE)
        + END,
        b"--x \t\r\n" + file()[5:] + END,  # padding after the boundary is allowed
        field("comment") * (MAX_PARTS - 1) + file() + END,
    ],
)
def test_first_file_is_found(body: bytes) -> None:
    assert first_file(body, TYPE) == PICTURE


def test_a_quoted_boundary_is_a_boundary() -> None:
    assert first_file(file() + END, 'multipart/form-data; charset=utf-8; boundary="x"') == PICTURE


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"--x",
        b"--x\r\nbroken",
        END,
        field("comment") + END,
        file(),  # cut off: nobody knows where the file ends
        part("no colon", PICTURE) + END,
        part("X: " + "a" * 5000 + '\r\nContent-Disposition: form-data; name="file"') + END,
        b"--x\r\n\r\n\r\n" * 3 + END,
        field("comment") * MAX_PARTS + file() + END,
        b"--x" + file()[3:].replace(b"\r\n", b"\n") + END,
    ],
)
def test_form_without_a_file_is_refused(body: bytes) -> None:
    with pytest.raises(RequestProblem) as caught:
        first_file(body, TYPE)
    assert caught.value.kind is ProblemKind.INVALID_MESSAGE


@pytest.mark.parametrize(
    "content_type",
    ["multipart/form-data", "multipart/form-data; boundary=", f"multipart/x; boundary={'b' * 71}"],
)
def test_form_without_a_usable_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(RequestProblem):
        first_file(file() + END, content_type)


@pytest.mark.parametrize(
    "shape",
    [b"--x\r\n\r\n\r\n", b"\r\n", b"--x", b"\r\n--", b"\r\n--x\r\nA: b\r\n", b'--x\r\n";";"'],
)
def test_four_megabytes_of_anything_take_little_time(shape: bytes) -> None:
    body = shape * (4 * 1024 * 1024 // len(shape))
    started = time.perf_counter()
    with pytest.raises(RequestProblem):
        first_file(body, TYPE)
    assert time.perf_counter() - started < 0.1
