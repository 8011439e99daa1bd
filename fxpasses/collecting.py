"""Keep the garbage collector from walking large graphs again and again while thousands of objects are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collection_paused"]


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No cyclic collection inside; reference counting goes on as ever.

    Nearly all that is made inside lives on, so there is little to collect. On a graph of 100,000 nodes with 10,000
    replacements, collections took 40% of the time. What hangs together in a circle stays until the end, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
