"""Two devices of a pipeline change places, with all that they hold; compiled.

Where they stand side by side, the cut between them moves to where both take as long: one of another speed would hold
too much, or too little, and hardly an exchange would be kept. Devices that nothing tells apart stay where they are.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.annealing.graphs import Graph, State
from fxpasses.partitioners.solvers.annealing.sums import move, rebuild
from fxpasses.partitioners.solvers.compiling import Random, below, chance, inlined

__all__ = ["EXCHANGED", "exchange", "exchange_back", "two_devices"]

EXCHANGED = -1
"""Instead of a number of units: two devices change places."""
NEIGHBOURING = 0.5
"""How often these two stand side by side."""


@inlined
def two_devices(graph: Graph, state: State, random: Random) -> int:
    """Propose that two devices change places, if each can run what the other holds."""
    kinds = len(state.load)
    first = below(random, kinds)
    second = first + 1 if chance(random) < NEIGHBOURING else below(random, kinds)
    if second in (first, kinds):
        return 0
    one, other = state.at[first], state.at[second]
    if graph.kind[one] == graph.kind[other]:
        return 0
    for unit in range(len(state.home)):
        home = state.home[unit]
        if (home == one and math.isinf(graph.weight[unit, other])) or (
            home == other and math.isinf(graph.weight[unit, one])
        ):
            return 0
    state.target[0], state.target[1] = one, other
    return EXCHANGED


@inlined
def exchange(graph: Graph, state: State) -> int:
    """Let the two devices change places; its elementary steps, O(all units and values)."""
    one, other = state.target[0], state.target[1]
    for unit in range(len(state.home)):
        state.home_before[unit] = state.home[unit]
        if state.home[unit] == one:
            state.home[unit] = other
        elif state.home[unit] == other:
            state.home[unit] = one
    first, second = _change_places(state)
    rebuild(graph, state)
    if abs(first - second) > 1:
        return graph.all_steps
    return graph.all_steps + _balance(graph, state, state.at[min(first, second)], state.at[max(first, second)])


@inlined
def exchange_back(graph: Graph, state: State) -> int:
    """Undo that; its elementary steps."""
    for unit in range(len(state.home)):
        state.home[unit] = state.home_before[unit]
    _change_places(state)
    rebuild(graph, state)
    return graph.all_steps


@inlined
def _change_places(state: State) -> tuple[int, int]:
    """Let the two devices change places, without what they hold; the two places."""
    one, other = state.target[0], state.target[1]
    first, second = state.place[one], state.place[other]
    state.place[one], state.place[other] = second, first
    state.at[first], state.at[second] = other, one
    return first, second


@inlined
def _balance(graph: Graph, state: State, one: int, other: int) -> int:
    """Units go from the fuller of two devices that stand side by side to the other one; the elementary steps.

    The last ones of the first device in the order of all units, or the first ones of the second.
    """
    steps, size, ahead = 0, len(state.home), state.load[one] > state.load[other]
    full, free = (one, other) if ahead else (other, one)
    largest, taken, count, index = state.load[full], 0, 0, 0
    while index < size and state.load[free] < largest:
        unit = size - 1 - index if ahead else index
        index += 1
        if state.home[unit] != full:
            continue
        if math.isinf(graph.weight[unit, free]):
            break
        move(graph, state, unit, free)
        steps += graph.unit_steps[unit]
        count += 1
        if max(state.load[one], state.load[other]) < largest:
            largest, taken = max(state.load[one], state.load[other]), count
    while count > taken:
        index -= 1
        unit = size - 1 - index if ahead else index
        if state.home[unit] == free and state.home_before[unit] == free:  # it was one of those
            move(graph, state, unit, full)
            steps += graph.unit_steps[unit]
            count -= 1
    return steps + size
