from __future__ import annotations

import pytest
import torch

from engine.llm.architecture import parse_architecture
from engine.llm.kv_cache import KvCache, bytes_per_block
from tests.fakes.tiny_llm import tiny_config

pytestmark = pytest.mark.unit

ARCHITECTURE = parse_architecture(tiny_config())
CPU = torch.device("cpu")
ROW = 2 * ARCHITECTURE.num_kv_heads * ARCHITECTURE.head_dim


@pytest.fixture
def cache() -> KvCache:
    """Six blocks of four tokens; block b holds the number b everywhere, negated in layer 1."""
    cache = KvCache(ARCHITECTURE, 6, 4, torch.float32, CPU)
    values = torch.arange(24)[:, None].expand(-1, ROW).float() // 4
    cache.write(0, torch.arange(24), values)
    cache.write(1, torch.arange(24), -values)
    return cache


def contents(cache: KvCache, layer: int, blocks: list[int]) -> list[float]:
    gathered = cache.gather(layer, torch.tensor(blocks), torch.float32)
    assert gathered.shape == (len(blocks), 4, 2, 2, 16)
    assert torch.equal(gathered.amin((1, 2, 3, 4)), gathered.amax((1, 2, 3, 4)))
    return gathered[:, 0, 0, 0, 0].tolist()


def test_blocks_are_gathered_in_any_order_and_as_often_as_asked(cache: KvCache) -> None:
    assert contents(cache, 0, [3, 0, 5, 3]) == [3, 0, 5, 3]
    assert contents(cache, 1, [2]) == [-2]


def test_row_is_written_keys_first(cache: KvCache) -> None:
    row = torch.arange(float(ROW))[None]
    cache.write(0, torch.tensor([2 * 4 + 1]), row)
    token = cache.gather(0, torch.tensor([2]), torch.float32)[0, 1]
    assert torch.equal(token.flatten(), row[0])
    assert torch.equal(token[0, 1], row[0, 16:32])  # keys of the second head


def test_copied_block_is_the_same_in_every_layer(cache: KvCache) -> None:
    cache.copy_block(4, 1)
    assert contents(cache, 0, [1, 4]) == [4, 4]
    assert contents(cache, 1, [1, 4]) == [-4, -4]


def test_swapped_blocks_survive_their_slots_being_used(cache: KvCache) -> None:
    handle = cache.swap_out([5, 2])
    for layer in range(2):
        cache.write(layer, torch.arange(24), torch.full((24, ROW), 9.0))
    cache.swap_in(handle, [0, 3])
    assert contents(cache, 0, [0, 3, 5]) == [5, 2, 9]
    assert contents(cache, 1, [0, 3, 5]) == [-5, -2, 9]


def test_swap_in_wants_as_many_blocks_as_were_taken(cache: KvCache) -> None:
    handle = cache.swap_out([5, 2])
    with pytest.raises(ValueError, match="2 blocks do not fit into 1"):
        cache.swap_in(handle, [0])


def test_block_size_in_bytes_counts_all_layers() -> None:
    assert bytes_per_block(ARCHITECTURE, 4, torch.float32) == 2 * 4 * ROW * 4
    assert bytes_per_block(ARCHITECTURE, 4, torch.bfloat16) == 2 * 4 * ROW * 2
