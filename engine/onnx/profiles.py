"""TensorRT's shape profiles: for which input shapes an engine is built. Pure.

Without them TensorRT builds a new engine, for a minute or more, whenever a shape leaves the range
that it has seen so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.errors import StartupError

Shape = tuple[int | str | None, ...]


def shape_profiles(inputs: Mapping[str, Shape], sizes: Sequence[int]) -> dict[str, str]:
    """Provider options for inputs whose batch axis is free; best at the largest of ``sizes``.

    Raises:
        StartupError: a dimension beyond the first is free.
    """
    free = {name: shape for name, shape in inputs.items() if shape and not _is_fixed(shape[:1])}
    for name, shape in inputs.items():
        if not _is_fixed(shape[1:]):
            raise StartupError(
                f"TensorRT: input {name!r} has free dimensions beyond the first, {list(shape)}, "
                "and would build an engine for each size: fix them in the file, or use "
                "CUDAExecutionProvider"
            )
    if not free:
        return {}
    rows = {"min": sizes[0], "opt": sizes[-1], "max": sizes[-1]}
    return {
        f"trt_profile_{end}_shapes": ",".join(
            f"{name}:{'x'.join(str(size) for size in (count, *shape[1:]))}"
            for name, shape in free.items()
        )
        for end, count in rows.items()
    }


def _is_fixed(shape: Shape) -> bool:
    return all(isinstance(size, int) for size in shape)
