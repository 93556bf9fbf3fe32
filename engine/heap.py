"""The garbage collector of a process that answers in milliseconds."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000  # allocated, less freed, between two looks at the young ones


def settle_heap() -> None:
    """To be called once the process is ready: what is there now is never looked at again.

    Modules, models and routes live as long as the process, and a full collection visits each:
    74,000 objects and 20 ms of a gateway, 240,000 and 100 ms with torch and transformers, in which
    nothing is sent. What comes later is collected as before, only less often: streams and items
    are freed by their counts, cycles are rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
