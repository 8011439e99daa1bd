"""Keep the garbage collector from walking a large graph again and again while thousands of nodes are made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["collection_paused"]


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No cyclic collection inside; nearly all that is made there lives on in the graph, so there is little to collect.

    On a graph of 100,000 nodes with 10,000 replacements, collections took 40% of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
