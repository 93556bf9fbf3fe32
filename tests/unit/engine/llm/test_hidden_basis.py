from __future__ import annotations

import pytest
import torch

from engine.llm.hidden_basis import HiddenBasis

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("size", [64, 96, 7])
def test_lengths_and_products_stay_the_same(size: int) -> None:
    basis = HiddenBasis(size)
    x = torch.randn(5, size)
    rotated = basis.rotate(x)
    torch.testing.assert_close(rotated @ rotated.T, x @ x.T, atol=1e-4, rtol=1e-4)


def test_what_is_read_and_written_fits_together() -> None:
    basis = HiddenBasis(96)
    x, gain = torch.randn(5, 96), torch.rand(96)
    reading, writing = torch.randn(10, 96), torch.randn(96, 10)
    torch.testing.assert_close(
        basis.rotate(x) @ basis.reading(reading, gain).T,
        (x * gain) @ reading.T,
        atol=1e-4,
        rtol=1e-4,
    )
    y = torch.randn(5, 10)
    torch.testing.assert_close(
        y @ basis.writing(writing).T, basis.rotate(y @ writing.T), atol=1e-4, rtol=1e-4
    )


def test_one_large_dimension_is_spread_over_all() -> None:
    x = torch.zeros(256)
    x[17] = 100.0
    assert HiddenBasis(256).rotate(x).abs().max() < 40.0


def test_basis_is_always_the_same() -> None:
    x = torch.randn(3, 64)
    assert torch.equal(HiddenBasis(64).rotate(x), HiddenBasis(64).rotate(x))
