"""Moves of pipelines, whose devices stand in an order that all values follow; compiled.

A unit goes to a device between the last that it needs something from and the first that needs it; or to the next one,
with all that has to come along; maybe another unit comes back for it. And two devices may change places.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.annealing.exchanges import two_devices
from fxpasses.partitioners.solvers.annealing.graphs import LARGEST, Graph, State
from fxpasses.partitioners.solvers.annealing.loose_units import window
from fxpasses.partitioners.solvers.compiling import Random, below, chance, inlined

__all__ = ["shift"]

PUSH, ALONE = 0.02, 0.7
"""Below these chances units are pushed to the next device, or go alone; else another one comes back."""
TRIES = 4
"""How often a unit that comes back is drawn."""
FULLEST, DRAWS = 0.5, 6
"""How often a unit of the fullest device is looked for, and how often one is drawn for that."""


@inlined
def shift(graph: Graph, state: State, random: Random, stamp: int, exchanges: float) -> int:
    """Write down a move; how many units are in it, 0 where it is none, ``EXCHANGED`` where it is of two devices."""
    if chance(random) < exchanges:
        return two_devices(graph, state, random)
    kind, loose = chance(random), state.loose[len(state.home)]
    if kind < PUSH or loose == 0:
        unit = below(random, len(state.home))
        here = state.place[state.home[unit]]
        there = here + 1 if chance(random) < 0.5 else here - 1
    else:
        unit = _loose_unit(state, random)
        here = state.place[state.home[unit]]
        first, last = window(graph, state, unit)
        there = first + below(random, last - first)
        if there >= here:
            there += 1
    if there < 0 or there >= len(state.load):
        return 0
    count = _pushed(graph, state, unit, there, stamp)
    if count == 0 or kind < ALONE or count == LARGEST:
        return count
    return _with_one_back(graph, state, random, count, here, there, stamp)


@inlined
def _loose_unit(state: State, random: Random) -> int:
    """Draw a unit that can go to another place alone; half of the time from the device with the largest load."""
    loose = state.loose[len(state.home)]
    unit = state.loose[below(random, loose)]
    if chance(random) < FULLEST:
        full = 0
        for device in range(1, len(state.load)):
            if state.load[device] > state.load[full]:
                full = device
        for _ in range(DRAWS):
            if state.home[unit] == full:
                return unit
            unit = state.loose[below(random, loose)]
    return unit


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
    target, loose = state.at[here], state.loose[len(state.home)]
    for _ in range(TRIES if loose else 0):
        other = state.loose[below(random, loose)]
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
