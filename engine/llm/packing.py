"""One step's prompts and decodes, mixed, as flat tensors: what the decoder works on.

Rows of equal shape are put next to each other so that attention takes them in one call. How wide
a row's attention is depends on the row alone, never on its company: sums in another order end in
other bits, and an answer must not change with the batch it was made in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

# A prompt attends in windows of so many tokens, each over no more than what it may see. They begin
# at multiples of this, and one that is partly in a step is filled up: a product's shape decides
# its last bits, int8 rounding makes up to 2.0 of a logit out of those (SmolLM2), and how a prompt
# is cut depends on the company. SmolLM2 in int8, one core: 512 tokens take 645 ms with 32, 624 ms
# with 64, and 16 tokens behind 500 others 41 ms and 53 ms.
WINDOW_TOKENS = 32

# K/V tokens per attention call: 3 MB for SmolLM2, whose gathered copy should stay in the cache.
# One core, 16 sequences of 512 tokens, 30 layers: 62 ms with 2,048, 136 ms with 8,192.
MAX_CALL_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """The tokens of one sequence that run in this step.

    ``token_ids`` stand at ``start_position`` and after; everything before is in the cache.
    ``blocks`` is the sequence's block table, which reaches at least to the last of them. Logits
    are wanted for the last ``num_logits`` tokens. Tokens of a prompt (``is_prompt``) are attended
    in windows, which is fast for many; others one by one, which gives each the same bits whether
    it is decoded, guessed ahead or computed again.
    """

    token_ids: Sequence[int]
    start_position: int
    blocks: Sequence[int]
    num_logits: int
    is_prompt: bool = False

    @property
    def end(self) -> int:
        """Tokens of the sequence after this step."""
        return self.start_position + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring rows for one attention call over ``num_tables`` tables of ``length`` tokens:
    one for each row, or one that all rows share.

    ``blocks`` lists the tables' blocks one after the other; where a sequence has fewer, its first
    block stands again. ``mask`` [rows, length] is added to the scores: 0 or minus infinity. The
    rows of a window are attended as one matrix, all others each by itself. A window's mask has
    all its ``WINDOW_TOKENS`` rows; those of this step begin at ``first_row``.
    """

    rows: slice
    num_tables: int
    length: int
    blocks: Tensor
    mask: Tensor
    is_window: bool
    first_row: int


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

    def table(self, width: int, block_size: int) -> list[int]:
        needed = list(self.group.blocks[: _num_blocks(self.positions.stop, block_size)])
        return needed + [needed[0]] * (width - len(needed))

    def slots(self, block_size: int) -> list[int]:
        blocks = self.group.blocks
        return [
            blocks[position // block_size] * block_size + position % block_size
            for position in self.positions
        ]


def _calls(groups: Sequence[RowGroup], block_size: int) -> list[tuple[int, list[_Piece]]]:
    """(blocks per table, pieces) for each attention call; several pieces have one row each."""
    calls: list[tuple[int, list[_Piece]]] = []
    single: dict[int, list[_Piece]] = {}
    for index, group in enumerate(groups):
        for width, positions in _parts(group, block_size):
            piece = _Piece(index, group, positions)
            if len(positions) == 1 and not group.is_prompt:
                single.setdefault(width, []).append(piece)
            else:
                calls.append((width, [piece]))
    for width, pieces in sorted(single.items(), key=lambda entry: entry[0]):
        most = max(1, MAX_CALL_TOKENS // (width * block_size))
        calls += [(width, pieces[at : at + most]) for at in range(0, len(pieces), most)]
    return calls


def _parts(group: RowGroup, block_size: int) -> Iterator[tuple[int, range]]:
    """(blocks to attend to, positions): a prompt in windows, other tokens by their width."""
    if group.is_prompt:
        first = group.start_position - group.start_position % WINDOW_TOKENS
        for start in range(first, group.end, WINDOW_TOKENS):
            stop = start + WINDOW_TOKENS
            positions = range(max(start, group.start_position), min(stop, group.end))
            yield _num_blocks(stop, block_size), positions
        return

    def width(position: int) -> int:
        return padded_width(_num_blocks(position + 1, block_size))

    for value, alike in groupby(range(group.start_position, group.end), width):
        found = list(alike)
        yield value, range(found[0], found[-1] + 1)


def _span(
    pieces: Sequence[_Piece], rows: slice, width: int, block_size: int, device: torch.device
) -> Span:
    is_window = pieces[0].group.is_prompt
    first_row = pieces[0].positions.start % WINDOW_TOKENS if is_window else 0
    if is_window:
        positions = torch.arange(WINDOW_TOKENS) + (pieces[0].positions.start - first_row)
    else:
        positions = torch.tensor([position for piece in pieces for position in piece.positions])
    is_hidden = torch.arange(width * block_size) > positions[:, None]
    blocks = [block for piece in pieces for block in piece.table(width, block_size)]
    return Span(
        rows=rows,
        num_tables=len(pieces),
        length=width * block_size,
        blocks=torch.tensor(blocks, device=device),
        mask=torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf).to(device),
        is_window=is_window,
        first_row=first_row,
    )


def _num_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
