"""When nodes run, compiled: what a change delays is followed from node to node until nothing is later than before.

Most changes are bad, and that is seen after a few nodes: the tail of a node says how much stands behind it, so a node
that ends too late ends the trial.
"""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.latency.heaps import heap_add, heap_take
from fxpasses.partitioners.solvers.latency.timelines import (
    ENDED,
    LAST,
    LATE,
    MAKESPAN,
    QUEUED,
    SHIFTED,
    WORK,
    Network,
    Timeline,
)
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = [
    "end_of",
    "first_place",
    "forget",
    "keep",
    "makers_of",
    "makespan_of",
    "move",
    "ready_at",
    "revert",
    "settle",
    "tail_of",
    "users_of",
]

EDGES = 8
"""How many edges are gone along in the time that it takes to look at a node."""


@inlined
def makers_of(network: Network, node: int) -> int:
    """How many nodes a node needs."""
    return network.maker_start[node + 1] - network.maker_start[node]


@inlined
def users_of(network: Network, node: int) -> int:
    """How many nodes need a node."""
    return network.user_start[node + 1] - network.user_start[node]


@inlined
def first_place(state: Timeline, device: int, value: float, by: Floats) -> int:
    """The first place on a device whose node has a key, or an end, of at least a value."""
    low, high = 0, state.filled[device]
    while low < high:
        middle = (low + high) >> 1
        if by[state.run[device, middle]] < value:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _unlink(network: Network, state: Timeline, node: int, home: int) -> None:
    if network.seconds[node, home] == 0.0:
        return
    place = first_place(state, home, state.key[node], state.key)
    while state.run[home, place] != node:  # another node of the same key
        place += 1
    state.filled[home] -= 1
    for index in range(place, state.filled[home]):
        state.run[home, index] = state.run[home, index + 1]
    before, after = state.before[node], state.after[node]
    if before >= 0:
        state.after[before] = after
    if after >= 0:
        state.before[after] = before


@inlined
def _link(network: Network, state: Timeline, node: int, home: int) -> None:
    state.before[node] = state.after[node] = -1
    if network.seconds[node, home] == 0.0:
        return
    place, count = first_place(state, home, state.key[node], state.key), state.filled[home]
    for index in range(count, place, -1):
        state.run[home, index] = state.run[home, index - 1]
    state.run[home, place] = node
    state.filled[home] = count + 1
    if place > 0:
        before = state.run[home, place - 1]
        state.before[node], state.after[before] = before, node
    if place < count:
        after = state.run[home, place + 1]
        state.after[node], state.before[after] = after, node


@inlined
def _queue(state: Timeline, node: int) -> None:
    """The end of a node is to be looked at."""
    if node >= 0 and not state.is_queued[node]:
        state.is_queued[node] = True
        state.queue[state.sizes[QUEUED]] = node
        state.sizes[QUEUED] += 1


@inlined
def _lag(state: Timeline, node: int) -> None:
    """The tail of a node is to be looked at, if the change stays."""
    if node >= 0 and not state.is_late[node]:
        state.is_late[node] = True
        state.late[state.sizes[LATE]] = node
        state.sizes[LATE] += 1


@inlined
def move(network: Network, state: Timeline, node: int, device: int, key: float) -> None:
    """Put a node on a device, at a place of the order."""
    size, home = state.sizes[SHIFTED], state.home[node]
    state.sizes[WORK] += (makers_of(network, node) + users_of(network, node)) // EDGES
    state.shifted[size], state.shifted_home[size], state.shifted_key[size] = node, home, state.key[node]
    state.sizes[SHIFTED] += 1
    state.figures[LAST] = max(state.figures[LAST], state.key[node], key)
    _queue(state, state.after[node])
    _lag(state, state.before[node])
    for place in range(network.user_start[node], network.user_start[node + 1]):
        _queue(state, network.user[place])
    for place in range(network.maker_start[node], network.maker_start[node + 1]):
        _lag(state, network.maker[place])
    _unlink(network, state, node, home)
    state.home[node], state.key[node] = device, key
    _link(network, state, node, device)
    _lag(state, state.before[node])
    _lag(state, node)
    _queue(state, node)
    _queue(state, state.after[node])


@inlined
def ready_at(network: Network, state: Timeline, node: int, device: int) -> float:
    """When the inputs of a node are on a device."""
    ready = 0.0
    for place in range(network.maker_start[node], network.maker_start[node + 1]):
        maker = network.maker[place]
        home = state.home[maker]
        ready = max(ready, state.end[maker] + network.send[network.table[maker], home, device])
    return ready


@inlined
def end_of(network: Network, state: Timeline, node: int) -> float:
    """When a node ends, by what stands before it."""
    device = state.home[node]
    ready, taken = ready_at(network, state, node, device), network.seconds[node, device]
    if taken == 0.0:
        return ready
    other = state.before[node]
    return taken + (max(ready, state.end[other]) if other >= 0 else ready)


