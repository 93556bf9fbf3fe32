"""What "even" means here: gaps between tokens, and gaps less the pace announced for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadtest.delivery.sources import Array

TOLERANCE = 0.15


class Evenness(NamedTuple):
    """Standard deviations of each answer, in the gaps' unit; whether each gap is near its pace."""

    raw_std: Array
    relative_std: Array
    is_within: NDArray[np.bool_]


def evenness(gaps: Array, paces: Array) -> Evenness:
    """Gap ``i`` of an answer was announced as ``paces[i]``; answers are rows, or there is one."""
    errors = gaps - paces
    return Evenness(
        raw_std=gaps.std(axis=-1),
        relative_std=errors.std(axis=-1),
        is_within=np.abs(errors) <= TOLERANCE * paces,
    )
