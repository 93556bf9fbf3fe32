"""Another orthogonal basis for the hidden state, in which int8 loses less.

A few dimensions of a language model's hidden state are ten times larger than the rest, and with
one scale per row they take most of the eight bits. Every product that reads or writes the hidden
state can absorb a rotation of it, and an RMS norm without gain is the same in every basis; so at
no cost when running, the large values are spread over all dimensions (the idea of QuaRot,
arXiv:2404.00456). SmolLM2-135M on 500 tokens of prose: Kullback-Leibler divergence from fp32
0.048 without, 0.015 with; same choice of token 85 % and 94 %.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SEED = 0


class HiddenBasis:
    """A random rotation of ``hidden_size`` dimensions, always the same one.

    It is the Kronecker product of two small rotations, which mixes as well as a full matrix and
    makes loading a large model a matter of seconds rather than of minutes.
    """

    def __init__(self, hidden_size: int) -> None:
        rows = max(i for i in range(1, int(hidden_size**0.5) + 1) if hidden_size % i == 0)
        generator = torch.Generator().manual_seed(_SEED)
        self._left = _random_rotation(rows, generator)
        self._right = _random_rotation(hidden_size // rows, generator)

    def rotate(self, vectors: Tensor) -> Tensor:
        """``vectors`` [..., hidden] in the new basis, float32."""
        shape = (len(self._left), len(self._right))
        grid = vectors.float().reshape(*vectors.shape[:-1], *shape)
        rotated: Tensor = self._left.T @ grid @ self._right
        return rotated.flatten(-2)

    def reading(self, weight: Tensor, gain: Tensor) -> Tensor:
        """A weight [outputs, hidden] behind a norm with ``gain``, for rotated input without it."""
        return self.rotate(weight.float() * gain.float())

    def writing(self, weight: Tensor) -> Tensor:
        """A weight [hidden, inputs] whose output is added to the rotated hidden state."""
        return self.rotate(weight.T).T


def _random_rotation(size: int, generator: torch.Generator) -> Tensor:
    gaussian = torch.randn(size, size, dtype=torch.float64, generator=generator)
    rotation: Tensor = torch.linalg.qr(gaussian).Q
    return rotation.float()
