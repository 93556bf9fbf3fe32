from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.llm.architecture import Rope, parse_architecture
from engine.llm.rope import interleave_heads, inverse_frequencies, rotate_, rotations
from tests.fakes.tiny_llm import tiny_config

pytestmark = pytest.mark.unit

HEAD_DIM = 8
DEFAULT = Rope(rope_type="default", theta=100.0)


def rotate_halves(head: torch.Tensor, position: int) -> torch.Tensor:
    """The textbook formula: dimension i with dimension i + head_dim / 2."""
    angles = position * inverse_frequencies(DEFAULT, HEAD_DIM)
    first, second = head.chunk(2, -1)
    return torch.cat(
        (
            first * angles.cos() - second * angles.sin(),
            second * angles.cos() + first * angles.sin(),
        ),
        -1,
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.03)])
def test_interleaved_rotation_is_that_of_the_halves(dtype: torch.dtype, tolerance: float) -> None:
    heads = torch.randn(5, 3, HEAD_DIM)
    expected = torch.stack([rotate_halves(row, position) for position, row in enumerate(heads)])
    rotation = rotations(DEFAULT, HEAD_DIM, 5, torch.device("cpu"))[:, None]
    turned = heads.transpose(0, 2)
    turned = interleave_heads(turned, HEAD_DIM).transpose(0, 2).contiguous().to(dtype)
    rotate_(turned, rotation)
    expected = interleave_heads(expected.transpose(0, 2), HEAD_DIM).transpose(0, 2)
    torch.testing.assert_close(turned.float(), expected, atol=tolerance, rtol=tolerance)


def test_rotation_is_in_place_inside_a_wider_row() -> None:
    row = torch.randn(2, 2 * HEAD_DIM + 4)
    tail = row[:, -4:].clone()
    before = row.clone()
    rotate_(row[:, :-4].view(2, 2, HEAD_DIM), rotations(DEFAULT, HEAD_DIM, 2, row.device)[:, None])
    torch.testing.assert_close(row[0], before[0])  # position 0 turns nothing
    assert not torch.allclose(row[1, :-4], before[1, :-4])
    torch.testing.assert_close(row[:, -4:], tail)


def test_interleaving_is_per_head_and_keeps_columns() -> None:
    weight = torch.arange(8.0)[:, None] * torch.ones(1, 3)
    assert interleave_heads(weight, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert interleave_heads(torch.arange(4), 4).tolist() == [0, 2, 1, 3]


def test_linear_scaling_divides_all_frequencies() -> None:
    linear = Rope(rope_type="linear", theta=100.0, factor=4.0)
    torch.testing.assert_close(
        inverse_frequencies(linear, HEAD_DIM), inverse_frequencies(DEFAULT, HEAD_DIM) / 4
    )


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    llama3 = Rope(rope_type="llama3", theta=1e6, factor=8.0, original_max_positions=512)
    plain = inverse_frequencies(Rope(rope_type="default", theta=1e6), 64)
    scaled = inverse_frequencies(llama3, 64)
    assert scaled[0] == plain[0]
    assert scaled[-1] == plain[-1] / 8
    assert torch.all(scaled <= plain)
    assert torch.all(scaled >= plain / 8)


LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3_SCALING], ids=str
)
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any] | None) -> None:
    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": 5e5}
    config = tiny_config(head_dim=64, rope_parameters=parameters)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**config)).inv_freq
    ours = inverse_frequencies(parse_architecture(config).rope, 64)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0.0)
