"""Anneal pipelines for one sample whose parts run as wholes: each begins once all that it takes is there.

A device has one part, and what that makes leaves when it ends. So a sample takes as long as the longest path through
the parts, where what goes over one link adds up. Parameters that several parts use are sent from the beginning, by the
first part that uses them. What is compiled is in :mod:`.cooling`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND
from fxpasses.partitioners.solvers.annealing.graphs import graph_of
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints
from fxpasses.partitioners.solvers.whole_parts.parts import Cooling, Parameter, parts_of, shared_of

__all__ = ["anneal_parts"]

MOST_STEPS = 10e6
"""Steps for each unit; more find nothing else in small graphs."""
ROUNDS = ((0.3, 0.01), (0.03, 0.0005))
"""The first temperature and the last of each round, as shares of what its start takes; large graphs get one round."""


def anneal_parts(
    units: Units,
    tables: CostTables,
    starts: Sequence[Ints],
    *,
    parameters: Sequence[Parameter] = (),
    time_budget: float,
    seed: int = 0,
) -> Ints:
    """The best pipeline seen from some starts.

    Args:
        units: The problem, reduced for pipelines.
        tables: The costs.
        starts: The device of each unit; at least one start.
        parameters: What is there from the beginning, and used by several units.
        time_budget: About how many seconds for all starts.
        seed: For what is drawn.
    """
    from fxpasses.partitioners.solvers.whole_parts.cooling import anneal  # numba is heavy

    draw = np.random.default_rng(seed)
    model, shared = LoadModel.of(units, tables), shared_of(parameters, tables)
    graph, slowest = graph_of(model, units.before), float(model.weight.max(axis=1).sum())
    steps, most = STEPS_PER_SECOND * time_budget, MOST_STEPS * units.size
    rounds = ROUNDS if steps >= most else ROUNDS[-1:]  # what is hot needs time to cool
    share = min(steps, most) / (len(starts) * len(rounds))
    last = list(starts)
    value, found = np.inf, last[0]
    for hot, cold in rounds:
        for index, home in enumerate(last):
            best = home.copy()
            random = draw.integers(1, 2**63, 2).astype(np.uint64)
            cooling = Cooling(share, hot, cold, slowest)
            seconds = anneal(graph, shared, parts_of(graph, home), best, cooling, random)
            if seconds < value:
                value, found = seconds, best
            last[index] = best
    return found
