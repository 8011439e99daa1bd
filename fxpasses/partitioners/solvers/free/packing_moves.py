"""Move units from device to device until every budget holds: quick, and no proof where it does not come to that.

Each step takes the move from a device that is over after which all are over by the fewest bytes together, though it may
be more than before; what has just moved stays for a while (tabu search: Glover, "Tabu Search, Part I", ORSA Journal on
Computing 1, 1989). The steps are compiled.
"""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.annealing.graphs import graph_of, state_of
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["packed_by_moves"]

STEPS_A_UNIT, MOST_STEPS = 20, 2000
"""How many moves are made, for each unit, and the most."""
STAYS = (3, 12)
"""For how many steps what has moved stays, at least, and fewer than."""


def packed_by_moves(model: LoadModel, home: Ints, draw: np.random.Generator) -> Ints | None:
    """An assignment that keeps every budget, or None where moves from ``home`` have not come to one.

    Args:
        model: What units need, and what devices have.
        home: The device of each unit, ``(m,)``; one that cannot run it is left for the largest that can.
        draw: For how long units stay.
    """
    from fxpasses.partitioners.solvers.free.packing_steps import pack  # numba is heavy

    astray = model.banned[np.arange(model.size), home]
    largest = np.argmax(np.where(model.banned, -np.inf, model.memory), axis=1)
    graph = graph_of(model)
    state = state_of(model, graph, np.where(astray, largest, home))
    stays = draw.integers(*STAYS, size=min(STEPS_A_UNIT * model.size, MOST_STEPS))
    return state.home if pack(graph, state, stays, np.zeros(model.devices)) else None
