"""The decoder itself: embedding, layers of attention and gated MLP, head. No cache policy.

Every step of this file runs once per layer, and calling torch costs 1 to 3 µs each time: at one
row, half of a step is such calls. Hence q, k and v are one product, gate and up another, and
results are changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.llm.architecture import Architecture
from engine.llm.linear import Linear
from engine.llm.rope import rotate_

Attend = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, queries, keys and values) -> outputs. Stores keys and values, then attends; all are
[tokens, heads * head_dim], keys before values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's weights. ``qkv`` and ``gate_up`` are stacked; query and key heads are
    interleaved (see :mod:`engine.llm.rope`), also in ``qk_norm`` [heads + kv_heads, head_dim].
    A norm is None when its gain is in the weights behind it."""

    input_norm: Tensor | None
    qkv: Linear
    qk_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor | None
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A loaded model. ``embedding`` may have a narrower type than ``dtype``, in which it runs;
    ``rotations`` is complex64 [positions, head_dim / 2]."""

    architecture: Architecture
    dtype: torch.dtype
    embedding: Tensor
    layers: Sequence[Layer]
    norm: Tensor | None
    head: Linear
    rotations: Tensor

    def run(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """The hidden state [tokens, hidden] of every row, before the last normalisation."""
        x = F.embedding(token_ids, self.embedding).to(self.dtype)
        rotation = self.rotations[positions][:, None]
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(self._normalise(x, layer.input_norm))
            queries, kv = self._split(qkv, layer, rotation)
            x.add_(layer.output(attend(index, queries, kv)))
            gate, up = layer.gate_up(self._normalise(x, layer.mlp_norm)).chunk(2, -1)
            x.add_(layer.down(F.silu(gate).mul_(up)))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocabulary]."""
        return self.head(self._normalise(hidden, self.norm)).float()

    def _split(self, qkv: Tensor, layer: Layer, rotation: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, and keys with values; queries and keys normalised and rotated in place."""
        architecture = self.architecture
        num_queries = architecture.num_heads * architecture.head_dim
        num_keys = architecture.num_kv_heads * architecture.head_dim
        heads = qkv[:, : num_queries + num_keys].view(len(qkv), -1, architecture.head_dim)
        if layer.qk_norm is not None:
            shape = (architecture.head_dim,)
            normalised = F.rms_norm(heads, shape, None, architecture.rms_norm_eps)
            heads.copy_(normalised.mul_(layer.qk_norm))
        rotate_(heads, rotation)
        return qkv[:, :num_queries], qkv[:, num_queries:]

    def _normalise(self, x: Tensor, gain: Tensor | None) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], gain, self.architecture.rms_norm_eps)
