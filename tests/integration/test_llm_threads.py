"""With several threads, attention still gives a row the same bits in any company."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.integration

PROGRAM = """
import sys
from pathlib import Path

import torch

from engine.llm.attention import PagedAttention
from engine.llm.kv_cache import KvCache
from engine.llm.model import load_model_folder
from engine.llm.packing import RowGroup, pack

loaded = load_model_folder(Path(sys.argv[1]), weights="fp32", device="cpu", threads=2)
architecture = loaded.architecture
cache = KvCache(architecture, 256, 8, torch.float32, loaded.device)
cache.write(0, torch.arange(2048), torch.randn(2048, 2 * 3 * 64))
attention = PagedAttention(architecture, cache, is_fused=True)


def attend(groups, queries):
    step = pack(groups, 8, loaded.device)
    outputs = attention(0, queries[step.logits_rows.argsort()], step,
                        attention.masks(step, torch.float32))
    return outputs[step.logits_rows]


groups = [
    RowGroup(token_ids=[0], start_position=7 * i, blocks=range(i, i + 40), num_logits=1)
    for i in range(40)
]
queries = torch.randn(40, 9 * 64)
company = attend(groups, queries)
alone = torch.cat([attend([groups[i]], queries[i : i + 1]) for i in range(40)])
assert torch.equal(company, alone)
"""


def test_attention_has_the_same_bits_with_two_threads(tmp_path: Path) -> None:
    # In a process of its own: how MKL rounds is settled at its first use.
    sizes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    command = [sys.executable, "-c", PROGRAM, str(write_tiny_llm(tmp_path, **sizes))]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
