"""Rotary position embedding as one complex multiplication.

Checkpoints of the family rotate dimension ``i`` of a head with dimension ``i + head_dim / 2``.
Here the rows of the query and key weights are interleaved when they are loaded, so that the two
are neighbours and a head is a row of complex numbers: one operation in place of five. Attention
does not notice, because queries and keys are permuted alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.llm.architecture import Rope


def interleave_heads(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the first dimension, per head, from ``i, i + head_dim / 2`` to neighbours."""
    heads = weight.shape[0] // head_dim
    halves = weight.reshape(heads, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def rotations(rope: Rope, head_dim: int, num_positions: int, device: torch.device) -> Tensor:
    """Complex64 [num_positions, head_dim / 2]: what to multiply a head at a position with."""
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope, head_dim))
    return torch.polar(torch.ones_like(angles), angles).to(device)


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per position for each pair of dimensions."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(rope, frequencies)
    return frequencies


def _llama3(rope: Rope, frequencies: Tensor) -> Tensor:
    """Llama 3.1's rule: long waves are stretched, short ones kept, those between blended."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)  # within the old context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def rotate_(heads: Tensor, rotation: Tensor) -> None:
    """Turn ``heads`` [tokens, heads, head_dim], a view with a dense last dimension, in place.

    ``rotation`` is complex64 [tokens, 1, head_dim / 2].
    """
    pairs = heads.view(*heads.shape[:-1], -1, 2)
    if heads.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(rotation)
    else:
        # There is no complex bfloat16; the angles need more than its eight bits anyway.
        turned = torch.view_as_complex(pairs.float()) * rotation
        pairs.copy_(torch.view_as_real(turned))
