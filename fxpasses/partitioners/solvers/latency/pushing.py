"""All nodes in another order, compiled: pushed as late as they go, and back (forward-backward improvement).

Li & Willis, "An iterative scheduling technique for resource-constrained project scheduling", EJOR 56, 1992.
"""

from __future__ import annotations

from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.latency.heaps import heap_add, heap_take
from fxpasses.partitioners.solvers.latency.running import end_of, makespan_of, tail_of
from fxpasses.partitioners.solvers.latency.timelines import MAKESPAN, WORK, Network, Timeline
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["push", "reorder"]


@inlined
def reorder(network: Network, state: Timeline, order: Ints) -> None:
    """Schedule all nodes in another order. Time O(nodes + edges)."""
    state.filled[:] = 0
    for place in range(len(order)):
        node = order[place]
        home = state.home[node]
        state.key[node] = place
        state.before[node] = state.after[node] = -1
        if network.seconds[node, home] > 0.0:
            count = state.filled[home]
            if count > 0:
                state.before[node] = state.run[home, count - 1]
                state.after[state.run[home, count - 1]] = node
            state.run[home, count] = node
            state.filled[home] = count + 1
    for place in range(len(order)):
        state.end[order[place]] = end_of(network, state, order[place])
    for place in range(len(order) - 1, -1, -1):
        state.tail[order[place]] = tail_of(network, state, order[place])
    state.sizes[WORK] += 2 * len(order)
    state.figures[MAKESPAN] = makespan_of(network, state)


@inlined
def _sort(state: Timeline, by: Floats, sign: float, order: Ints) -> None:
    """Nodes by rising values, or falling ones with the sign -1; of equal ones that with the smaller number first."""
    size = 0
    for node in range(len(by)):
        size = heap_add(state.heap, state.heap_key, size, node, sign * by[node])
    for place in range(len(by)):
        size = heap_take(state.heap, state.heap_key, size)
        order[place] = state.heap[size]


@inlined
def _put_late(network: Network, state: Timeline, order: Ints, late: Floats) -> None:
    """How long before the end of all each node starts when it runs as late as it goes, in the order of the ends."""
    state.free[:] = 0.0
    for place in range(len(order) - 1, -1, -1):
        node, start = order[place], 0.0
        home = state.home[node]
        for index in range(network.user_start[node], network.user_start[node + 1]):
            user = network.user[index]
            there = state.home[user]
            start = max(start, late[user] + network.send[network.table[node], home, there])
        if network.seconds[node, home] > 0.0:
            start = max(start, state.free[home]) + network.seconds[node, home]
            state.free[home] = start
        late[node] = start


@inlined
def push(network: Network, state: Timeline) -> None:
    """As late as it goes, and back; keep that if it is better.

    Forward-backward improvement (Li & Willis, EJOR 56, 1992).
    """
    value, old, new, late = state.figures[MAKESPAN], state.shifted, state.queue, state.ended_at
    _sort(state, state.key, 1.0, old)
    _sort(state, state.end, 1.0, new)
    _put_late(network, state, new, late)
    _sort(state, late, -1.0, new)
    for order in (new, old):
        reorder(network, state, order)
        if state.figures[MAKESPAN] <= value:
            break
