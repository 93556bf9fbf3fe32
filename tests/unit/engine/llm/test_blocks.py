"""The block pool, case by case; ``tests/property/test_blocks_model.py`` has the rest."""

from __future__ import annotations

import pytest

from engine.llm.blocks import BlockPool
from engine.llm.sequence import Sequence

pytestmark = pytest.mark.unit


def make(prompt_ids: list[int], tenant: str = "") -> Sequence:
    return Sequence(key=1, prompt_ids=prompt_ids, max_tokens=8, tenant=tenant)


def fill(pool: BlockPool, sequence: Sequence) -> None:
    """Compute all its tokens and make them known."""
    assert pool.try_grow(sequence, sequence.num_tokens)
    sequence.num_computed = sequence.num_tokens
    pool.publish(sequence, 0)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0)])
def test_an_empty_pool_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(num_blocks, block_size)


def test_growth_is_block_by_block() -> None:
    pool = BlockPool(4, 4)
    sequence = make([1] * 4)
    assert pool.try_grow(sequence, 4)
    assert sequence.blocks == [0]
    assert pool.try_grow(sequence, 5)
    assert pool.try_grow(sequence, 8)
    assert sequence.blocks == [0, 1]
    pool.check_integrity([sequence])


def test_growth_is_all_or_nothing() -> None:
    pool = BlockPool(2, 4)
    sequence = make([1] * 12)
    assert not pool.try_grow(sequence, 12)
    assert sequence.blocks == []
    assert pool.num_available == 2


def test_a_prefix_is_known_only_once_it_was_published() -> None:
    pool = BlockPool(8, 4)
    first, second = make([1, 2, 3, 4, 5]), make([1, 2, 3, 4, 6])
    pool.try_grow(first, 5)
    assert pool.match_prefix(second) == []
    first.num_computed = 3
    pool.publish(first, 0)
    assert pool.match_prefix(second) == []
    first.num_computed = 5
    pool.publish(first, 3)
    assert pool.match_prefix(second) == [0]


def test_a_shared_block_outlives_its_first_owner() -> None:
    pool = BlockPool(8, 4)
    first, second = make([1, 2, 3, 4, 5]), make([1, 2, 3, 4, 6])
    fill(pool, first)
    pool.adopt_prefix(second, pool.match_prefix(second))
    assert (second.blocks, second.num_computed) == ([0], 4)
    assert pool.num_exclusive(first) == 1
    pool.release(first)
    pool.check_integrity([second])
    assert pool.num_owned == 1


def test_the_last_token_is_always_computed() -> None:
    pool = BlockPool(8, 4)
    fill(pool, make([1] * 8))
    assert len(pool.match_prefix(make([1] * 8))) == 1
    assert len(pool.match_prefix(make([1] * 9))) == 2


def test_tenants_never_share() -> None:
    pool = BlockPool(8, 4)
    fill(pool, make([1] * 8, tenant="a"))
    assert pool.match_prefix(make([1] * 8, tenant="b")) == []
    assert pool.match_prefix(make([1] * 8, tenant="a" * 100)) == []


def test_a_block_is_known_by_everything_before_it() -> None:
    pool = BlockPool(8, 4)
    fill(pool, make([1, 1, 1, 1, 2, 2, 2, 2, 3]))
    assert pool.match_prefix(make([9, 9, 9, 9, 2, 2, 2, 2, 3])) == []


def test_equal_digests_with_other_tokens_do_not_match() -> None:
    pool = BlockPool(8, 4)
    known, other = make([1] * 5), make([2] * 5)
    fill(pool, known)
    other.block_hashes = list(known.block_hashes)  # as if they collided
    assert pool.match_prefix(other) == []


def test_a_twin_stays_private() -> None:
    pool = BlockPool(8, 4)
    one, twin = make([1] * 5), make([1] * 5)
    assert pool.try_grow(one, 5)
    assert pool.try_grow(twin, 5)
    for sequence in (one, twin):
        sequence.num_computed = 5
        pool.publish(sequence, 0)
    pool.check_integrity([one, twin])
    pool.release(twin)
    assert pool.statistics().cached == 0
    pool.release(one)
    assert pool.statistics().cached == 1


def test_the_oldest_is_evicted_first_and_tails_before_heads() -> None:
    pool = BlockPool(4, 4)
    old, recent = make([1] * 9), make([2] * 5)
    fill(pool, old)
    pool.release(old)
    fill(pool, recent)
    pool.release(recent)
    newcomer = make([3] * 8)
    assert pool.try_grow(newcomer, 8)  # the free block, then the tail of the oldest
    assert len(pool.match_prefix(make([1] * 9))) == 1
    assert len(pool.match_prefix(make([2] * 5))) == 1
    assert pool.statistics().evictions == 1


def test_use_makes_recent() -> None:
    pool = BlockPool(2, 4)
    for token in (1, 2):
        sequence = make([token] * 5)
        sequence.max_tokens = 8
        assert pool.try_grow(sequence, 4)
        sequence.num_computed = 4
        pool.publish(sequence, 0)
        pool.release(sequence)
    user = make([1] * 5)
    pool.adopt_prefix(user, pool.match_prefix(user))
    pool.release(user)
    assert pool.try_grow(make([3] * 4), 4)
    assert len(pool.match_prefix(make([1] * 5))) == 1
    assert pool.match_prefix(make([2] * 5)) == []


def test_without_a_prefix_cache_nothing_is_known() -> None:
    pool = BlockPool(4, 4, prefix_cache=False)
    sequence = make([1] * 9)
    fill(pool, sequence)
    assert pool.match_prefix(make([1] * 9)) == []
    pool.release(sequence)
    assert pool.statistics().free == 4


def test_fragmentation_is_the_share_of_slots_without_a_token() -> None:
    pool = BlockPool(4, 4)
    sequence = make([1] * 5)
    assert pool.fragmentation([]) == 0.0
    assert pool.try_grow(sequence, 5)
    assert pool.fragmentation([sequence]) == pytest.approx(3 / 8)


def test_digests_are_computed_once() -> None:
    pool = BlockPool(4, 4)
    sequence = make([1] * 9)
    pool.match_prefix(sequence)
    first = sequence.block_hashes[0]
    fill(pool, sequence)
    pool.match_prefix(sequence)
    assert sequence.block_hashes[0] is first


def test_lost_and_doubled_blocks_are_noticed() -> None:
    pool = BlockPool(4, 4)
    sequence = make([1] * 5)
    assert pool.try_grow(sequence, 5)
    with pytest.raises(AssertionError):
        pool.check_integrity([])
    sequence.blocks.append(sequence.blocks[0])
    with pytest.raises(AssertionError, match="twice"):
        pool.check_integrity([sequence])
