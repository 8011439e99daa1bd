"""An order of units along which few are open: those that were taken and have neighbours still to come.

A dynamic program over units that remembers something about each open one takes time exponential in their number. On a
grid of cells the best front is as wide as its shorter side.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["narrowest_order"]


def narrowest_order(model: LoadModel, most: int) -> tuple[Ints, float]:
    """The best order found, and what 2 to the number of open units adds up to; more than ``most`` count as so many.

    It is as units are numbered, or by reverse Cuthill and McKee (1969), or by King (1970).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    maker, user = model.source[model.uses[:, 0]], model.uses[:, 1]
    ends = np.append(maker, user), np.append(user, maker)
    graph = coo_array((np.ones(len(ends[0])), ends), (model.size,) * 2).tocsr()
    near = [part.tolist() for part in np.split(graph.indices, graph.indptr[1:-1])]
    orders = [
        np.arange(model.size),
        reverse_cuthill_mckee(graph, symmetric_mode=True).astype(np.int64),
        np.array(_along_a_front(near)),
    ]
    opened = [_openness(order, maker, user, most) for order in orders]
    return orders[int(np.argmin(opened))], min(opened)


def _along_a_front(near: Sequence[Sequence[int]]) -> list[int]:
    """Take unit after unit: the one after which the fewest are open, of these one beside those taken first.

    ``near`` names the neighbours of each unit. Time O(pairs log pairs).
    """
    left, closes = list(map(len, near)), [0] * len(near)
    reached, is_taken = [len(near)] * len(near), [False] * len(near)
    waiting = [(len(near), len(near), unit) for unit in range(len(near))]
    order: list[int] = []
    while waiting:
        _opens, _reached, unit = heapq.heappop(waiting)
        if is_taken[unit]:
            continue
        is_taken[unit] = True
        order.append(unit)
        for other in near[unit]:
            left[other] -= 1
            reached[other] = min(reached[other], len(order))
        for other in (unit, *near[unit]):
            if is_taken[other] and left[other] == 1:
                closing = next(each for each in near[other] if not is_taken[each])
                closes[closing] += 1
            elif not is_taken[other]:
                closing = other
            else:
                continue
            heapq.heappush(waiting, (int(left[closing] > 0) - closes[closing], reached[closing], closing))
    return order


def _openness(order: Ints, maker: Ints, user: Ints, most: int) -> float:
    """About how much a dynamic program along an order has to do."""
    place = np.argsort(order)
    last = np.arange(len(order))
    for one, other in ((maker, user), (user, maker)):
        np.maximum.at(last, place[one], place[other])
    opened = np.arange(1, len(order) + 1) - np.cumsum(np.bincount(last, minlength=len(order)))
    return float(np.exp2(np.minimum(opened, most)).sum())
