"""Search the orders of a pipeline's devices, compiled: in each, units are annealed for some thousandths of a second.

Units go to the devices of an order as they are numbered, so that all take as long; a short annealing from there tells
most of what the order is worth, and more than a longer one in which devices change places.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.annealing import cooling as annealings
from fxpasses.partitioners.solvers.annealing.cooling import anneal
from fxpasses.partitioners.solvers.annealing.graphs import Graph, Orders, State
from fxpasses.partitioners.solvers.annealing.sums import keep, rebuild
from fxpasses.partitioners.solvers.compiling import Random, below, cached, chance, inlined
from fxpasses.partitioners.solvers.device_bytes import over_budget

__all__ = ["search_orders"]

OVER = 60_000
"""Steps that an annealing takes more than it was told, in the mean."""
HALVINGS = 30
"""Of the largest load, while units are cut for an order."""
PROMISING = 1.02
"""How much worse than what is kept an order may be after the quick annealing."""
NEIGHBOURS, TWO = 0.5, 0.75
"""Below these chances two devices side by side change places, or any two; else one goes elsewhere."""


@inlined
def _draw(state: State, random: Random) -> None:
    """Any order of the devices."""
    for place in range(len(state.at) - 1, 0, -1):
        other = below(random, place + 1)
        state.at[place], state.at[other] = state.at[other], state.at[place]


@inlined
def _change(graph: Graph, orders: Orders, state: State, random: Random) -> bool:
    """An order like the one that is kept; whether it is another one."""
    count, kind = len(state.at), chance(random)
    for place in range(count):
        state.at[place] = orders.at[place]
    first = below(random, count - 1)
    second = first + 1
    if kind >= NEIGHBOURS:
        first, second = below(random, count), below(random, count)
    if kind < TWO:
        state.at[first], state.at[second] = state.at[second], state.at[first]
        differ: bool = graph.kind[state.at[first]] != graph.kind[state.at[second]]
        return differ
    moved, step = state.at[first], 1 if first < second else -1
    changed, place = False, first
    while place != second:
        state.at[place] = state.at[place + step]
        changed |= graph.kind[state.at[place]] != graph.kind[moved]
        place += step
    state.at[second] = moved
    return changed


@inlined
def _end(orders: Orders, device: int, begin: int, most: float) -> int:
    """Up to which unit a device goes that begins at one, by halving."""
    low, high = begin, orders.ahead.shape[1] - 1
    limit = orders.ahead[device, begin] + most
    while low < high:
        middle = (low + high + 1) // 2
        if orders.ahead[device, middle] <= limit:
            low = middle
        else:
            high = middle - 1
    return low


@inlined
def _cut(graph: Graph, orders: Orders, state: State) -> float:
    """Each device takes the next units, so that the largest load is the smallest; transfers are not looked at.

    The largest load with them returns; ``inf`` where a budget is passed.
    """
    units, low, high = len(state.home), 0.0, 0.0
    for device in range(len(state.at)):
        high = max(high, orders.ahead[device, units])
    for _ in range(HALVINGS):
        middle, at = 0.5 * (low + high), 0
        for place in range(len(state.at)):
            at = _end(orders, state.at[place], at, middle)
        if at == units:
            high = middle
        else:
            low = middle
    at = 0
    for place in range(len(state.at)):
        device = state.at[place]
        state.place[device] = place
        end = _end(orders, device, at, high)
        for unit in range(at, end):
            state.home[unit] = device
        at = end
    rebuild(graph, state)
    return math.inf if over_budget(graph, state) else keep(state, orders.home, math.inf)


@inlined
def _keep(graph: Graph, orders: Orders, state: State, value: float) -> None:
    """Write down an order and its assignment if it is one of the best; of an order once, as alike devices go."""
    worst, count = 0, len(state.at)
    for index in range(len(orders.values)):
        if orders.values[index] > orders.values[worst]:
            worst = index
    for index in range(len(orders.values)):
        is_same = not math.isinf(orders.values[index])
        for place in range(count):
            is_same &= graph.kind[orders.found[index, place]] == graph.kind[state.at[place]]
        if is_same:
            worst = index
    if value >= orders.values[worst]:
        return
    orders.values[worst] = value
    for place in range(count):
        orders.found[worst, place] = state.at[place]
    for unit in range(len(state.home)):
        orders.homes[worst, unit] = orders.home[unit]


@cached(compiling, annealings, *annealings.PARTS)
def search_orders(graph: Graph, state: State, orders: Orders, scale: float, penalty: float, random: Random) -> None:
    """Search from any orders; what keeps every budget is written down."""
    kept, spent, tried = math.inf, 0.0, 0
    while spent < orders.steps:
        tried += 1
        spent += graph.move_steps
        limit = kept
        if tried <= orders.drawn:
            _draw(state, random)
        elif _change(graph, orders, state, random):
            limit = kept * (1.0 - orders.worse * math.log(1.0 - chance(random)))
        else:
            continue
        value = _cut(graph, orders, state)
        value = anneal(graph, state, orders.home, value, orders.quick, scale, penalty, random)
        spent += orders.quick.steps + OVER + 2 * graph.all_steps
        if value <= limit * PROMISING:
            for unit in range(len(state.home)):
                state.home[unit] = orders.home[unit]
            value = anneal(graph, state, orders.home, value, orders.long, scale, penalty, random)
            spent += orders.long.steps + OVER + graph.all_steps
            _keep(graph, orders, state, value)
        if value < limit:
            kept = value
            for place in range(len(state.at)):
                orders.at[place] = state.at[place]
