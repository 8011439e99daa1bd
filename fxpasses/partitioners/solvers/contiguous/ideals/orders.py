"""Linear orders of the units of a placement problem: topological, and different in how they go through branches."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, crossed, prefixes
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["BASIC", "MANY", "ideals_along", "linear_orders", "long_orders", "orders_between"]

MANY = 20_000
"""Units of which fewer orders are looked at, and only one of them finely."""
SOME, BASIC = 6, 4
"""Orders whose prefixes are looked at together, and of these the first, which are put together with each other."""


def linear_orders(units: Units, count: int, seed: int) -> list[list[int]]:
    """Topological orders that cut differently: as given, depth first, breadth first, then random ones."""
    level = [0] * units.size
    for unit, predecessors in enumerate(units.predecessors):
        level[unit] = 1 + max((level[before] for before in predecessors), default=-1)
    draw = random.Random(seed)
    rules: list[Callable[[int, int], tuple[float, ...]]] = [
        lambda unit, step: (-step, unit),  # what became ready last: depth first
        lambda unit, _step: (level[unit], unit),
        lambda unit, step: (-step, -unit),
    ]
    orders = [list(range(units.size)), *(_ordered(units, rule) for rule in rules[: count - 1])]
    while len(orders) < count:
        shuffled = [draw.random() for _ in range(units.size)]
        orders.append(_ordered(units, lambda unit, step, drawn=shuffled: (-step, drawn[unit])))  # type: ignore[misc]  # mypy cannot infer defaults
    return orders


def orders_between(orders: Sequence[Sequence[int]], shares: Sequence[float]) -> list[list[int]]:
    """Topological orders between each two of some: by a weighted sum of the places that units have in both.

    On a grid of cells they go along slopes of which rows and columns are the ends.
    """
    places = [np.argsort(order) for order in orders]
    pairs = itertools.combinations(places, 2)
    sums = (share * one + (1 - share) * other for one, other in pairs for share in shares)
    return [np.argsort(each, kind="stable").tolist() for each in sums]


def ideals_along(units: Units, weight: Floats, parts: tuple[int, int], seed: int) -> Words:
    """The prefixes of some orders, and what two of the first make together, each cut in so many parts."""
    orders = linear_orders(units, SOME, seed)
    return np.unique(np.concatenate([prefixes(orders), crossed(orders[:BASIC], weight, *parts)]), axis=0)


def long_orders(units: Units, seed: int) -> list[Ints]:
    """A few orders of many units: as given, by level, and depth first where that does not take long."""
    level = [0] * units.size
    needs, users = units.before[np.argsort(units.before[:, 1], kind="stable")].T.tolist()
    for before, after in zip(needs, users, strict=True):
        level[after] = max(level[after], level[before] + 1)
    given = np.arange(units.size)
    found = [given, np.lexsort((given, np.array(level, dtype=np.int64)))]
    if units.size <= MANY:
        found.append(np.array(linear_orders(units, 2, seed)[1], dtype=np.int64))
    return [order for place, order in enumerate(found) if not any((order == other).all() for other in found[:place])]


def _ordered(units: Units, rule: Callable[[int, int], tuple[float, ...]]) -> list[int]:
    """Kahn's algorithm that takes the ready unit of the smallest rule; ``step`` says when it became ready."""
    missing = [len(predecessors) for predecessors in units.predecessors]
    successors = units.successors
    ready = [(rule(unit, 0), unit) for unit, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        unit = heapq.heappop(ready)[1]
        order.append(unit)
        for user in successors[unit]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (rule(user, len(order)), user))
    return order
