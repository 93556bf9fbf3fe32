"""Reads the tensors of a PyTorch checkpoint (the format before torch 1.6) without torch.

The file is a row of pickles (magic number, protocol, system information, the state dictionary,
the storages' keys), then each storage as an int64 count and its raw little-endian values.
A pickle can call anything, so the unpickler knows three names and refuses all others.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_MAGIC = 0x1950A86A20F9469CFC6C
_DTYPES = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: np.dtype[Any]
    count: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A view of a storage: offset, shape and strides count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def load_state_dict(path: Path) -> dict[str, NDArray[Any]]:
    """Every tensor of the checkpoint by name, each an array of its own.

    Raises:
        ValueError: not such a checkpoint, or it holds anything but plain tensors.
    """
    with path.open("rb") as file:
        try:
            if _load(file) != _MAGIC:
                raise ValueError("the magic number is wrong")
            _load(file)  # protocol version
            _load(file)  # byte order and type sizes of the machine that wrote it
            tensors = _load(file)
            keys = _load(file)
        except (pickle.UnpicklingError, EOFError) as error:
            raise ValueError(f"{path.name} is not a checkpoint of tensors: {error}") from error
        if not isinstance(tensors, dict) or not all(_is_tensor(t) for t in tensors.values()):
            raise ValueError(f"{path.name} holds something other than tensors")
        storages = {tensor.storage.key: tensor.storage for tensor in tensors.values()}
        arrays = {key: _read_storage(file, storages[key]) for key in keys}
    return {name: _view(tensor, arrays[tensor.storage.key]) for name, tensor in tensors.items()}


class _TensorUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a checkpoint")

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", np.dtype() as dtype, str(key), _, int(count), None):
                return _Storage(key, dtype, count)
        raise pickle.UnpicklingError("unknown kind of storage")


def _load(file: BinaryIO) -> Any:
    return _TensorUnpickler(file).load()


def _rebuild_tensor(
    storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, _Tensor) and isinstance(value.storage, _Storage)


def _read_storage(file: BinaryIO, storage: _Storage) -> NDArray[Any]:
    count = int.from_bytes(file.read(8), "little", signed=True)
    data = file.read(storage.count * storage.dtype.itemsize)
    if count != storage.count or len(data) != storage.count * storage.dtype.itemsize:
        raise ValueError(f"storage {storage.key} is incomplete")
    return np.frombuffer(data, storage.dtype)


def _view(tensor: _Tensor, storage: NDArray[Any]) -> NDArray[Any]:
    sides = zip(tensor.shape, tensor.strides, strict=True)
    last = tensor.offset + sum((side - 1) * stride for side, stride in sides)
    if min(tensor.offset, last, *tensor.shape, *tensor.strides) < 0 or last >= storage.size:
        raise ValueError("a tensor reaches beyond its storage")
    strides = [stride * storage.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides).copy()
