"""The best pipeline of a graph with few ideals, its budgets kept as memory is predicted, with a proof.

Where ideals are many, some of them are looked at; then the answer is a good one, and nothing is proven.
"""

from __future__ import annotations

import math

import attrs

from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph
from fxpasses.partitioners.placing.searches.run_tables import BestPipeline, RunTable
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, all_ideals, prefixes
from fxpasses.partitioners.solvers.contiguous.ideals.orders import linear_orders
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.reduced.reducing import Units

__all__ = ["best_pipeline", "least_pipeline"]

IDEALS, MOST_IDEALS, CELLS = 1500, 2000, 2e7
"""Ideals in a second, and at most, and pairs of them times steps from one set of devices to the next in a second."""
MOST_QUICK, QUICK_CELLS = 2500, 1.5e8
"""The same for latencies: the bytes of all runs are counted beforehand, so one round is enough."""
ORDERS = 12
"""Orders whose prefixes are looked at, at most, where there are more ideals."""


def best_pipeline(graph: ReducedGraph) -> BestPipeline | None:
    """Look at all pipelines of a graph that has few ideals, or at those along some orders; None where these are many.

    Nothing is proven along some orders, nor in training, where what a device holds depends on the others, too. With
    more ideals more answers pass budgets before one keeps them, so it is asked with fewer first.
    """
    known, request = None, graph.request
    for seconds in dict.fromkeys((1.0, max(1.0, request.time_budget))):
        steps = States.count(graph.classes) * len(graph.classes)
        most = _most_ideals(steps, seconds)
        if request.objective == "latency" and request.training is None:
            most = max(most, _most_quick(max(steps, len(graph.figures.nodes)), seconds))
        words = all_ideals(graph.units, most)
        is_whole = words is not None
        if words is None:
            words = _along_orders(graph.units, most, request.seed)
        if words is None:
            break
        known = _better(RunTable.of(graph, words, is_whole=is_whole).looked_at(), known)
        if is_whole:
            break
    return known


def least_pipeline(graph: ReducedGraph) -> float:
    """What the busiest device of no pipeline is below, where the ideals of a graph are few; else 0."""
    steps = States.count(graph.classes) * len(graph.classes)
    words = all_ideals(graph.units, _most_ideals(steps, max(1.0, graph.request.time_budget)))
    return 0.0 if words is None else RunTable.of(graph, words, is_whole=True).least_value()


def _better(known: BestPipeline, before: BestPipeline | None) -> BestPipeline:
    """What is known with what was found before, which proves nothing."""
    if before is None or before.found is None:
        return known
    if known.found is None or before.found.value < known.found.value:
        return attrs.evolve(before, bound=min(known.bound, before.found.value))
    return known


def _most_ideals(steps: int, seconds: float) -> int:
    """How many there may be, with so many steps between sets of devices, if that may take some seconds."""
    return math.isqrt(int(min(min(IDEALS**2 * seconds, MOST_IDEALS**2), CELLS * seconds / steps)))


def _most_quick(steps: int, seconds: float) -> int:
    """How many there may be where runs are gone through once; or where operators are counted that are more."""
    return min(MOST_QUICK, math.isqrt(int(QUICK_CELLS * seconds / steps)))


def _along_orders(units: Units, most: int, seed: int) -> Words | None:
    """The prefixes of as many orders as there may be ideals; None if there may be fewer than along one."""
    words, orders = None, linear_orders(units, ORDERS, seed)
    for count in range(1, ORDERS + 1):
        more = prefixes(orders[:count])
        if len(more) > most:
            break
        words = more
    return words
