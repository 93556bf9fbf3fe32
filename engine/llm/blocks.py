"""Which block of the paged KV cache belongs to whom. Pure bookkeeping: no memory is touched here.

A block is in exactly one of three places: *free* (holds nothing), *owned* (in the block table of
one or more sequences) or *cached* (owned by nobody, but its keys and values are known by hash and
may be used again until it is evicted, least recently used first).

Only full blocks are shared, and a full block is never written again, so there is no copy on
write. The hash of a block is chained over everything before it and starts from the tenant, so
that equal hashes mean an equal prefix of the same tenant; the tokens are compared all the same.
It is salted, too: keys and values of another precision are never found. A sequence that has some
of either shares its blocks no more.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from engine.llm.sequence import Sequence

_HASH_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStatistics:
    """Where the blocks are now; ``evictions`` only grows."""

    total: int
    owned: int
    cached: int
    free: int
    evictions: int


class _Content(NamedTuple):
    digest: bytes
    tokens: tuple[int, ...]


class BlockPool:
    """``num_blocks`` blocks of ``block_size`` token slots; every operation is O(blocks touched).

    The caller publishes a sequence's blocks only after their keys and values were written.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"need at least one block and slot, got {num_blocks} x {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.salt = b""  # of the weights that compute from now on; only their own is shared
        self._prefix_cache = prefix_cache
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: the lowest leave first
        self._owners = [0] * num_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()  # first in = first evicted
        self._content: list[_Content | None] = [None] * num_blocks  # of published blocks
        self._by_digest: dict[bytes, int] = {}
        self._evictions = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now, evicting what is cached."""
        return len(self._free) + len(self._cached)

    @property
    def num_owned(self) -> int:
        return self.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def missing_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """How many blocks the table lacks to hold ``num_tokens`` tokens."""
        return max(0, self.blocks_for(num_tokens) - len(sequence.blocks))

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """The published blocks that hold the longest known prefix; takes nothing. The sequence
        holds no blocks, here or in host memory.

        Never the whole sequence: its last token must be computed, because sampling needs the
        logits.
        """
        if not self._prefix_cache:
            return []
        if sequence.salt != self.salt:
            sequence.salt = self.salt
            sequence.block_hashes.clear()
        matched: list[int] = []
        for index in range((sequence.num_tokens - 1) // self.block_size):
            block = self._by_digest.get(self._digest(sequence, index))
            if block is None or not self._holds(block, sequence, index):
                break
            matched.append(block)
        return matched

    def num_unowned(self, blocks: Iterable[int]) -> int:
        """How many of ``blocks`` count as available although taking them uses them up."""
        return sum(self._owners[block] == 0 for block in blocks)

    def num_exclusive(self, sequence: Sequence) -> int:
        """How many blocks become available when the sequence gives everything back."""
        return sum(self._owners[block] == 1 for block in sequence.blocks)

    def adopt_prefix(self, sequence: Sequence, matched: list[int]) -> None:
        """Share ``matched`` (from ``match_prefix``, nothing in between) with a sequence that holds
        no blocks; their tokens count as computed."""
        assert not sequence.blocks, "a prefix is adopted first"
        for block in matched:
            self._take(block)
        sequence.blocks.extend(matched)
        sequence.num_computed = len(matched) * self.block_size

    def try_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Extend the table to hold ``num_tokens`` tokens; all or nothing."""
        missing = self.missing_blocks(sequence, num_tokens)
        if missing > self.num_available:
            return False
        for _ in range(missing):
            block = self._free.pop() if self._free else self._evict()
            self._owners[block] = 1
            sequence.blocks.append(block)
        return True

    def truncate(self, sequence: Sequence, num_blocks: int) -> None:
        """Give back all but the first ``num_blocks`` blocks, the last one first: the end of a
        prefix is worth less than its beginning, so it is evicted sooner."""
        while len(sequence.blocks) > num_blocks:
            self._give_back(sequence.blocks.pop())

    def release(self, sequence: Sequence) -> None:
        """Give everything back; nothing of the sequence is computed any more."""
        self.truncate(sequence, 0)
        sequence.num_computed = 0

    def publish(self, sequence: Sequence, num_before: int) -> None:
        """Make full blocks known that were filled since ``num_before`` tokens were computed.
        After every step of a sequence, so that no change of ``salt`` is missed."""
        if not self._prefix_cache:
            return
        if sequence.salt != self.salt:
            sequence.salt = None
            return
        for index in range(num_before // self.block_size, sequence.num_computed // self.block_size):
            block = sequence.blocks[index]
            digest = self._digest(sequence, index)
            # A twin that was computed at the same time stays private: one block per digest.
            if self._content[block] is None and digest not in self._by_digest:
                self._by_digest[digest] = block
                self._content[block] = _Content(digest, self._tokens(sequence, index))

    def fragmentation(self, sequences: Iterable[Sequence]) -> float:
        """Share of owned slots that no token of their sequences is meant for. Shared blocks are
        full, so the empty slots of different sequences never coincide."""
        if self.num_owned == 0:
            return 0.0
        empty = sum(
            max(0, len(sequence.blocks) * self.block_size - sequence.num_tokens)
            for sequence in sequences
        )
        return empty / (self.num_owned * self.block_size)

    def statistics(self) -> BlockStatistics:
        return BlockStatistics(
            total=self.num_blocks,
            owned=self.num_owned,
            cached=len(self._cached),
            free=len(self._free),
            evictions=self._evictions,
        )

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Assert free + cached + owned = total and that tables and indexes agree.

        ``sequences`` are all that may hold blocks. O(blocks): for tests and idle moments.
        """
        owners: Counter[int] = Counter()
        for sequence in sequences:
            assert len(set(sequence.blocks)) == len(sequence.blocks), "a block twice in one table"
            assert sequence.num_computed <= len(sequence.blocks) * self.block_size
            owners.update(sequence.blocks)
        assert [owners[block] for block in range(self.num_blocks)] == self._owners
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block free twice"
        assert not free & cached
        assert free | cached == {b for b in range(self.num_blocks) if self._owners[b] == 0}
        published = {c.digest: b for b, c in enumerate(self._content) if c is not None}
        assert published == self._by_digest
        assert cached == set(published.values()) - owners.keys()

    def _take(self, block: int) -> None:
        if self._owners[block] == 0:
            del self._cached[block]
        self._owners[block] += 1

    def _give_back(self, block: int) -> None:
        self._owners[block] -= 1
        if self._owners[block] > 0:
            return
        if self._content[block] is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        content = self._content[block]
        assert content is not None, "only published blocks are cached"
        del self._by_digest[content.digest]
        self._content[block] = None
        self._evictions += 1
        return block

    def _holds(self, block: int, sequence: Sequence, index: int) -> bool:
        content = self._content[block]
        return content is not None and content.tokens == self._tokens(sequence, index)

    def _tokens(self, sequence: Sequence, index: int) -> tuple[int, ...]:
        return sequence.tokens(index * self.block_size, (index + 1) * self.block_size)

    def _digest(self, sequence: Sequence, index: int) -> bytes:
        """Of block ``index`` and all before it; each is computed once per sequence."""
        digests = sequence.block_hashes
        while len(digests) <= index:
            # A tenant's name may be longer than a key, so the chain starts from its hash.
            parent = digests[-1] if digests else _hash(sequence.tenant.encode(), key=self.salt)
            tokens = array("q", self._tokens(sequence, len(digests))).tobytes()
            digests.append(_hash(tokens, key=parent))
        return digests[index]


def _hash(content: bytes, key: bytes = b"") -> bytes:
    return blake2b(content, key=key, digest_size=_HASH_BYTES).digest()
