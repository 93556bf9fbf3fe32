"""Which items may run as one batch: those that give the network inputs of one shape. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from engine.errors import InvalidInput
from engine.tensors import read_meta

MAX_BUCKETS = 16
_MAX_META_BYTES = 4096  # of the meta that is looked into, on the loop

Shapes = tuple[tuple[str, str, tuple[int, ...]], ...]


class ShapeBuckets:
    """Numbers the shapes that come by, the most recent ``MAX_BUCKETS``.

    Bucket 0 is for everything whose shape the pipeline settles itself, as encoded pictures are
    resized. Raw tensors have a bucket per names, dtypes and shapes, the first axis (their rows)
    apart. A new shape takes the number of the one that was not seen for longest, and ``forget``
    is told; items of both may then share a batch, which costs time but is no error: pipelines join
    only what fits.
    """

    def __init__(self, forget: Callable[[int], None]) -> None:
        self._forget = forget
        self._numbers: OrderedDict[Shapes, int] = OrderedDict()  # the longest unseen first

    def number(self, meta: bytes) -> int:
        """The bucket of an item with this ``meta``."""
        shapes = _shapes(meta)
        if shapes is None:
            return 0
        number = self._numbers.get(shapes)
        if number is None:
            number = self._take_number()
            self._numbers[shapes] = number
        self._numbers.move_to_end(shapes)
        return number

    def _take_number(self) -> int:
        if len(self._numbers) < MAX_BUCKETS - 1:
            return 1 + len(self._numbers)
        number = self._numbers.popitem(last=False)[1]
        self._forget(number)
        return number


def _shapes(meta: bytes) -> Shapes | None:
    """None for what is no description of tensors; the worker says what is wrong with it."""
    if not 0 < len(meta) <= _MAX_META_BYTES:
        return None
    try:
        return tuple((spec.name, spec.dtype, spec.shape[1:]) for spec in read_meta(meta))
    except InvalidInput:
        return None
