"""Python's collector of cycles of references, and where it waits."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Looks for no cycles while graphs and programs are made, and torch exports: they have hardly any, are many, and
    stay, so that the collector would look through all that the process holds again and again. What was made counts as
    old afterwards, and is looked through when everything is.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            if not gc.get_freeze_count():  # else what the caller has set aside would come back
                gc.freeze()
                gc.unfreeze()
            gc.enable()
