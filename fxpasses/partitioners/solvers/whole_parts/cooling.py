"""Anneal one pipeline of whole parts move by move, compiled by numba: some million moved units in a second.

The energy is the makespan plus what passes the budgets. Work is counted in steps, so the answer depends on the seed
only.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers import compiling, device_bytes
from fxpasses.partitioners.solvers.annealing import graphs
from fxpasses.partitioners.solvers.annealing import moves as free_moves
from fxpasses.partitioners.solvers.annealing.graphs import Graph
from fxpasses.partitioners.solvers.compiling import Random, cached, chance, inlined
from fxpasses.partitioners.solvers.device_bytes import over_budget
from fxpasses.partitioners.solvers.reduced.tables import Ints
from fxpasses.partitioners.solvers.whole_parts import moves, parts, sums
from fxpasses.partitioners.solvers.whole_parts.moves import propose
from fxpasses.partitioners.solvers.whole_parts.parts import Cooling, Parts, Shared
from fxpasses.partitioners.solvers.whole_parts.sums import makespan, move, rebuild

__all__ = ["anneal"]

PENALTY = 3.0
"""What a device that needs twice its budget adds to the energy, in what the start takes."""
PROPOSAL, NEIGHBOUR, CELL = 30, 4, 3
"""Steps of a proposal, of a unit beside one that moves, and of two devices in a makespan."""
BLOCK = 256
"""Proposals between two temperatures."""
SUMS = 256
"""Temperatures after which sums of floats, which round, are made anew."""


@inlined
def _turn(graph: Graph, state: Parts, count: int) -> int:
    """Make the move, and write down the way back; its steps."""
    steps = 0
    for index in range(count):
        unit, home = state.moved[index], state.home[state.moved[index]]
        move(graph, state, unit, state.target[index])
        state.target[index] = home
        steps += graph.unit_steps[unit] + NEIGHBOUR * (graph.before_start[unit + 1] - graph.before_start[unit])
        steps += NEIGHBOUR * (graph.after_start[unit + 1] - graph.after_start[unit])
    return steps


@inlined
def _over(graph: Graph, state: Parts) -> float:
    return over_budget(graph, state) if graph.counts_bytes else 0.0


@cached(compiling, device_bytes, graphs, free_moves, parts, sums, moves)
def anneal(graph: Graph, shared: Shared, state: Parts, best: Ints, cooling: Cooling, random: Random) -> float:
    """Anneal from the state; ``best`` becomes the best pipeline that keeps every budget, its seconds return."""
    rebuild(graph, state)
    value = makespan(state, shared)
    scale = value if value < math.inf else cooling.most
    least = value if _over(graph, state) == 0.0 else math.inf
    energy, temperature, proposals, steps = math.inf, 0.0, 0, 0.0
    makespan_steps = CELL * len(state.busy) ** 2 + (len(state.home) + 3 * len(shared.user)) * (len(shared.send) > 0)
    while steps < cooling.steps:
        if proposals % BLOCK == 0:
            temperature = scale * cooling.hot * (cooling.cold / cooling.hot) ** (steps / cooling.steps)
            if proposals % (BLOCK * SUMS) == 0:
                rebuild(graph, state)
                energy = makespan(state, shared) + scale * PENALTY * _over(graph, state)
        proposals += 1
        steps += PROPOSAL
        count = propose(graph, state, random, proposals)
        if count == 0:
            continue
        steps += _turn(graph, state, count) + makespan_steps
        over = _over(graph, state)
        value = makespan(state, shared)
        trial = value + scale * PENALTY * over
        if trial > energy - temperature * math.log(1.0 - chance(random)):
            steps += _turn(graph, state, count)
            continue
        energy = trial
        if over == 0.0 and value < least * (1 - 1e-9):
            least = value
            for unit in range(len(best)):
                best[unit] = state.home[unit]
    return least
