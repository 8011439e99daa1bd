"""Minimum cuts whose capacities are seconds, by maximum flow in whole parts (Ford & Fulkerson 1956; Dinic 1970)."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["ENDLESS", "least_cut"]

ENDLESS = float("inf")

WHOLE = 1 << 30
"""Capacities are rounded down to whole parts, of which all finite ones together have no more than this."""


def least_cut(tails: Ints, heads: Ints, capacity: Floats, source: int, sink: int) -> float:
    """The least capacity of a cut between two vertices, never above the true one.

    Args:
        tails: Where each edge begins, ``(e,)``; vertices are numbers from 0 on.
        heads: Where each edge ends.
        capacity: Seconds, not negative; ``ENDLESS`` for an edge that no cut may hold. Some cut has to hold none.
        source: The vertex on the near side.
        sink: The vertex on the far side.

    Complexity:
        Dinic's algorithm: O(V²·E) at most; a millisecond for some hundred edges.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    kept = (tails != heads) & (heads != source) & (tails != sink) & (capacity > 0)
    tails, heads, capacity = tails[kept], heads[kept], capacity[kept]
    finite = np.isfinite(capacity)
    total = float(capacity[finite].sum())
    if total == 0:
        return 0.0
    parts = np.full(len(tails), 2 * WHOLE - 1, dtype=np.int64)
    parts[finite] = np.floor(capacity[finite] * (WHOLE / total)).astype(np.int64)
    size = max(source, sink, int(max(tails.max(), heads.max()))) + 1
    codes, place = np.unique(tails * size + heads, return_inverse=True)
    summed = np.minimum(np.bincount(place, weights=parts), 2.0 * WHOLE - 1).astype(np.int32)
    network = csr_array((summed, (codes // size, codes % size)), shape=(size, size))
    return float(maximum_flow(network, source, sink).flow_value) * total / WHOLE
