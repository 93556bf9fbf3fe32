from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.tensors import DTYPES, pack, read_meta, unpack

pytestmark = pytest.mark.unit

DTYPE_NAMES = sorted(DTYPES)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.tuples(st.sampled_from(DTYPE_NAMES), st.lists(st.integers(0, 4), max_size=4)),
        min_size=1,
        max_size=4,
    )
)
def test_arrays_survive_the_round_trip(specs: dict[str, tuple[str, list[int]]]) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, NDArray[Any]] = {
        name: random.integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in specs.items()
    }
    packed = pack(arrays)
    assert len(packed.payload) % 8 == 0
    unpacked = unpack(packed.meta, memoryview(packed.payload))
    assert list(unpacked) == list(arrays)
    for name, array in arrays.items():
        assert unpacked[name].dtype == array.dtype
        np.testing.assert_array_equal(unpacked[name], array)


def test_the_layout_is_c_order_little_endian_and_padded() -> None:
    packed = pack({"a": np.array([[1, 2], [3, 4]], ">i2").T, "b": np.array(7, np.uint8)})
    assert packed.payload.hex() == "0100030002000400" + "07" + "00" * 7
    assert json.loads(packed.meta) == {
        "tensors": [
            {"name": "a", "dtype": "int16", "shape": [2, 2]},
            {"name": "b", "dtype": "uint8", "shape": []},
        ]
    }


def test_unpacking_copies_nothing() -> None:
    packed = pack({"a": np.arange(4)})
    assert not unpack(packed.meta, packed.payload)["a"].flags.owndata


@pytest.mark.parametrize("dtype", ["object", "U3", "complex64", "datetime64[s]"])
def test_other_dtypes_cannot_be_packed(dtype: str) -> None:
    with pytest.raises(InvalidInput, match="unsupported dtype"):
        pack({"a": np.zeros(2, dtype)})


def spec(name: str = "a", dtype: str = "uint8", shape: object = (8,)) -> dict[str, object]:
    return {"name": name, "dtype": dtype, "shape": shape}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([], "0 tensors"),
        ([spec()] * 65, "65 tensors"),
        ([spec(), spec()], "same name"),
        ([spec(dtype="float8")], "unsupported dtype"),
        ([spec(shape=[-1])], "bad shape"),
        ([spec(shape=[1] * 17)], "bad shape"),
        ([spec(shape=[0, 1 << 62, 1 << 62])], "bad shape"),
        ([spec(shape=["8"])], "tensor meta"),
        ([spec(shape=[9])], "ends inside tensor"),
        ([spec(shape=[1 << 62, 1 << 62])], "ends inside tensor"),
        ([spec(shape=[0])], "meta describes 0"),
        ([{**spec(), "offset": 3}], "tensor meta"),
        ({}, "tensor meta"),
        (None, "tensor meta"),
    ],
)
def test_a_description_that_does_not_fit_is_explained(tensors: object, words: str) -> None:
    meta = json.dumps({"tensors": tensors}).encode()
    with pytest.raises(InvalidInput, match=words):
        unpack(meta, bytes(8))


@given(st.binary(max_size=60))
def test_garbage_is_invalid_input(meta: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_meta(meta)
