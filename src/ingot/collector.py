"""Python's collector of cycles of references, and where it waits."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Looks for no cycles while graphs and programs are made, and torch exports: they have hardly any, are many, and
    stay, so that the collector would look through all that the process holds again and again.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
