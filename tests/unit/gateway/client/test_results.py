"""Lazy parts of a result."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.client.results import FrameResult, ResultAttachment
from gateway.wire.codec import MessageType
from gateway.wire.messages import ResultTiming

pytestmark = pytest.mark.unit


def result(raw_data: bytes = b"{}", *attachments: ResultAttachment) -> FrameResult:
    return FrameResult(
        seq=1,
        t_us=2_500_000,
        latency_s=0.1,
        model="m",
        version="1",
        timing=ResultTiming(received_us=0),
        raw_data=raw_data,
        attachments=attachments,
    )


def tensors(meta: bytes, payload: bytes) -> FrameResult:
    attachment = ResultAttachment(kind=MessageType.TENSORS, meta=meta, payload=payload)
    return result(b"{}", attachment)


def test_data_is_parsed_when_asked_for() -> None:
    assert result(b'{"a":[1,2]}').data == {"a": [1, 2]}
    broken = result(b"{")
    with pytest.raises(ValueError, match="truncated"):
        _ = broken.data


def test_captured_at_is_in_seconds() -> None:
    assert result().captured_at == 2.5


def test_tensors_are_views_padded_to_eight() -> None:
    meta = (
        b'{"tensors":[{"name":"a","dtype":"uint8","shape":[3]},'
        b'{"name":"b","dtype":"float32","shape":[1,2]}]}  '
    )
    arrays = tensors(meta, b"\1\2\3" + bytes(5) + np.float32([1.5, -2]).tobytes()).tensors
    assert arrays["a"].tolist() == [1, 2, 3]
    assert arrays["b"].tolist() == [[1.5, -2.0]]
    assert not arrays["b"].flags.writeable


@pytest.mark.parametrize(
    "meta",
    [
        b"",
        b"{}",
        b'{"tensors":[{"name":"a","dtype":"object","shape":[1]}]}',
        b'{"tensors":[{"name":"a","dtype":"uint8","shape":[-1]}]}',
        b'{"tensors":[{"name":"a","dtype":"float64","shape":[2]}]}',
        b'{"tensors":[{"name":"a","dtype":"uint8","shape":[4294967296,4294967296]}]}',
    ],
)
def test_tensors_that_do_not_fit_their_payload_are_refused(meta: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec's errors and ours
        _ = tensors(meta, bytes(8)).tensors


def test_result_without_attachments_has_none() -> None:
    assert result().annotated is None
    assert result().tensors == {}
