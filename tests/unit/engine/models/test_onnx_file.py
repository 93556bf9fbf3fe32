"""Real networks pass; whatever is something else, or less, does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.models.onnx_file import check_onnx_file
from tests.fakes.networks import EMPTY_NETWORK, save_add_and_negate, save_matmul

pytestmark = pytest.mark.unit


def test_real_networks_pass(tmp_path: Path) -> None:
    check_onnx_file(save_matmul(tmp_path / "a.onnx"))
    check_onnx_file(save_add_and_negate(tmp_path / "b.onnx"))


def test_a_network_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = save_matmul(tmp_path / "whole.onnx").read_bytes()
    graph_end = whole.index(b"\x42")  # field 8, the opset, comes last
    cut = tmp_path / "cut.onnx"
    for length in range(graph_end):
        cut.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not an ONNX model"):
            check_onnx_file(cut)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a network\n",
        b"<!DOCTYPE html><html></html>",
        b"PK\x03\x04" + bytes(100),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n",
        b"\x80" * 100,
        bytes(100),
        EMPTY_NETWORK[:2],
        EMPTY_NETWORK[2:],
        EMPTY_NETWORK + b"\x42\x7f",
    ],
)
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an ONNX model"):
        check_onnx_file(path)
