"""Devices that a table of costs does not tell apart, so that what is the same on all of them is worked out once."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["equal_columns"]

SAMPLE = 16
"""Rows by which columns are sorted, so that equal ones stand side by side."""


def equal_columns(table: Floats) -> tuple[Ints, Ints]:
    """Which columns are equal: the first of each kind, in order, and the kind of each column, ``(k,)``.

    Equal columns are compared row by row, as a table lies in memory; only different ones are read one by one. Time
    O(rows × columns).
    """
    count, kinds = table.shape
    order = np.lexsort(table[:: max(1, count // SAMPLE)][:SAMPLE]) if count else np.arange(kinds)
    along = table if (np.diff(order) == 1).all() else np.take(table, order, axis=1)
    differs = (along[:, 1:] != along[:, :-1]).any(axis=0)
    run = np.cumsum(np.append(False, differs)) if kinds else np.zeros(0, dtype=np.int64)
    begins = np.flatnonzero(np.append(True, differs)) if kinds else run
    number: dict[bytes, int] = {}
    same = np.array([number.setdefault(along[:, place].tobytes(), len(number)) for place in begins.tolist()])
    found = np.empty(kinds, dtype=np.int64)
    found[order] = same.astype(np.int64)[run]
    _kinds, first, kind = np.unique(found, return_index=True, return_inverse=True)
    by_place = np.argsort(first)
    rank = np.empty_like(by_place)
    rank[by_place] = np.arange(len(by_place))
    return first[by_place], rank[kind]
