from __future__ import annotations

import pytest
import torch

from engine.llm.architecture import parse_architecture
from engine.llm.attention import PagedAttention
from engine.llm.kv_cache import KvCache
from engine.llm.packing import RowGroup, pack
from tests.fakes.tiny_llm import tiny_config

pytestmark = pytest.mark.unit

ARCHITECTURE = parse_architecture(tiny_config())
HEADS, KV_HEADS, DIM = ARCHITECTURE.num_heads, ARCHITECTURE.num_kv_heads, ARCHITECTURE.head_dim
CPU = torch.device("cpu")
SIZE = 4


def group(start: int, num_tokens: int, blocks: list[int], *, is_prompt: bool = False) -> RowGroup:
    return RowGroup(
        token_ids=[0] * num_tokens,
        start_position=start,
        blocks=blocks,
        num_logits=num_tokens,
        is_prompt=is_prompt,
    )


def filled_cache() -> tuple[KvCache, torch.Tensor]:
    """A cache of 64 blocks with random rows, and what stands in its slots."""
    rows = torch.randn(64 * SIZE, 2 * KV_HEADS * DIM, generator=torch.Generator().manual_seed(0))
    cache = KvCache(ARCHITECTURE, 64, SIZE, torch.float32, CPU)
    cache.write(0, torch.arange(64 * SIZE), rows)
    return cache, rows.view(-1, 2, KV_HEADS, DIM)


def reference(
    query: torch.Tensor, rows: torch.Tensor, group: RowGroup, position: int
) -> torch.Tensor:
    """Attention of one token, head by head."""
    slots = [group.blocks[at // SIZE] * SIZE + at % SIZE for at in range(position + 1)]
    heads = []
    for head in range(HEADS):
        keys, values = rows[slots, :, head // (HEADS // KV_HEADS)].unbind(1)
        scores = keys @ query.view(HEADS, DIM)[head] / DIM**0.5
        heads.append(torch.softmax(scores, 0) @ values)
    return torch.cat(heads)


GROUPS = [
    group(0, 1, [9]),
    group(17, 1, [1, 2, 3, 4, 5]),
    group(18, 1, [30, 2, 3, 4, 31]),  # shares three blocks with the one before
    group(6, 5, [10, 11, 12]),
    group(0, 30, list(range(40, 48)), is_prompt=True),
    group(31, 1, list(range(40, 48)), is_prompt=True),
    group(90, 70, list(range(60, 20, -1)), is_prompt=True),
]


@pytest.mark.parametrize("is_fused", [True, False])
def test_mixed_step_attends_to_each_sequences_own_tokens(is_fused: bool) -> None:
    cache, rows = filled_cache()
    step = pack(GROUPS, SIZE, CPU)
    queries = torch.randn(len(step.positions), HEADS * DIM)
    attention = PagedAttention(ARCHITECTURE, cache, is_fused=is_fused)
    outputs = attention(0, queries, step, attention.masks(step, torch.float32))
    order = step.logits_rows.tolist()  # rows in the order of GROUPS
    expected = [(g, position) for g in GROUPS for position in range(g.start_position, g.end)]
    for row, (owner, position) in zip(order, expected, strict=True):
        torch.testing.assert_close(
            outputs[row], reference(queries[row], rows, owner, position), atol=1e-5, rtol=1e-5
        )


def test_token_has_the_same_bits_as_a_decode_and_as_a_draft() -> None:
    cache, _ = filled_cache()
    attention = PagedAttention(ARCHITECTURE, cache, is_fused=True)
    queries = torch.randn(4, HEADS * DIM)
    blocks = [3, 1, 4, 15]
    step = pack([group(5, 4, blocks)], SIZE, CPU)
    together = attention(0, queries, step, attention.masks(step, torch.float32))
    for i in range(4):
        step = pack([group(5 + i, 1, blocks)], SIZE, CPU)
        alone = attention(0, queries[i : i + 1], step, attention.masks(step, torch.float32))
        assert torch.equal(alone[0], together[i])
