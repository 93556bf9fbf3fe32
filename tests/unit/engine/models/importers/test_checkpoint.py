from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from engine.models.importers.checkpoint import load_state_dict
from tests.fakes.checkpoints import MAGIC, write_checkpoint

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.pth"


def test_tensors_come_back_as_they_were(path: Path) -> None:
    tensors = {
        "weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "count": np.array(7, dtype=np.int64),
    }
    write_checkpoint(path, tensors)
    loaded = load_state_dict(path)
    assert list(loaded) == list(tensors)
    for name, array in tensors.items():
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)


def test_a_pickle_that_calls_anything_else_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        for value in (MAGIC, 1001, {}):
            pickle.dump(value, file)
        pickle.dump(print, file)
    with pytest.raises(ValueError, match=r"builtins\.print is not allowed"):
        load_state_dict(path)


def test_a_pickle_of_something_else_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        for value in (MAGIC, 1001, {}, {"weight": 1}, []):
            pickle.dump(value, file)
    with pytest.raises(ValueError, match="something other than tensors"):
        load_state_dict(path)


def test_a_wrong_magic_number_is_refused(path: Path) -> None:
    write_checkpoint(path, {}, magic=1)
    with pytest.raises(ValueError, match="magic number"):
        load_state_dict(path)


def test_any_truncation_is_refused(path: Path) -> None:
    write_checkpoint(path, {"weight": np.ones(8, dtype=np.float32)})
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"weights\.pth|storage 0 is incomplete"):
            load_state_dict(path)


def test_a_view_beyond_its_storage_is_refused(path: Path) -> None:
    write_checkpoint(path, {"wild": np.ones((2, 2), dtype=np.float32)})
    data = path.read_bytes()
    wild = data.replace(b"K\x02K\x01\x86", b"K\x09K\x01\x86")  # strides (2, 1) become (9, 1)
    assert wild != data
    path.write_bytes(wild)
    with pytest.raises(ValueError, match="beyond its storage"):
        load_state_dict(path)
