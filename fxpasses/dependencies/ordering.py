"""Topological orders that leave alone what already stands right.

Functions over plain numbers: ``successors[i]`` and ``predecessors[i]`` are the neighbours of node i. Graphs go through
:meth:`fxpasses.dependencies.Dependencies.stable_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from fxpasses.errors import CycleError

__all__ = ["find_cycle", "first_ready_order", "repaired_order"]

Rows = Sequence[Sequence[int]]
ErrorOf = Callable[[list[int]], CycleError]

_EFFORT = 8


def repaired_order(
    order: Sequence[int], successors: Rows, predecessors: Rows, weights: Sequence[int], error_of: ErrorOf
) -> list[int]:
    """Change ``order`` into a topological one by moving few nodes.

    Takes the edges that ``order`` breaks one at a time. Say u must precede v but stands behind it. Between the two, let
    F be v and what waits for it, B be u and what it waits for. In any legal order some cut splits the stretch so that
    all of F before the cut and all of B behind it have moved; the cut that moves the least weight is taken, which is
    the minimum for that edge (the cuts of Haeupler et al., "Incremental Cycle Detection, Topological Ordering, and
    Strong Component Maintenance", 2012, there taken where the search is cheapest). On a tie F moves down. The least
    number of moves for many broken edges together is a feedback vertex set, NP-hard; this is a good answer.

    A broken edge costs O(nodes and edges between its ends). When all together have cost more than a few times the
    graph's size, the rest is done by :func:`first_ready_order`: O((n + m) log n) in the worst case, and O(n + m) for an
    order that is nearly right.

    Args:
        order: All nodes, in the order to repair.
        successors: The nodes that must stand behind each node.
        predecessors: The same edges from the other end.
        weights: How much it counts to move each node.
        error_of: Makes the error for a cycle.

    Raises:
        CycleError: No order is legal; ``path`` is a cycle.
    """
    order = list(order)
    place = _places(order)
    broken = [(u, v) for v in order for u in predecessors[v] if place[u] >= place[v]]
    budget = _EFFORT * (len(order) + sum(map(len, successors))) if broken else 0
    for u, v in broken:
        if place[u] < place[v]:
            continue  # an earlier move has put it right
        if budget < 0:
            return first_ready_order(order, successors, predecessors, error_of)
        after = _between(v, u, successors, place)
        if u in after:
            raise error_of([*_walk_back(after, u), v])
        before = _between(u, v, predecessors, place)
        budget -= (
            place[u] - place[v] + sum(len(successors[x]) for x in after) + sum(len(predecessors[x]) for x in before)
        )
        _move_apart(order, place, before, after, weights)
    return order


def first_ready_order(order: Sequence[int], successors: Rows, predecessors: Rows, error_of: ErrorOf) -> list[int]:
    """The topological order that always takes the ready node that stands first in ``order`` (Kahn 1962, with a heap).

    Raises:
        CycleError: There is none; ``path`` is a cycle.
    """
    place = _places(order)
    waiting = [len(row) for row in predecessors]
    ready = [place[node] for node in order if not waiting[node]]
    heapify(ready)
    result: list[int] = []
    while ready:
        node = order[heappop(ready)]
        result.append(node)
        for successor in successors[node]:
            waiting[successor] -= 1
            if not waiting[successor]:
                heappush(ready, place[successor])
    if len(result) < len(order) and (cycle := find_cycle(successors, predecessors)):
        raise error_of(cycle)
    return result


def find_cycle(successors: Rows, predecessors: Rows) -> list[int] | None:
    """A cycle, its first node repeated at the end, the shortest through that node; None if there is none. O(n + m)."""
    waiting = [len(row) for row in predecessors]
    queue = [node for node, count in enumerate(waiting) if not count]
    for node in queue:
        for successor in successors[node]:
            waiting[successor] -= 1
            if not waiting[successor]:
                queue.append(successor)
    if len(queue) == len(predecessors):
        return None
    node = next(number for number, count in enumerate(waiting) if count)
    walk: dict[int, None] = {}
    while node not in walk:  # backwards among those that never became ready: this must come round
        walk[node] = None
        node = next(source for source in predecessors[node] if waiting[source])
    return _shortest_cycle(node, successors)


def _shortest_cycle(start: int, successors: Rows) -> list[int]:
    """The shortest cycle through ``start``, which is on one."""
    came_from: dict[int, int] = {}
    queue = [start]
    for node in queue:
        for successor in successors[node]:
            if successor == start:
                return [*_walk_back({start: start, **came_from}, node), start]
            if successor not in came_from:
                came_from[successor] = node
                queue.append(successor)
    raise ValueError(f"node {start} is on no cycle")


def _places(order: Sequence[int]) -> list[int]:
    place = [0] * len(order)
    for number, node in enumerate(order):
        place[node] = number
    return place


def _between(start: int, goal: int, rows: Rows, place: list[int]) -> dict[int, int]:
    """What hangs on ``start`` by edges that the order keeps, no farther than ``goal``; with where each came from."""
    upwards = place[goal] > place[start]
    came_from = {start: start}
    queue = [start]
    for node in queue:
        low, high = (place[node], place[goal]) if upwards else (place[goal], place[node])
        for other in rows[node]:
            if other not in came_from and low <= place[other] <= high:
                came_from[other] = node
                queue.append(other)
    return came_from


def _move_apart(
    order: list[int], place: list[int], before: dict[int, int], after: dict[int, int], weights: Sequence[int]
) -> None:
    """Reorder the stretch that holds both so that all of ``before`` precedes all of ``after``."""
    mixed = sorted([*before, *after], key=place.__getitem__)
    low, high = place[mixed[0]], place[mixed[-1]]
    cost = best = sum(weights[node] for node in after)
    cut = high + 1
    for node in reversed(mixed):
        cost += weights[node] if node in before else -weights[node]
        if cost < best:
            best, cut = cost, place[node]
    down = [node for node in mixed if node in before and place[node] >= cut]
    up = [node for node in mixed if node in after and place[node] < cut]
    moved = {*down, *up}
    order[low : high + 1] = [
        *(node for node in order[low:cut] if node not in moved),
        *down,
        *up,
        *(node for node in order[cut : high + 1] if node not in moved),
    ]
    for number in range(low, high + 1):
        place[order[number]] = number


def _walk_back(came_from: dict[int, int], node: int) -> list[int]:
    path = [node]
    while came_from[path[-1]] != path[-1]:
        path.append(came_from[path[-1]])
    return path[::-1]
