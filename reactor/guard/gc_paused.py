"""Python's garbage collector and its thread switches, kept off the way from a wake to a kill."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep the garbage collector from standing between a wake and a kill: the generation calls it instead.

    Afterwards the interpreter is as it was, what protect_self changed in it included.
    """
    enabled, interval_seconds = gc.isenabled(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()  # what exists now stays: later collections need not look at it
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(interval_seconds)
        gc.unfreeze()
        if enabled:
            gc.enable()
