from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from engine.models.importers.gguf_llama import convert

pytestmark = pytest.mark.unit


def write_gguf(path: Path, architecture: str, pre_tokenizer: str | None) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    if pre_tokenizer is not None:
        writer.add_tokenizer_pre(pre_tokenizer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "pre_tokenizer", "text"),
    [
        ("gemma", "smollm", "holds the architecture 'gemma', not llama"),
        ("llama", "deepseek", "has the pre-tokenizer 'deepseek'; known is 'smollm'"),
        ("llama", None, "has the pre-tokenizer ''"),
    ],
)
def test_what_is_not_known_is_refused_before_any_work(
    tmp_path: Path, architecture: str, pre_tokenizer: str | None, text: str
) -> None:
    source = write_gguf(tmp_path / "model.gguf", architecture, pre_tokenizer)
    with pytest.raises(ValueError, match=text):
        convert(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GG, but not UF" * 10)
    with pytest.raises(ValueError, match="GGUF"):
        convert(tmp_path / "model.gguf", tmp_path / "model")
