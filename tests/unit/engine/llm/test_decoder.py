from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from engine.llm.model import PagedModel, RowGroup, load_model_folder
from tests.fakes.tiny_llm import VOCABULARY, write_tiny_llm

pytestmark = pytest.mark.unit

TOKENS = [7 * n % 256 for n in range(40)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@torch.inference_mode()
def test_paged_logits_are_those_of_a_dense_causal_attention(tmp_path: Path, family: str) -> None:
    loaded = load_model_folder(
        write_tiny_llm(tmp_path, model_type=family), weights="fp32", device="cpu", threads=1
    )
    head_dim = loaded.architecture.head_dim

    def attend(layer: int, queries: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        keys, values = kv.chunk(2, -1)
        q, k, v = (
            part.view(len(part), -1, head_dim).transpose(0, 1) for part in (queries, keys, values)
        )
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return found.transpose(0, 1).reshape(len(queries), -1)

    hidden = loaded.decoder.run(torch.tensor(TOKENS), torch.arange(len(TOKENS)), attend)
    group = RowGroup(
        token_ids=TOKENS,
        start_position=0,
        blocks=[4, 0, 7, 2, 5],
        num_logits=len(TOKENS),
        is_prompt=True,
    )
    paged = PagedModel(loaded, 8, 8).execute([group])
    assert paged.shape == (len(TOKENS), VOCABULARY)
    torch.testing.assert_close(paged, loaded.decoder.logits(hidden), atol=1e-4, rtol=1e-4)
