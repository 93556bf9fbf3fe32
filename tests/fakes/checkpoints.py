"""Writes checkpoints as torch did before 1.6, without torch."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

MAGIC = 0x1950A86A20F9469CFC6C


def write_checkpoint(
    path: Path, tensors: Mapping[str, NDArray[Any]], *, magic: int = MAGIC
) -> None:
    """Write ``tensors`` (float32 or int64), each with a storage of its own."""
    with path.open("wb") as file, patch.dict(sys.modules, _fake_torch()):
        pickle.dump(magic, file, 2)
        pickle.dump(1001, file, 2)
        pickle.dump({"little_endian": True}, file, 2)
        keys = {name: str(index) for index, name in enumerate(tensors)}
        state = OrderedDict((name, _Tensor(keys[name], array)) for name, array in tensors.items())
        _Pickler(file).dump(state)
        pickle.dump(list(keys.values()), file, 2)
        for array in tensors.values():
            file.write(array.size.to_bytes(8, "little") + array.tobytes("A"))


def rebuild_tensor(*_: Any) -> None:
    """Stands for ``torch._utils._rebuild_tensor_v2``, which unpicklers must replace."""


class FloatStorage:
    """Stands for ``torch.FloatStorage``."""


class LongStorage:
    """Stands for ``torch.LongStorage``."""


class _Storage:
    def __init__(self, key: str, array: NDArray[Any]) -> None:
        self.kind = FloatStorage if array.dtype == np.float32 else LongStorage
        self.key = key
        self.size = array.size


class _Tensor:
    def __init__(self, key: str, array: NDArray[Any]) -> None:
        self.storage = _Storage(key, array)
        self.shape = array.shape
        self.strides = tuple(stride // array.itemsize for stride in array.strides)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.storage, 0, self.shape, self.strides, False, OrderedDict())
        return rebuild_tensor, arguments


class _Pickler(pickle.Pickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, 2)

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, _Storage):
            return ("storage", obj.kind, obj.key, "cpu", obj.size, None)
        return None


def _fake_torch() -> dict[str, ModuleType]:
    """Modules under which pickle finds the stand-ins by torch's names."""
    torch, utilities = ModuleType("torch"), ModuleType("torch._utils")
    for storage in (FloatStorage, LongStorage):
        storage.__module__ = "torch"
        setattr(torch, storage.__name__, storage)
    rebuild_tensor.__module__ = "torch._utils"
    rebuild_tensor.__qualname__ = rebuild_tensor.__name__ = "_rebuild_tensor_v2"
    utilities._rebuild_tensor_v2 = rebuild_tensor  # type: ignore[attr-defined]
    return {"torch": torch, "torch._utils": utilities}
