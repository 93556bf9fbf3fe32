from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import StartupError
from engine.llm.model import PagedModel, RowGroup, load_model_folder
from engine.llm.weights import Checkpoint
from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.unit


def logits(folder: Path) -> torch.Tensor:
    loaded = load_model_folder(folder, weights="fp32", device="cpu", threads=1)
    model = PagedModel(loaded, num_blocks=4, block_size=8)
    group = RowGroup(token_ids=[1, 2, 3], start_position=0, blocks=[2], num_logits=3)
    return model.execute([group])


def shard(folder: Path) -> None:
    """Split the weights into two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[:9], names[9:]), start=1):
        file_name = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_sharded_weights_are_the_same_model(tmp_path: Path) -> None:
    expected = logits(write_tiny_llm(tmp_path))
    shard(tmp_path)
    assert torch.equal(logits(tmp_path), expected)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    shard(write_tiny_llm(tmp_path))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(StartupError, match=r"model-00002-of-00002\.safetensors is missing"):
        logits(tmp_path)


def test_unreadable_index_is_named(tmp_path: Path) -> None:
    shard(write_tiny_llm(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(StartupError, match=r"index\.json cannot be read"):
        logits(tmp_path)


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write_tiny_llm(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(StartupError, match=r"model\.safetensors is missing"):
        logits(tmp_path)


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    write_tiny_llm(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(StartupError, match=r"model\.safetensors cannot be read"):
        logits(tmp_path)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_tiny_llm(tmp_path))
    with pytest.raises(StartupError, match=r"has no tensor model\.layers\.2\."):
        checkpoint.tensor("model.layers.2.mlp.up_proj.weight", 128, 64)
    with pytest.raises(StartupError, match=r"norm\.weight should be \[65\], is \[64\]"):
        checkpoint.tensor("model.norm.weight", 65)


def test_head_may_be_tied_to_the_embedding(tmp_path: Path) -> None:
    write_tiny_llm(tmp_path, tie_word_embeddings=True)
    tied = logits(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert torch.equal(logits(tmp_path), tied)
