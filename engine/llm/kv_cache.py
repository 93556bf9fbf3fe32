"""The keys and values of every running sequence, in blocks of a fixed number of tokens.

Which block belongs to whom is the block pool's business; here are only the tensors. A block holds
its tokens one after the other, each with the keys of all heads, then the values, so that a row of
a step is written as one piece and a block is copied as one piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.llm.architecture import Architecture


@dataclass(frozen=True, slots=True)
class HostBlocks:
    """Blocks of one sequence in host memory. ``copied`` is None, or fires when they are there."""

    blocks: Tensor
    copied: torch.cuda.Event | None


class KvCache:
    """``num_blocks`` blocks of ``block_size`` tokens for every layer, all zeros at first: what is
    masked out is still multiplied by zero, and must be finite."""

    def __init__(
        self,
        architecture: Architecture,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        kv = (2, architecture.num_kv_heads, architecture.head_dim)
        shape = (architecture.num_layers, num_blocks, block_size, *kv)
        self._blocks = _zeros(shape, dtype, device)
        self._layers = self._blocks.unbind(0)
        self._slots = [layer.view(num_blocks * block_size, -1) for layer in self._layers]
        self._side_stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def write(self, layer: int, slots: Tensor, kv: Tensor) -> None:
        """Store ``kv`` [tokens, 2 * heads * head_dim]; a slot is block * block_size + offset."""
        self._slots[layer].index_copy_(0, slots, kv.to(self._blocks.dtype))

    def gather(self, layer: int, blocks: Tensor, dtype: torch.dtype) -> Tensor:
        """A copy of the blocks, in that order: [len(blocks), block_size, 2, heads, head_dim]."""
        return torch.index_select(self._layers[layer], 0, blocks).to(dtype)

    def copy_block(self, source: int, target: int) -> None:
        """Make ``target`` hold what ``source`` holds."""
        self._blocks[:, target] = self._blocks[:, source]

    def swap_out(self, blocks: Sequence[int]) -> HostBlocks:
        """Copy the blocks to host memory; they may be overwritten at once."""
        picked = self._blocks[:, list(blocks)]
        if self._side_stream is None:
            return HostBlocks(picked, None)
        host = torch.empty(picked.shape, dtype=picked.dtype, pin_memory=True)
        # The copy waits for the selection above, and the next step does not wait for the copy.
        self._side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side_stream):
            host.copy_(picked, non_blocking=True)
            copied = self._side_stream.record_event()
        picked.record_stream(self._side_stream)
        return HostBlocks(host, copied)

    def swap_in(self, handle: HostBlocks, blocks: Sequence[int]) -> None:
        """Copy what ``swap_out`` took into these blocks, of which there are as many."""
        if len(blocks) != handle.blocks.shape[1]:
            raise ValueError(f"{handle.blocks.shape[1]} blocks do not fit into {len(blocks)}")
        if handle.copied is not None:
            torch.cuda.current_stream().wait_event(handle.copied)
        self._blocks[:, list(blocks)] = handle.blocks.to(self._blocks.device, non_blocking=True)


def bytes_per_block(architecture: Architecture, block_size: int, dtype: torch.dtype) -> int:
    """What one block of every layer takes."""
    per_token = 2 * architecture.num_kv_heads * architecture.head_dim * dtype.itemsize
    return architecture.num_layers * block_size * per_token


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; in host memory the kernel's own, which take no memory until they are written.

    ``torch.zeros`` would fill gigabytes at start, most of which a quiet day never uses.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size_bytes, np.uint8)).view(dtype).view(shape)


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
