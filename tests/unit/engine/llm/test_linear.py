from __future__ import annotations

import pytest
import torch

from engine.llm.linear import DenseLinear, Int8Linear, activation_levels, is_int8_supported

pytestmark = pytest.mark.unit

needs_int8 = pytest.mark.skipif(not is_int8_supported(), reason="torch has no int8 kernels here")


def random_product(outputs: int = 48, inputs: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(outputs, inputs, generator=generator)
    return weight, torch.randn(40, inputs, generator=generator)


def test_dense_product_has_its_bias() -> None:
    weight, x = random_product()
    bias = torch.arange(48.0)
    torch.testing.assert_close(DenseLinear(weight, bias)(x), x @ weight.T + bias)


@needs_int8
def test_int8_product_is_close() -> None:
    weight, x = random_product()
    expected = x @ weight.T + 3.0
    error = Int8Linear(weight, torch.full((48,), 3.0))(x) - expected
    assert error.norm() / expected.norm() < 0.02


@needs_int8
def test_int8_rows_never_depend_on_their_company() -> None:
    weight, x = random_product()
    x[7] *= 1000  # with one scale for the whole batch, this row would flatten all the others
    linear = Int8Linear(weight)
    together = linear(x)
    for row in range(len(x)):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])
        assert torch.equal(linear(x[row:])[0], together[row])


@needs_int8
def test_int8_takes_rows_and_channels_of_zeros() -> None:
    weight, x = random_product()
    weight[3] = 0.0
    x[5] = 0.0
    y = Int8Linear(weight)(x)
    assert torch.all(y[5] == 0.0)
    assert torch.all(y[:, 3] == 0.0)
    assert torch.isfinite(y).all()


@needs_int8
def test_int8_is_exact_for_the_largest_products() -> None:
    assert activation_levels() in (63, 127)
    y = Int8Linear(torch.ones(16, 512))(torch.ones(4, 512))
    torch.testing.assert_close(y, torch.full((4, 16), 512.0))
