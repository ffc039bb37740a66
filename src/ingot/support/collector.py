"""Pause Python's garbage collector of reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector while graphs and programs are built, and while torch exports.

    These build many objects that stay alive and hardly any cycles, so the collector would scan the complete heap
    repeatedly. Afterwards the new objects belong to the oldest generation, which only a full collection scans.
    """
    is_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        try:
            if is_enabled and not gc.get_freeze_count():  # otherwise frozen objects of the caller would be unfrozen
                gc.freeze()
                gc.unfreeze()
        finally:  # even if an interrupt strikes above
            if is_enabled:
                gc.enable()
