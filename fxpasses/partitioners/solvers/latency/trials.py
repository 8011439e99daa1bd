"""Anneal one schedule, compiled by numba: changes are tried one by one, some hundred thousand in a second.

Budgets may be passed on the way, at a price: where they hold just so, hardly any change keeps them, and most ways from
one schedule to a better one lead over some that do not. The price rises while they are passed, and falls while not.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers import compiling, device_bytes
from fxpasses.partitioners.solvers.compiling import Random, cached, chance, inlined
from fxpasses.partitioners.solvers.latency import changes, heaps, holdings, pushing, rooms, running, timelines
from fxpasses.partitioners.solvers.latency.changes import TRY, change, find_path
from fxpasses.partitioners.solvers.latency.holdings import Needs, Rooms
from fxpasses.partitioners.solvers.latency.pushing import push, reorder
from fxpasses.partitioners.solvers.latency.rooms import fill, give_back, over
from fxpasses.partitioners.solvers.latency.running import forget, keep, revert, settle
from fxpasses.partitioners.solvers.latency.timelines import MAKESPAN, WORK, Cooling, Network, Timeline
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["anneal"]

ROUND = 64
"""Trials after which critical nodes are looked for again."""
PUSH = 4096
"""Trials after which the schedule is pushed to the end and back."""
PASSING = 0.2
"""How often a change may pass budgets."""
DEARER, DEAREST = 1.1, 1000.0
"""How many times the price of passing them rises, or falls, in a round, and how far it gets from where it begins: at
the makespan for a whole budget."""


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

    Changes begin at some nodes only, ``among``. The best schedule that keeps the budgets is written down; its makespan
    returns. The first one has to keep them.
    """
    fill(needs, rooms)
    reorder(network, state, order)
    forget(state)
    if len(among) == len(order):
        push(network, state)
    best, trials, critical = _write(state, rooms, best_home, best_key), 0, 0
    begin, temperature, price, passed = state.sizes[WORK], cooling.hot, best, 0.0
    while best > cooling.goal:
        if trials % ROUND == 0:
            done = (state.sizes[WORK] - begin + TRY * trials) / cooling.work
            if done >= 1.0:
                break
            temperature = cooling.hot * (cooling.cold / cooling.hot) ** done
            critical = find_path(state, among)
            price *= DEARER if passed > 0.0 else 1 / DEARER
            price = min(max(price, best / DEAREST), best * DEAREST)
        if trials % PUSH == PUSH - 1:
            push(network, state)
            if passed == 0.0 and state.figures[MAKESPAN] < best:
                best = _write(state, rooms, best_home, best_key)
        trials += 1
        may_pass = needs.is_bounded and (passed > 0.0 or chance(random) < PASSING)
        rooms.most[0] = math.inf if may_pass else 0.0
        if not change(network, state, needs, rooms, random, among, critical):
            continue
        passes = over(needs, rooms)
        limit = state.figures[MAKESPAN] - temperature * math.log(1.0 - chance(random)) - price * (passes - passed)
        makespan = settle(network, state, limit)
        if makespan <= limit:
            keep(network, state, makespan)
            rooms.changed[0], rooms.is_new[0], passed = 0, False, passes
            if passed == 0.0 and makespan < best:
                best = _write(state, rooms, best_home, best_key)
        else:
            revert(network, state)
            give_back(needs, rooms)
        forget(state)
    return best
