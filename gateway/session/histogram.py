"""The buckets of answers."""

from __future__ import annotations

# Upper bounds, seconds; the last bucket has none. Fine where steps are: a pace of 20 to 50 tokens/s
# is told from its neighbours.
FIRST_TOKEN_BOUNDS_S = (
    *(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
GAP_BOUNDS_S = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.012, 0.015),
    *(0.018, 0.02, 0.022, 0.025, 0.028, 0.03, 0.033, 0.036, 0.04, 0.045, 0.05, 0.06, 0.08),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5),
)
LAG_BOUNDS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 2.5)
