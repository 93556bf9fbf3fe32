"""The smoothest delivery that any policy could have made, had it known the future.

For each answer the least std of (gap - pace) over all schedules that hold no token longer than the
lag cap and announce a pace within its range and slew limit: a quadratic programme in paces and
lags, solved for all answers at once by ADMM (Boyd et al. 2011), with over-relaxation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadtest.delivery.policies import SETTINGS
from loadtest.delivery.sources import Array

_STEPS = 1000
_RHO = 0.1
_RELAXATION = 1.6
_RIDGE = 1e-6
Single = NDArray[np.float32]  # precise enough, and twice as fast


def least_std_ms(all_gaps: Array) -> Array:
    """One figure per answer; ``all_gaps`` has one answer per row, in seconds."""
    gaps = (all_gaps.T[1:] * 1e3).astype(np.float32)
    num_gaps = len(gaps)
    eye = np.eye(num_gaps, dtype=np.float32)
    # error_k = lag_k - lag_(k-1) + gap_k - pace_k, of x = (paces, lags)
    to_error = np.hstack([-eye, eye - np.eye(num_gaps, k=-1, dtype=np.float32)])
    lower, upper = _bounds(gaps)
    limits = _limited(np.eye(2 * num_gaps, dtype=np.float32))
    ridge = 2 * _RIDGE * np.eye(2 * num_gaps)
    inverse = np.linalg.inv(to_error.T @ to_error + ridge + _RHO * limits.T @ limits)
    inverse = inverse.astype(np.float32)
    pull = to_error.T @ gaps

    x = np.zeros((2 * num_gaps, gaps.shape[1]), np.float32)
    z = np.clip(_limited(x), lower, upper)
    dual = np.zeros_like(z)
    for _ in range(_STEPS):
        x_new = inverse @ (_RIDGE * x - pull + _adjoint(_RHO * z - dual, num_gaps))
        z_relaxed = _RELAXATION * _limited(x_new) + (1 - _RELAXATION) * z
        x = _RELAXATION * x_new + (1 - _RELAXATION) * x
        z = np.clip(z_relaxed + dual / _RHO, lower, upper)
        dual += _RHO * (z_relaxed - z)
    return np.asarray((to_error @ x + gaps).std(axis=0))


def _limited(x: Single) -> Single:
    """What has limits: paces and lags themselves, how much a pace rises, and falls."""
    pace, slew = x[: len(x) // 2], SETTINGS.slew
    rise, fall = pace[1:] - (1 + slew) * pace[:-1], pace[1:] - (1 - slew) * pace[:-1]
    return np.concatenate([x, rise, fall])


def _adjoint(y: Single, num_gaps: int) -> Single:
    """The transpose of ``_limited``."""
    x, rise, fall = np.split(y, [2 * num_gaps, 3 * num_gaps - 1])
    x, slew = x.copy(), SETTINGS.slew
    x[1:num_gaps] += rise + fall
    x[: num_gaps - 1] -= (1 + slew) * rise + (1 - slew) * fall
    return x


def _bounds(gaps: Single) -> tuple[Single, Single]:
    """Of paces, lags, and how the pace rises and falls; milliseconds."""
    num_gaps, num_answers = gaps.shape
    slowest = np.maximum(SETTINGS.slowest_s * 1e3, SETTINGS.follow_ratio * gaps.mean(axis=0))
    lower = np.concatenate(
        [
            np.full(num_gaps, SETTINGS.fastest_s * 1e3),
            np.zeros(num_gaps),
            np.full(num_gaps - 1, -np.inf),
            np.zeros(num_gaps - 1),
        ]
    )
    upper = np.concatenate(
        [
            np.zeros(num_gaps),
            np.full(num_gaps, SETTINGS.lag_cap_s * 1e3),
            np.zeros(num_gaps - 1),
            np.full(num_gaps - 1, np.inf),
        ]
    )
    lower = np.repeat(lower[:, None], num_answers, axis=1)
    upper = np.repeat(upper[:, None], num_answers, axis=1)
    upper[:num_gaps] = slowest
    return lower.astype(np.float32), upper.astype(np.float32)
