"""Matrix products with a model's weights, dense or int8.

int8 on the CPU takes a sixth of fp32's time (``python -m loadtest.bench_llm_model``). Weights have
one scale per output channel, activations one per *row*: with torch's usual scale per tensor, a
token's answer would depend on which others happen to be in its batch.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_QUANTIZED = torch.ops.quantized
_TINY = 1e-30  # keeps an all-zero row from dividing by zero


class Linear(Protocol):
    """``y = x W^T + b`` for rows ``x`` [tokens, inputs]."""

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    """The weights as they are, float32 or bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class Int8Linear:
    """Eight-bit weights and activations, float32 in and out; rows never influence one another.

    Each row is scaled to ±1 first, so that the kernel's one activation scale fits them all.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = _pack(weight)
        self._bias = bias
        self._levels = activation_levels()

    def __call__(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)
        y: Tensor = _QUANTIZED.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / scale, 1.0 / self._levels, self._levels + 1, self._packed
        )
        y.mul_(scale)
        return y if self._bias is None else y.add_(self._bias)


def is_int8_supported() -> bool:
    """Whether this build of torch has the kernels, which are x86's."""
    return "fbgemm" in torch.backends.quantized.supported_engines


@cache
def activation_levels() -> int:
    """127, or 63 where the processor adds pairs of products in 16 bits, which would saturate.

    Asks the kernel itself, with the largest products there are.
    """
    ones = torch.ones(1, 64)
    packed = _pack(torch.ones(16, 64))
    product = _QUANTIZED.linear_with_input_q_dq_qweight_dq_output_fp32(ones, 1.0 / 127, 128, packed)
    return 127 if torch.allclose(product, torch.full_like(product, 64.0), rtol=1e-3) else 63


def _pack(weight: Tensor) -> torch.ScriptObject:
    scales = weight.abs().amax(1).clamp_min(_TINY) / 127
    rows = weight.shape[0]
    integers = torch.round(weight / scales[:, None]).to(torch.int8)
    with warnings.catch_warnings():
        # torch announces that quantised tensors will go; fbgemm's packing has no other door, and
        # its replacement (onednn.qlinear_pointwise) takes 11 ms where this takes 8 at one row.
        warnings.filterwarnings(
            "ignore", message=".*quantized tensor creation", category=UserWarning
        )
        quantized = torch._make_per_channel_quantized_tensor(
            integers, scales.double(), torch.zeros(rows, dtype=torch.int64), 0
        )
    packed: torch.ScriptObject = _QUANTIZED.linear_prepack(quantized, None)
    return packed
