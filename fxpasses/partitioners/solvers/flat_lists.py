"""Lists of numbers as two flat arrays, and floats in one piece: what compiled code reads."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["flat_floats", "flat_lists"]


def flat_lists(owner: Ints, item: Ints, count: int) -> tuple[Ints, Ints]:
    """Where the items of each of ``count`` owners start, and the items of all, one owner after the other.

    >>> start, items = flat_lists(np.array([1, 0, 1]), np.array([7, 8, 9]), 2)
    >>> start.tolist(), items.tolist()
    ([0, 1, 3], [8, 7, 9])
    """
    start = np.zeros(count + 1, dtype=np.int64)
    start[1:] = np.cumsum(np.bincount(owner, minlength=count))
    return start, np.ascontiguousarray(item[np.argsort(owner, kind="stable")], dtype=np.int64)


def flat_floats(values: Floats) -> Floats:
    """The same numbers in one piece."""
    return np.ascontiguousarray(values, dtype=np.float64)
