"""With several threads, a row still gets the same bits in any company, however it is cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.tiny_llm import write_tiny_llm

pytestmark = pytest.mark.integration

PROGRAM = """
import itertools
import sys
from pathlib import Path

import torch

from engine.llm.attention import PagedAttention
from engine.llm.kv_cache import KvCache
from engine.llm.linear import is_int8_supported
from engine.llm.model import PagedModel, load_model_folder
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

if is_int8_supported():
    loaded = load_model_folder(Path(sys.argv[1]), weights="int8", device="cpu", threads=2)

    def prompt_in_pieces(*sizes):
        model, ends = PagedModel(loaded, 20, 16), [0, *itertools.accumulate(sizes)]
        return torch.cat([
            model.execute([RowGroup(token_ids=range(start, end), start_position=start,
                                    blocks=range(20), num_logits=end - start, is_prompt=True)])
            for start, end in itertools.pairwise(ends)
        ])

    assert torch.equal(prompt_in_pieces(200), prompt_in_pieces(1, 40, 7, 64, 88))
"""


def test_rows_have_the_same_bits_with_two_threads(tmp_path: Path) -> None:
    # In a process of its own: how MKL rounds is settled at its first use.
    sizes = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64}
    command = [sys.executable, "-c", PROGRAM, str(write_tiny_llm(tmp_path, **sizes))]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
