"""Changes of a schedule, compiled: drawn, and made if they keep the budgets, or pass them by no more than they may.

A change moves a node, a path or what lies around a node to another device, swaps two, or puts a node elsewhere in the
order of its device. Most start at a node that delays the end.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.compiling import Random, below, chance, inlined
from fxpasses.partitioners.solvers.latency.holdings import Needs, Rooms
from fxpasses.partitioners.solvers.latency.rooms import fits, give, give_back
from fxpasses.partitioners.solvers.latency.running import first_place, makers_of, move, ready_at, users_of
from fxpasses.partitioners.solvers.latency.timelines import MAKESPAN, STAMP, WORK, Network, Timeline
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = [
    "TRY",
]

TRY, PARTNERS = 4, 4
"""What a trial, and a unit that goes elsewhere, cost beside the nodes that are looked at, in nodes; how often a node is
drawn that could make room for another."""
ONE, RUN, SWAP = 0.35, 0.58, 0.66
"""Below these chances a change moves a node, moves several, or swaps two; else a node goes elsewhere in the order."""
CRITICAL, BESIDE = 0.6, 0.7
"""How often a change begins at a node that delays the end, and a node goes to the device of a neighbour."""


@inlined
def find_path(state: Timeline, among: Ints) -> int:
    """Write down the nodes that end the schedule later when they end later; how many there are."""
    least, count = state.figures[MAKESPAN] * (1 - 1e-9), 0
    for place in range(len(among)):
        if state.end[among[place]] + state.tail[among[place]] >= least:
            state.path[count] = among[place]
            count += 1
    return count


@inlined
def _neighbour(network: Network, node: int, index: int) -> int:
    """What a node needs, then what needs it."""
    makers = makers_of(network, node)
    if index < makers:
        return network.maker[network.maker_start[node] + index]
    return network.user[network.user_start[node] + index - makers]


@inlined
def _neighbours(network: Network, node: int) -> int:
    return makers_of(network, node) + users_of(network, node)


@inlined
def _target(network: Network, state: Timeline, random: Random, node: int) -> int:
    """A device where a neighbour is, or any."""
    own = state.home[node]
    if chance(random) < BESIDE:
        count, elsewhere, found = _neighbours(network, node), 0, -1
        for index in range(count):
            home = state.home[_neighbour(network, node, index)]
            if home != own:
                elsewhere += 1
                if below(random, elsewhere) == 0:
                    found = home
        if found >= 0:
            return found
    return below(random, len(state.filled))


@inlined
def _around(network: Network, state: Timeline, node: int, size: int) -> int:
    """Write down what lies around a node on its device; how many nodes these are."""
    own, stamp = state.home[node], state.sizes[STAMP]
    state.found[0], state.stamp[node] = node, stamp
    count, index = 1, 0
    while index < count and count < size:
        here = state.found[index]
        for place in range(_neighbours(network, here)):
            other = _neighbour(network, here, place)
            if count < size and state.stamp[other] != stamp and state.home[other] == own:
                state.found[count], state.stamp[other] = other, stamp
                count += 1
        index += 1
    return count


@inlined
def _beyond(state: Timeline, start: Ints, item: Ints, node: int) -> int:
    """A node with all on its device that needs it, or all that it needs: what can go to another part."""
    own, stamp = state.home[node], state.sizes[STAMP]
    state.found[0], state.stamp[node] = node, stamp
    count, index = 1, 0
    while index < count:
        here = state.found[index]
        for place in range(start[here], start[here + 1]):
            other = item[place]
            if state.stamp[other] != stamp and state.home[other] == own:
                state.found[count], state.stamp[other] = other, stamp
                count += 1
        index += 1
    return count


@inlined
def _path(state: Timeline, random: Random, start: Ints, item: Ints, node: int, size: int, count: int) -> int:
    """Write down a path from a node on its device, after ``count`` nodes; how many there are then."""
    own, here = state.home[node], node
    for _ in range(below(random, size)):
        further, found = 0, -1
        for place in range(start[here], start[here + 1]):
            if state.home[item[place]] == own:
                further += 1
                if below(random, further) == 0:
                    found = item[place]
        if found < 0:
            break
        here = state.found[count] = found
        count += 1
    return count


@inlined
def _set(network: Network, state: Timeline, random: Random, node: int, flows: bool) -> int:
    """Nodes of one device that edges connect: a path through a node, or what lies around it."""
    size = 2 << below(random, 5)
    if flows and chance(random) < 0.7:
        if chance(random) < 0.5:
            return _beyond(state, network.user_start, network.user, node)
        return _beyond(state, network.maker_start, network.maker, node)
    if chance(random) < 0.5:
        return _around(network, state, node, size)
    state.found[0] = node
    count = _path(state, random, network.user_start, network.user, node, size, 1)
    return _path(state, random, network.maker_start, network.maker, node, size, count)


@inlined
def _between(network: Network, state: Timeline, random: Random, node: int, before: int, after: int) -> float:
    """A key between two nodes of a device, and where the node may stand; the old one if there is none."""
    low, high = -1e6, 1e6 + len(state.key)
    for place in range(network.maker_start[node], network.maker_start[node + 1]):
        low = max(low, state.key[network.maker[place]])
    for place in range(network.user_start[node], network.user_start[node + 1]):
        high = min(high, state.key[network.user[place]])
    if before >= 0:
        low = max(low, state.key[before])
    if after >= 0:
        high = min(high, state.key[after])
    if high - low < 1e-7:
        return state.key[node]
    if before < 0 <= after:  # beside the node after it
        low = max(low, high - 2)
    return low + (min(high, low + 2) - low) * (0.25 + 0.5 * chance(random))


@inlined
def _shift(network: Network, state: Timeline, random: Random, node: int) -> float:
    """A place elsewhere in the order of a node's device: past one other, or further; the old one if there is none."""
    old, home = state.key[node], state.home[node]
    low, high = -math.inf, math.inf
    for place in range(network.maker_start[node], network.maker_start[node + 1]):
        low = max(low, state.key[network.maker[place]])
    for place in range(network.user_start[node], network.user_start[node + 1]):
        high = min(high, state.key[network.user[place]])
    if chance(random) < 0.5:
        is_back = chance(random) < 0.5
        other = state.before[node] if is_back else state.after[node]
        while other >= 0 and chance(random) < 0.4:
            further = state.before[other] if is_back else state.after[other]
            if further < 0:
                break
            other = further
        if other < 0 or not low < state.key[other] < high:
            return old
    else:
        first, last = first_place(state, home, low, state.key), first_place(state, home, high, state.key)
        if last - first < 2:
            return old
        other = state.run[home, first + below(random, last - first)]
        if other == node:
            return old
    if state.key[other] < old:
        return _between(network, state, random, node, state.before[other], other)
    return _between(network, state, random, node, other, state.after[other])


