"""The garbage collector of a process that answers in milliseconds."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000  # allocated, less freed, between two looks at the young ones


def settle_heap() -> None:
    """To be called once the process is ready: what is there now is never looked at again.

    Modules, models and routes live as long as the process, some 200,000 objects; a full collection
    visits each, tens of milliseconds in which nothing is sent. What comes later is collected as
    before, only less often: streams and items are freed by their counts, cycles are rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)
