from __future__ import annotations

import pytest

from engine.errors import StartupError
from engine.onnx.profiles import shape_profiles

pytestmark = pytest.mark.unit


def test_an_engine_takes_every_batch_size_and_is_best_at_the_largest() -> None:
    inputs = {"pixels": ("batch", 256, 320, 3), "mask": (None, 5)}
    assert shape_profiles(inputs, (1, 2, 4, 8)) == {
        "trt_profile_min_shapes": "pixels:1x256x320x3,mask:1x5",
        "trt_profile_opt_shapes": "pixels:8x256x320x3,mask:8x5",
        "trt_profile_max_shapes": "pixels:8x256x320x3,mask:8x5",
    }


def test_a_network_of_fixed_size_needs_no_profile() -> None:
    assert shape_profiles({"x": (1, 3, 4, 4), "scalar": ()}, (1, 2)) == {}


@pytest.mark.parametrize("shape", [("n", "width"), (1, 3, None)])
def test_a_free_size_beyond_the_batch_is_refused(shape: tuple[int | str | None, ...]) -> None:
    with pytest.raises(StartupError, match="input 'x' has free dimensions beyond the first"):
        shape_profiles({"x": shape}, (1, 2))
