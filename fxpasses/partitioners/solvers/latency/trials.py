"""Anneal one schedule, compiled by numba: changes are tried one by one, some hundred thousand in a second."""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers import compiling, device_bytes
from fxpasses.partitioners.solvers.compiling import Random, cached, chance, inlined
from fxpasses.partitioners.solvers.latency import changes, heaps, holdings, pushing, rooms, running, timelines
from fxpasses.partitioners.solvers.latency.changes import TRY, change, find_path
from fxpasses.partitioners.solvers.latency.holdings import Needs, Rooms
from fxpasses.partitioners.solvers.latency.pushing import push, reorder
from fxpasses.partitioners.solvers.latency.rooms import fill, give_back
from fxpasses.partitioners.solvers.latency.running import forget, keep, revert, settle
from fxpasses.partitioners.solvers.latency.timelines import MAKESPAN, WORK, Cooling, Network, Timeline
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["anneal"]

ROUND = 64
"""Trials after which critical nodes are looked for again."""
PUSH = 4096
"""Trials after which the schedule is pushed to the end and back."""


@inlined
def _write(state: Timeline, rooms: Rooms, home: Ints, key: Floats) -> float:
    """Write down the schedule; its makespan."""
    for unit in range(len(home)):
        home[unit] = rooms.home[unit]
    for node in range(len(key)):
        key[node] = state.key[node]
    return state.figures[MAKESPAN]


@cached(compiling, device_bytes, timelines, holdings, heaps, rooms, running, pushing, changes)
def anneal(
    network: Network,
    state: Timeline,
    needs: Needs,
    rooms: Rooms,
    order: Ints,
    among: Ints,
    cooling: Cooling,
    random: Random,
    best_home: Ints,
    best_key: Floats,
) -> float:
    """Anneal a schedule of all nodes in an order; stop early at the goal.

    Changes begin at some nodes only, ``among``. The best schedule is written down; its makespan returns.
    """
    fill(needs, rooms)
    reorder(network, state, order)
    forget(state)
    if len(among) == len(order):
        push(network, state)
    best, trials, critical = _write(state, rooms, best_home, best_key), 0, 0
    begin, temperature = state.sizes[WORK], cooling.hot
    while best > cooling.goal:
        if trials % ROUND == 0:
            done = (state.sizes[WORK] - begin + TRY * trials) / cooling.work
            if done >= 1.0:
                break
            temperature = cooling.hot * (cooling.cold / cooling.hot) ** done
            critical = find_path(state, among)
        if trials % PUSH == PUSH - 1:
            push(network, state)
            if state.figures[MAKESPAN] < best:
                best = _write(state, rooms, best_home, best_key)
        trials += 1
        if not change(network, state, needs, rooms, random, among, critical):
            continue
        limit = state.figures[MAKESPAN] - temperature * math.log(1.0 - chance(random))
        makespan = settle(network, state, limit)
        if makespan <= limit:
            keep(network, state, makespan)
            rooms.changed[0] = 0
            if makespan < best:
                best = _write(state, rooms, best_home, best_key)
        else:
            revert(network, state)
            give_back(needs, rooms)
        forget(state)
    return best
