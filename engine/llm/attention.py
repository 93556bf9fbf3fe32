"""Attention of a step's rows over the paged cache.

Each span's blocks are copied together and then attended in one call. Measured on one core, 16
sequences of 128 tokens, 30 layers of SmolLM2: copy and fused kernel 15 ms; a cache that is dense
already 17 ms, because a plain copy reads memory faster than the kernel does; a loop over the
sequences 20 ms; products block by block 19 ms. So blocks may lie anywhere
(docs/decisions/008-blocks-are-not-moved-together.md).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.llm.architecture import Architecture
from engine.llm.kv_cache import KvCache
from engine.llm.packing import WINDOW_TOKENS, PackedStep, Span

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(queries, keys, values, mask) -> outputs, all but the mask [batch, heads, tokens, head_dim]."""


class PagedAttention:
    """Reads what the cache holds; ``is_fused`` chooses torch's fused kernel, otherwise the plain
    formula in float32, which is its reference."""

    def __init__(self, architecture: Architecture, cache: KvCache, *, is_fused: bool) -> None:
        self._kv_heads = architecture.num_kv_heads
        self._group = architecture.group_size
        self._head_dim = architecture.head_dim
        self._cache = cache
        self._kernel: Kernel = fused_attention if is_fused else plain_attention

    def masks(self, step: PackedStep, dtype: torch.dtype) -> list[Tensor]:
        """The step's masks as the kernel wants them, once for all layers."""
        return [self._mask(span, dtype) for span in step.spans]

    def __call__(
        self, layer: int, queries: Tensor, step: PackedStep, masks: list[Tensor]
    ) -> Tensor:
        """``queries`` and the outputs are [tokens, heads * head_dim]."""
        outputs = [
            self._attend(layer, queries[span.rows], span, mask)
            for span, mask in zip(step.spans, masks, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(self, layer: int, queries: Tensor, span: Span, mask: Tensor) -> Tensor:
        num_rows = len(queries)
        stop = span.first_row + num_rows
        if span.is_window and num_rows < WINDOW_TOKENS:
            queries = F.pad(queries, (0, 0, span.first_row, WINDOW_TOKENS - stop))
        # Query heads that share a K/V head become more queries of that head: nothing is repeated.
        by_head = queries.view(len(queries), self._kv_heads, self._group, self._head_dim)
        if span.is_window:
            by_head = by_head.permute(1, 2, 0, 3).flatten(1, 2)[None]
        kv = self._cache.gather(layer, span.blocks, queries.dtype)
        kv = kv.view(span.num_tables, span.length, 2, self._kv_heads, self._head_dim)
        keys, values = kv.permute(2, 0, 3, 1, 4).expand(-1, len(by_head), -1, -1, -1)
        outputs = self._kernel(by_head, keys, values, mask)
        if span.is_window:
            shape = (self._kv_heads, self._group, WINDOW_TOKENS, self._head_dim)
            outputs = outputs.view(shape).permute(2, 0, 1, 3)[span.first_row : stop]
        return outputs.reshape(num_rows, -1)

    def _mask(self, span: Span, dtype: torch.dtype) -> Tensor:
        mask = span.mask.to(dtype)
        return mask.repeat(self._group, 1) if span.is_window else mask[:, None, None]


def fused_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """torch's own kernel for this device."""
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def plain_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(d) + mask) V in float32."""
    scores = queries.float() @ keys.float().transpose(-1, -2)
    weights = torch.softmax(scores / queries.shape[-1] ** 0.5 + mask.float(), -1)
    return (weights @ values.float()).to(queries.dtype)
