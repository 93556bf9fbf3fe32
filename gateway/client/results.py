"""What a stream yields."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.wire.codec import BinaryMessage, MessageType
from gateway.wire.messages import ResultMessage, ResultTiming

_ALIGNMENT = 8
_DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16, 32, 64)),
        ("float", (16, 32, 64)),
    )
    for bits in sizes
) | {"bool"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultAttachment:
    """A binary companion of a result; ``meta`` is JSON or empty."""

    kind: MessageType
    meta: bytes
    payload: bytes


@dataclass(frozen=True, kw_only=True)
class FrameResult:
    """The answer to one frame. ``t_us`` is its capture time and ``media_time_s`` its position in
    the clip, as the source set them.

    ``latency_s`` runs from the capture to the moment when the answer was received, whenever it
    is taken from the iterator.
    """

    seq: int
    t_us: int
    latency_s: float
    model: str
    version: str
    timing: ResultTiming
    raw_data: bytes  # JSON
    media_time_s: float | None = None
    attachments: tuple[ResultAttachment, ...] = ()

    @property
    def captured_at(self) -> float:
        """Seconds, on the clock of the source (``time.monotonic`` for those of this package)."""
        return self.t_us / 1e6

    @cached_property
    def data(self) -> dict[str, Any]:
        """The pipeline's answer, parsed when it is asked for."""
        parsed: dict[str, Any] = msgspec.json.decode(self.raw_data)
        return parsed

    @property
    def annotated(self) -> bytes | None:
        """The annotated picture (JPEG), if this result brought one."""
        for attachment in self.attachments:
            if attachment.kind is MessageType.ANNOTATED_FRAME:
                return attachment.payload
        return None

    @cached_property
    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The tensors that this result brought, by name; read-only views.

        Raises:
            ValueError: the attachment does not describe its payload.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        for attachment in self.attachments:
            if attachment.kind is MessageType.TENSORS:
                found |= _unpack_tensors(attachment)
        return found


def frame_result(
    message: ResultMessage,
    latency_s: float,
    media_time_s: float | None,
    attachments: list[BinaryMessage],
) -> FrameResult:
    """The answer as programs see it; of the attachments only those of its frame."""
    return FrameResult(
        seq=message.seq,
        t_us=message.t_us,
        latency_s=latency_s,
        model=message.model,
        version=message.version,
        timing=message.timing,
        raw_data=bytes(message.data),
        media_time_s=media_time_s,
        attachments=tuple(
            ResultAttachment(
                kind=attachment.header.type,
                meta=bytes(attachment.meta),
                payload=bytes(attachment.payload),
            )
            for attachment in attachments
            if attachment.header.seq == message.seq
        ),
    )


class _TensorInfo(msgspec.Struct):
    name: str
    dtype: str
    shape: list[int]


class _TensorsMeta(msgspec.Struct):
    tensors: list[_TensorInfo]


def _unpack_tensors(attachment: ResultAttachment) -> dict[str, npt.NDArray[Any]]:
    """Arrays in C order, each padded to 8 bytes (docs/wire-protocol.md)."""
    described = msgspec.json.decode(attachment.meta, type=_TensorsMeta)
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for tensor in described.tensors:
        if tensor.dtype not in _DTYPES or any(size < 0 for size in tensor.shape):
            raise ValueError(f"tensor {tensor.name!r} of {tensor.dtype} {tensor.shape}")
        dtype = np.dtype(tensor.dtype).newbyteorder("<")
        # Python's integers: a product in int64 could overflow into something plausible.
        count = 1
        for size in tensor.shape:
            count *= size
        if offset + count * dtype.itemsize > len(attachment.payload):
            raise ValueError(f"tensor {tensor.name!r} is longer than its payload")
        flat = np.frombuffer(attachment.payload, dtype, count, offset)
        arrays[tensor.name] = flat.reshape(tensor.shape)
        size_bytes = count * dtype.itemsize
        offset += size_bytes + -size_bytes % _ALIGNMENT
    return arrays
