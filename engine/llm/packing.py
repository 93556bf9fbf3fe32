"""One step's prompts and decodes, mixed, as flat tensors: what the decoder works on.

Rows of equal shape are put next to each other so that attention takes them in one call. How wide
a row's attention is depends on the row alone, never on its company: sums in another order end in
other bits, and an answer must not change with the batch it was made in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_SHARED_TOKENS = 8  # longer pieces have an attention call of their own

# A chunk attends in pieces of so many tokens, each over no more than what it may see: 512 tokens
# in pieces take 0.6 times the arithmetic of 512 at once, most of whose scores are masked out.
MAX_QUERY_TOKENS = 64

# K/V tokens per attention call: 3 MB for SmolLM2, whose gathered copy should stay in the cache.
# One core, 16 sequences of 512 tokens, 30 layers: 62 ms with 2,048, 136 ms with 8,192.
MAX_CALL_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """The tokens of one sequence that run in this step.

    ``token_ids`` stand at ``start_position`` and after; everything before is in the cache.
    ``blocks`` is the sequence's block table, which reaches at least to the last of them. Logits
    are wanted for the last ``num_logits`` tokens.
    """

    token_ids: Sequence[int]
    start_position: int
    blocks: Sequence[int]
    num_logits: int

    @property
    def end(self) -> int:
        """Tokens of the sequence after this step."""
        return self.start_position + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring rows for one attention call: ``num_sequences`` with ``num_tokens`` each.

    ``blocks`` lists ``length / block_size`` blocks for each sequence, one after the other; where
    a sequence has fewer, its first block stands again. ``mask`` is added to the scores:
    [num_sequences, 1, 1, num_tokens, length], 0 or minus infinity.
    """

    rows: slice
    num_sequences: int
    num_tokens: int
    length: int
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStep:
    """``slots`` are the rows' places in the cache; ``logits_rows`` picks the rows whose logits
    are wanted, in the order in which the caller listed its groups."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logits_rows: Tensor
    spans: tuple[Span, ...]


def pack(groups: Sequence[RowGroup], block_size: int, device: torch.device) -> PackedStep:
    """Lay the groups' rows out; every group has at least one token."""
    spans: list[Span] = []
    ordered: list[_Piece] = []
    row_of: dict[tuple[int, int], int] = {}  # (index of the group, position) -> row
    for width, pieces in _calls(groups, block_size):
        first_row = len(row_of)
        for piece in pieces:
            for position in piece.positions:
                row_of[piece.index, position] = len(row_of)
        rows = slice(first_row, len(row_of))
        spans.append(_span(pieces, rows, width, block_size, device))
        ordered += pieces
    logits_rows = [
        row_of[index, position]
        for index, group in enumerate(groups)
        for position in range(group.end - group.num_logits, group.end)
    ]

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    return PackedStep(
        token_ids=tensor([token for piece in ordered for token in piece.token_ids]),
        positions=tensor([position for piece in ordered for position in piece.positions]),
        slots=tensor([slot for piece in ordered for slot in piece.slots(block_size)]),
        logits_rows=tensor(logits_rows),
        spans=tuple(spans),
    )


def padded_width(num_blocks: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 … blocks: few shapes, at most a third wasted."""
    power = 1 << (num_blocks - 1).bit_length()
    return power * 3 // 4 if power > 2 and num_blocks <= power * 3 // 4 else power


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some neighbouring tokens of one group."""

    index: int
    group: RowGroup
    positions: range

    @property
    def token_ids(self) -> Sequence[int]:
        start = self.group.start_position
        return self.group.token_ids[self.positions.start - start : self.positions.stop - start]

    def num_blocks(self, block_size: int) -> int:
        return -(-self.positions.stop // block_size)

    def slots(self, block_size: int) -> list[int]:
        blocks = self.group.blocks
        return [
            blocks[position // block_size] * block_size + position % block_size
            for position in self.positions
        ]


def _calls(groups: Sequence[RowGroup], block_size: int) -> list[tuple[int, list[_Piece]]]:
    """(blocks per sequence, pieces of equal length) for each attention call."""
    calls: list[tuple[int, list[_Piece]]] = []
    shared: dict[tuple[int, int], list[_Piece]] = {}
    for piece in _pieces(groups):
        num_blocks, num_tokens = piece.num_blocks(block_size), len(piece.positions)
        if num_tokens > MAX_SHARED_TOKENS:
            calls.append((num_blocks, [piece]))
        else:
            shared.setdefault((padded_width(num_blocks), num_tokens), []).append(piece)
    for (width, _), pieces in sorted(shared.items(), key=lambda entry: entry[0]):
        most = max(1, MAX_CALL_TOKENS // (width * block_size))
        calls += [(width, pieces[at : at + most]) for at in range(0, len(pieces), most)]
    return calls


def _pieces(groups: Sequence[RowGroup]) -> Iterator[_Piece]:
    for index, group in enumerate(groups):
        for start in range(group.start_position, group.end, MAX_QUERY_TOKENS):
            positions = range(start, min(start + MAX_QUERY_TOKENS, group.end))
            yield _Piece(index, group, positions)


def _span(
    pieces: Sequence[_Piece], rows: slice, width: int, block_size: int, device: torch.device
) -> Span:
    num_tokens = len(pieces[0].positions)
    length = width * block_size
    blocks: list[int] = []
    for piece in pieces:
        needed = piece.group.blocks[: piece.num_blocks(block_size)]
        blocks += needed
        blocks += [needed[0]] * (width - len(needed))
    starts = torch.tensor([piece.positions.start for piece in pieces])
    last_seen = starts[:, None, None] + torch.arange(num_tokens)[:, None]
    is_hidden = torch.arange(length) > last_seen
    mask = torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)
    return Span(
        rows=rows,
        num_sequences=len(pieces),
        num_tokens=num_tokens,
        length=length,
        blocks=torch.tensor(blocks, device=device),
        mask=mask[:, None, None].to(device),
    )