@inlined
def _when_ready(network: Network, state: Timeline, random: Random, node: int, device: int) -> float:
    """The place in the order of a device where a node would wait the least."""
    if chance(random) < 0.4 or state.filled[device] == 0:
        return state.key[node]
    place = first_place(state, device, ready_at(network, state, node, device), state.end)
    if place < state.filled[device] and chance(random) < 0.5:
        place += 1
    before = state.run[device, place - 1] if place > 0 else -1
    after = state.run[device, place] if place < state.filled[device] else -1
    return _between(network, state, random, node, before, after)


@inlined
def _partner(state: Timeline, random: Random, among: Ints, device: int) -> int:
    """A node on a device that could leave it, -1 if none is found."""
    for _ in range(PARTNERS):
        other = among[below(random, len(among))]
        if state.home[other] == device:
            return other
    return -1


@inlined
def _give_all(
    network: Network, state: Timeline, needs: Needs, rooms: Rooms, count: int, target: int, other: int
) -> bool:
    """The first node that was found goes to a device, the others to another; whether there are any and they fit."""
    for index in range(count):
        give(needs, rooms, network.unit_of[state.found[index]], target if index == 0 else other)
    state.sizes[WORK] += TRY * rooms.changed[0]
    if fits(needs, rooms):
        return rooms.changed[0] > 0
    give_back(needs, rooms)
    return False


@inlined
def _send(
    network: Network, state: Timeline, needs: Needs, rooms: Rooms, random: Random, among: Ints, node: int, kind: float
) -> bool:
    """Nodes go to other devices: one, several, or two that swap. False when there is none or a budget is broken."""
    own = state.home[node]
    state.found[0], count = node, 1
    if kind < RUN:
        target = other = _target(network, state, random, node)
    else:
        count, other = 2, own
        state.found[1] = among[below(random, len(among))]
        target = state.home[state.found[1]]
    if target == own:
        return False
    if ONE <= kind < RUN:
        count = _set(network, state, random, node, needs.flows)
    is_made = _give_all(network, state, needs, rooms, count, target, other)
    if not is_made and kind < ONE and not needs.banned[network.unit_of[node], target]:  # one from there comes here
        state.found[1], kind = _partner(state, random, among, target), SWAP
        is_made = state.found[1] >= 0 and _give_all(network, state, needs, rooms, 2, target, own)
    if not is_made:
        return False
    for index in range(rooms.changed[0]):
        unit = rooms.moved[index]
        for place in range(network.member_start[unit], network.member_start[unit + 1]):
            member, home = network.member[place], rooms.home[unit]
            key = _when_ready(network, state, random, member, home) if kind < ONE else state.key[member]
            move(network, state, member, home, key)
    return True


@inlined
def change(
    network: Network, state: Timeline, needs: Needs, rooms: Rooms, random: Random, among: Ints, critical: int
) -> bool:
    """Make a change; False when there is none to make or when it breaks a budget.

    Args:
        network: The nodes.
        state: Their schedule.
        needs: The units.
        rooms: Their assignment.
        random: For what is drawn.
        among: Where changes begin.
        critical: How many nodes delay the end; they are on the path of the schedule.
    """
    state.sizes[STAMP] += 1
    if chance(random) < CRITICAL and critical > 0:
        node = state.path[below(random, critical)]
    else:
        node = among[below(random, len(among))]
    kind = chance(random)
    if kind < SWAP and len(state.filled) > 1:
        return _send(network, state, needs, rooms, random, among, node, kind)
    if network.seconds[node, state.home[node]] == 0.0:
        return False
    key = _shift(network, state, random, node)
    if key == state.key[node]:
        return False
    move(network, state, node, state.home[node], key)
    return True
