"""Moves of whole parts: of a unit, of all that hangs on it (another cut), of two devices that swap; compiled."""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.annealing.graphs import Graph
from fxpasses.partitioners.solvers.annealing.moves import somewhere
from fxpasses.partitioners.solvers.compiling import Random, below, chance, inlined
from fxpasses.partitioners.solvers.reduced.tables import Ints
from fxpasses.partitioners.solvers.whole_parts.parts import Parts

__all__ = ["propose"]

SINGLE, CUT = 0.5, 0.95
"""Below these chances a move takes one unit, or cuts a part elsewhere; else two devices change places."""


@inlined
def propose(graph: Graph, parts: Parts, random: Random, stamp: int) -> int:
    """Write down a move; how many units are in it, 0 where it is none."""
    unit, kind = below(random, len(parts.home)), chance(random)
    here = parts.home[unit]
    if kind >= CUT:
        count = _swap(parts, here, below(random, len(parts.busy)))
    else:
        target = somewhere(graph, parts.home, random, unit)
        if target == here:
            return 0
        parts.moved[0], parts.target[0], count = unit, target, 1
        if kind >= SINGLE:
            if chance(random) < 0.5:
                count = _reached(parts, graph.after_start, graph.after, stamp)
            else:
                count = _reached(parts, graph.before_start, graph.before, stamp)
    for index in range(count):
        if math.isinf(graph.weight[parts.moved[index], parts.target[index]]):
            return 0
    return count


@inlined
def _swap(parts: Parts, here: int, there: int) -> int:
    """Propose that two devices change places."""
    count = 0
    if here == there:
        return count
    for unit in range(len(parts.home)):
        if parts.home[unit] == here or parts.home[unit] == there:
            parts.moved[count], parts.target[count] = unit, here + there - parts.home[unit]
            count += 1
    return count


@inlined
def _reached(parts: Parts, start: Ints, further: Ints, stamp: int) -> int:
    """Propose that all goes with a unit that is reached from it in its part."""
    home = parts.home[parts.moved[0]]
    parts.stamp[parts.moved[0]] = stamp
    count, done = 1, 0
    while done < count:
        unit = parts.moved[done]
        done += 1
        for place in range(start[unit], start[unit + 1]):
            other = further[place]
            if parts.home[other] == home and parts.stamp[other] != stamp:
                parts.stamp[other] = stamp
                parts.moved[count], parts.target[count] = other, parts.target[0]
                count += 1
    return count
