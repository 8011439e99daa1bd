"""Anneal one assignment of units to devices move by move, compiled by numba: millions of moves in a second.

Loads, users of each value and bytes are kept up to date by what a move changes. The energy is a p-norm of the loads
(most moves do not change the maximum) plus what passes the budgets. Work is counted in steps, so the answer depends on
the seed only. Importing numba takes a fifth of a second, so this module is imported where a search starts.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers import compiling, device_bytes
from fxpasses.partitioners.solvers.annealing import exchanges, graphs, loose_units, moves, shifts, sums
from fxpasses.partitioners.solvers.annealing.exchanges import EXCHANGED, exchange, exchange_back
from fxpasses.partitioners.solvers.annealing.graphs import Cooling, Graph, State
from fxpasses.partitioners.solvers.annealing.loose_units import loosen, settle
from fxpasses.partitioners.solvers.annealing.moves import propose
from fxpasses.partitioners.solvers.annealing.shifts import shift
from fxpasses.partitioners.solvers.annealing.sums import (
    keep,
    power_of,
    rebuild,
    root,
    squared,
    turn,
    turn_back,
)
from fxpasses.partitioners.solvers.compiling import Random, cached, chance
from fxpasses.partitioners.solvers.device_bytes import over_budget
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["PARTS", "anneal"]

PARTS = (compiling, device_bytes, graphs, sums, moves, loose_units, exchanges, shifts)
"""The modules that are compiled with this one."""
PROPOSAL, ACCEPTED = 15, 115
"""Steps of drawing a move, and of keeping it: a processor guesses that it is not kept."""
BLOCK = 1024
"""Proposals between two temperatures."""
SUMS = 4096
"""Temperatures after which sums of floats, which round, are made anew."""


@cached(*PARTS)
def anneal(
    graph: Graph,
    state: State,
    best: Ints,
    value: float,
    cooling: Cooling,
    scale: float,
    penalty: float,
    random: Random,
) -> float:
    """Anneal from the state; ``best`` becomes the best assignment that keeps every budget, its largest load returns.

    ``value`` is what a better one is below: ``inf``, or the largest load of ``best``.
    """
    stamp, steps, over, energy = 0, 0.0, 0.0, math.inf
    temperature = cooling.hot
    state.stamp[:] = 0
    if graph.in_order:
        loosen(graph, state)
    while True:
        if stamp % BLOCK == 0:
            done = steps / cooling.steps
            if done >= 1.0:
                return value
            if stamp % (BLOCK * SUMS) == 0:
                rebuild(graph, state)
            temperature = cooling.hot * (cooling.cold / cooling.hot) ** done
            power = power_of(graph, state, scale, cooling.squarings)
            energy = root(power, cooling.squarings) + penalty * over_budget(graph, state)
        stamp += 1
        steps += PROPOSAL
        if graph.in_order:
            count = shift(graph, state, random, stamp, cooling.exchanges)
        else:
            count = propose(graph, state, random, stamp)
        if count == 0:
            continue
        steps += exchange(graph, state) if count == EXCHANGED else turn(graph, state, count)
        if graph.counts_bytes:
            over = over_budget(graph, state)
        power = power_of(graph, state, scale, cooling.squarings)
        limit = energy - temperature * math.log(1.0 - chance(random)) - penalty * over  # of the norm (Metropolis)
        if limit < 0.0 or power > squared(limit, cooling.squarings):
            if count == EXCHANGED:
                steps += exchange_back(graph, state)
            else:
                turn_back(graph, state, count)
            continue
        steps += ACCEPTED
        if count == EXCHANGED:
            loosen(graph, state)
        elif graph.in_order:
            settle(graph, state, count)
        energy = root(power, cooling.squarings) + penalty * over
        if over == 0.0:
            value = keep(state, best, value)
