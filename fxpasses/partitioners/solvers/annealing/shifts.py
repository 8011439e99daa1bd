"""Moves of pipelines, whose devices stand in an order that all values follow; compiled.

A unit goes to a device between the last that it needs something from and the first that needs it; or to the next one,
with all that has to come along; maybe another unit comes back for it. And two devices may change places, with all that
they hold, where they are not alike.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.annealing.graphs import LARGEST, Graph, State
from fxpasses.partitioners.solvers.annealing.sums import rebuild
from fxpasses.partitioners.solvers.compiling import Random, below, chance, inlined

__all__ = ["EXCHANGED", "exchange", "shift"]

EXCHANGED = -1
"""Instead of a number of units: two devices change places."""
EXCHANGE = 0.003
"""How often that is tried."""
NEIGHBOURING = 0.5
"""How often these two stand side by side."""
PUSH, ALONE = 0.15, 0.55
"""Below these chances units are pushed to the next device, or go alone; else another one comes back."""
TRIES = 4
"""How often a unit that comes back is drawn."""


@inlined
def shift(graph: Graph, state: State, random: Random, stamp: int) -> int:
    """Write down a move; how many units are in it, 0 where it is none, ``EXCHANGED`` where it is of two devices."""
    if chance(random) < EXCHANGE:
        return _two_devices(graph, state, random)
    unit, kind = below(random, len(state.home)), chance(random)
    here = state.place[state.home[unit]]
    first, last = _window(graph, state, unit)
    if kind < PUSH or first == last:
        there = here + 1 if chance(random) < 0.5 else here - 1
    else:
        there = first + below(random, last - first + 1)
    if there == here or there < 0 or there >= len(state.load):
        return 0
    count = _pushed(graph, state, unit, there, stamp)
    if count == 0 or kind < ALONE or count == LARGEST:
        return count
    return _with_one_back(graph, state, random, count, here, there, stamp)


@inlined
def _window(graph: Graph, state: State, unit: int) -> tuple[int, int]:
    """The last place that a unit needs something from, and the first that needs it."""
    first, last = 0, len(state.load) - 1
    for index in range(graph.before_start[unit], graph.before_start[unit + 1]):
        first = max(first, state.place[state.home[graph.before[index]]])
    for index in range(graph.after_start[unit], graph.after_start[unit + 1]):
        last = min(last, state.place[state.home[graph.after[index]]])
    return first, last


@inlined
def _pushed(graph: Graph, state: State, unit: int, there: int, stamp: int) -> int:
    """Propose that a unit goes to a place with all that the order takes along; 0 where these are too many."""
    target, ahead = state.at[there], there > state.place[state.home[unit]]
    if math.isinf(graph.weight[unit, target]):
        return 0
    state.moved[0], state.target[0], state.stamp[unit] = unit, target, stamp
    count, done = 1, 0
    while done < count:
        last = state.moved[done]
        done += 1
        start, stop = graph.before_start[last], graph.before_start[last + 1]
        if ahead:
            start, stop = graph.after_start[last], graph.after_start[last + 1]
        for index in range(start, stop):
            other = graph.after[index] if ahead else graph.before[index]
            place = state.place[state.home[other]]
            if state.stamp[other] == stamp or place == there or (place > there) == ahead:
                continue
            if count == LARGEST or math.isinf(graph.weight[other, target]):
                return 0
            state.moved[count], state.target[count], state.stamp[other] = other, target, stamp
            count += 1
    return count


@inlined
def _with_one_back(graph: Graph, state: State, random: Random, count: int, here: int, there: int, stamp: int) -> int:
    """Propose that another unit comes back for the pushed ones; 0 where the order forbids it."""
    target = state.at[here]
    for _ in range(TRIES):
        other = below(random, len(state.home))
        if state.place[state.home[other]] != there or state.stamp[other] == stamp:
            continue
        start, stop = graph.before_start[other], graph.before_start[other + 1]
        if here > there:
            start, stop = graph.after_start[other], graph.after_start[other + 1]
        for index in range(start, stop):
            beside = graph.after[index] if here > there else graph.before[index]
            place = there if state.stamp[beside] == stamp else state.place[state.home[beside]]
            if place != here and (place > here) != (here > there):
                return 0
        if math.isinf(graph.weight[other, target]):
            return 0
        state.moved[count], state.target[count] = other, target
        return count + 1
    return 0


@inlined
def _two_devices(graph: Graph, state: State, random: Random) -> int:
    """Propose that two devices change places, if each can run what the other holds."""
    kinds = len(state.load)
    first = below(random, kinds)
    second = first + 1 if chance(random) < NEIGHBOURING else below(random, kinds)
    if second in (first, kinds):
        return 0
    one, other = state.at[first], state.at[second]
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
    """Let the two devices change places; once more undoes it. Its elementary steps, O(all units and values)."""
    one, other = state.target[0], state.target[1]
    for unit in range(len(state.home)):
        if state.home[unit] == one:
            state.home[unit] = other
        elif state.home[unit] == other:
            state.home[unit] = one
    first, second = state.place[one], state.place[other]
    state.place[one], state.place[other] = second, first
    state.at[first], state.at[second] = other, one
    rebuild(graph, state)
    return graph.all_steps
