"""The file in a ``multipart/form-data`` body (RFC 7578), found in a bounded number of steps.

The body is complete before it is looked at. A reader that takes it line by line never has to wait
for what has arrived already, so a few megabytes of tiny lines or parts would hold the loop for
seconds.
"""

from __future__ import annotations

import re

from gateway.errors import ProblemKind, RequestProblem

MAX_PARTS = 8
MAX_HEAD_BYTES = 2048  # headers of one part
MAX_BOUNDARY_BYTES = 70  # RFC 2046
_CRLF = b"\r\n"
_DISPOSITION = b"content-disposition"
# ; name=token or ; name="quoted"
_PARAMETER = re.compile(rb';\s*([^\s=;"]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')


def first_file(body: bytes, content_type: str) -> bytes:
    """The content of the first part that has a file name, or is called ``file``.

    Raises:
        RequestProblem: INVALID_MESSAGE, the form is malformed or among its first ``MAX_PARTS``
            parts there is no file.
    """
    delimiter = _CRLF + b"--" + _boundary(content_type)
    # What lies before the first boundary, the parts, and what lies behind the last boundary.
    _, *parts = (_CRLF + body).split(delimiter, MAX_PARTS + 1)
    if not parts:
        raise _malformed("there is no boundary")
    rest = parts.pop()
    for part in parts:
        if part.startswith(b"--"):
            rest = part  # the end; what follows is no part
            break
        content = _file_content(part)
        if content is not None:
            return content
    if not rest.startswith(b"--"):
        raise _malformed(f"it is cut off or has more than {MAX_PARTS} parts")
    raise RequestProblem(ProblemKind.INVALID_MESSAGE, "the form has no file")


def _boundary(content_type: str) -> bytes:
    boundary = _parameters(content_type.encode("utf-8", "surrogateescape")).get(b"boundary", b"")
    if not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise _malformed("its boundary cannot be used")
    return boundary


def _file_content(part: bytes) -> bytes | None:
    """What the part holds, if it is a file."""
    end = part.find(_CRLF + _CRLF, 0, MAX_HEAD_BYTES)
    if end < 0:
        raise _malformed("a part has no end of its headers")
    for line in part[:end].split(_CRLF):
        name, _, value = line.partition(b":")
        if name.strip().lower() == _DISPOSITION:
            parameters = _parameters(value)
            is_file = not parameters.keys().isdisjoint({b"filename", b"filename*"})
            if is_file or parameters.get(b"name") == b"file":
                return part[end + 2 * len(_CRLF) :]
    return None


def _parameters(value: bytes) -> dict[bytes, bytes]:
    """Those of a header; escapes inside quotes stay as they are, the first of a name counts."""
    found: dict[bytes, bytes] = {}
    for match in _PARAMETER.finditer(value):
        name, quoted, token = match.groups()
        found.setdefault(name.lower(), token if quoted is None else quoted)
    return found


def _malformed(detail: str) -> RequestProblem:
    return RequestProblem(ProblemKind.INVALID_MESSAGE, f"the form is malformed: {detail}")