@inlined
def tail_of(network: Network, state: Timeline, node: int) -> float:
    """How long it takes from the end of a node to the end of all, by what stands behind it."""
    home, tail = state.home[node], 0.0
    for place in range(network.user_start[node], network.user_start[node + 1]):
        user = network.user[place]
        there = state.home[user]
        way = network.send[network.table[node], home, there] + network.seconds[user, there] + state.tail[user]
        tail = max(tail, way)
    other = state.after[node]
    if other >= 0:
        tail = max(tail, network.seconds[other, home] + state.tail[other])
    return tail


@inlined
def makespan_of(network: Network, state: Timeline) -> float:
    """When the last node ends: one that nothing needs, or the last on its device, whichever are fewer."""
    makespan = 0.0
    if len(network.sinks) <= len(network.idle) + len(state.filled):
        for place in range(len(network.sinks)):
            makespan = max(makespan, state.end[network.sinks[place]])
        return makespan
    for place in range(len(network.idle)):
        makespan = max(makespan, state.end[network.idle[place]])
    for device in range(len(state.filled)):
        if state.filled[device] > 0:
            makespan = max(makespan, state.end[state.run[device, state.filled[device] - 1]])
    return makespan


@inlined
def settle(network: Network, state: Timeline, limit: float) -> float:
    """The makespan after the moves, ``inf`` when it is over a limit."""
    size, ended = 0, 0
    for index in range(state.sizes[QUEUED]):
        size = heap_add(state.heap, state.heap_key, size, state.queue[index], state.key[state.queue[index]])
    state.sizes[QUEUED] = 0
    while size > 0:
        size = heap_take(state.heap, state.heap_key, size)
        node, place = state.heap[size], state.heap_key[size]
        state.is_queued[node] = False
        state.sizes[WORK] += 1 + makers_of(network, node) // EDGES
        was, end = state.end[node], end_of(network, state, node)
        if end == was:
            continue
        state.ended[ended], state.ended_at[ended] = node, was
        ended += 1
        state.end[node] = end
        if end > was and end + (state.tail[node] if place > state.figures[LAST] else network.least[node]) > limit:
            for index in range(size):
                state.is_queued[state.heap[index]] = False
            state.sizes[ENDED] = ended
            return math.inf
        first, users = network.user_start[node], users_of(network, node)
        state.sizes[WORK] += users // EDGES
        for index in range(users + 1):  # and what stands behind it on its device
            other = network.user[first + index] if index < users else state.after[node]
            if other >= 0 and not state.is_queued[other]:
                state.is_queued[other] = True
                size = heap_add(state.heap, state.heap_key, size, other, state.key[other])
    state.sizes[ENDED] = ended
    return makespan_of(network, state)


@inlined
def keep(network: Network, state: Timeline, makespan: float) -> None:
    """The moves stay: bring the tails up to date."""
    size = 0
    for index in range(state.sizes[LATE]):
        size = heap_add(state.heap, state.heap_key, size, state.late[index], -state.key[state.late[index]])
    while size > 0:
        size = heap_take(state.heap, state.heap_key, size)
        node = state.heap[size]
        state.is_late[node] = False
        state.sizes[WORK] += 1 + users_of(network, node) // EDGES
        tail = tail_of(network, state, node)
        if tail == state.tail[node]:
            continue
        state.tail[node] = tail
        first, makers = network.maker_start[node], makers_of(network, node)
        state.sizes[WORK] += makers // EDGES
        for index in range(makers + 1):  # and what stands before it on its device
            other = network.maker[first + index] if index < makers else state.before[node]
            if other >= 0 and not state.is_late[other]:
                state.is_late[other] = True
                size = heap_add(state.heap, state.heap_key, size, other, -state.key[other])
    state.figures[MAKESPAN] = makespan


@inlined
def revert(network: Network, state: Timeline) -> None:
    """Take the moves back."""
    for index in range(state.sizes[ENDED] - 1, -1, -1):
        state.end[state.ended[index]] = state.ended_at[index]
    for index in range(state.sizes[SHIFTED] - 1, -1, -1):
        node = state.shifted[index]
        _unlink(network, state, node, state.home[node])
        state.home[node], state.key[node] = state.shifted_home[index], state.shifted_key[index]
        _link(network, state, node, state.shifted_home[index])
    for index in range(state.sizes[LATE]):
        state.is_late[state.late[index]] = False


@inlined
def forget(state: Timeline) -> None:
    """Nothing has been changed."""
    state.sizes[SHIFTED] = state.sizes[ENDED] = state.sizes[LATE] = 0
    state.figures[LAST] = -math.inf
