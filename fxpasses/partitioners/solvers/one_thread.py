"""Products of matrices on one thread, while any search runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import attrs
from threadpoolctl import threadpool_limits

__all__ = ["one_thread"]


@attrs.define(eq=False)
class _Searches:
    """How many run now; the number of threads is one for the whole process, so the last one gives it back."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    running: int = 0
    limit: ExitStack = attrs.field(factory=ExitStack)

    def begin(self) -> None:
        with self.lock:
            if not self.running:
                self.limit.enter_context(threadpool_limits(limits=1, user_api="blas"))
            self.running += 1

    def end(self) -> None:
        with self.lock:
            self.running -= 1
            if not self.running:
                self.limit.close()


_SEARCHES = _Searches()


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices are small here, and threads that wait for each other take more than they save.

    So a busy machine takes no longer than an idle one, and sums are the same whatever the number of cores. Searches of
    several Python threads may overlap.
    """
    _SEARCHES.begin()
    try:
        yield
    finally:
        _SEARCHES.end()
