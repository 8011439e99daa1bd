"""Which groups of nodes may become one, kept up to date while they do.

See :class:`Merger`. The view of the graph that it starts from is :class:`fxpasses.dependencies.Dependencies`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from fxpasses.dependencies.ordered_list import OrderedList
from fxpasses.errors import CycleError

__all__ = ["Merger"]

_PATIENCE = 1, 3  # what searches may cost before the index is first made, and made anew, in sizes of the graph
_LANDMARKS = 240
_GLANCE = 8

Edges = list[Collection[int]]


class Merger:
    """Groups of nodes that grow by merging and never form a cycle.

    Two groups may become one unless a path leads from one to the other *through a third*: that third group would have
    to run both after and before the merged one. The answers are exact; what makes them fast is

    * **a topological order of the groups, kept up to date**: only groups between the two in the order can be on such a
      path. After a merge the order is repaired by the two-way search of Haeupler, Kavitha, Mathew, Sen, Tarjan:
      "Incremental Cycle Detection, Topological Ordering, and Strong Component Maintenance" (ACM Transactions on
      Algorithms 8, 2012, section 3), here with the cheaper side preferred, over an order-maintenance list
      (:class:`~fxpasses.dependencies.ordered_list.OrderedList`). Their bound is O(m^1/2 log n) amortised per edge;
    * **a second topological order**, made to disagree with the first as often as it can (FELINE: Veloso, Cerf, Meira,
      Zaki: "Reachability Queries in Very Large Graphs", EDBT 2014). Where the two differ on a pair there is no path at
      all, and a search only enters what lies between the two groups in both;
    * **landmarks**: for each group a bit mask of landmark nodes that it reaches and that reach it (supportive vertices,
      Hanauer, Schulz, Trummer: "O'Reach: Even Faster Reachability in Large Graphs", SEA 2021). A landmark on the way
      proves a path. Merging only adds paths, so old masks stay true;
    * **a search from both ends** for what is left, which goes on where the next step is cheaper and ends as soon as
      either end has nowhere to go.

    The second order and the landmarks are only made, and later made anew, once searches have cost about as much as
    that; so a few questions are cheap, and many pay at most twice. A question that only the search can settle costs
    O(n + m) at worst; on graphs of real models and random ones 100,000 questions with merges take a few seconds on
    100,000 nodes (``benchmarks/dependencies.py``). Edges of a merged group move small-to-large, each O(log n) times.
    Memory is O(n + m).

    Args:
        successors: For each node the nodes that wait for it; an acyclic graph.
        predecessors: The same edges, seen from the other end.
        order: A topological order of the nodes.
        error_of: Makes the error for two groups that a path (of nodes) keeps apart.
    """

    def __init__(
        self,
        successors: Sequence[Sequence[int]],
        predecessors: Sequence[Sequence[int]],
        order: Sequence[int],
        error_of: Callable[[list[int]], CycleError],
    ) -> None:
        size = len(successors)
        self._parent = list(range(size))
        self._members: dict[int, list[int]] = {}
        self._successors: Edges = list(successors)
        self._predecessors: Edges = list(predecessors)
        self._error_of = error_of
        self._edges = successors
        self._orders = [OrderedList(order, size)]
        self._own = [0] * size
        self._reaches = [0] * size
        self._reached_by = [0] * size
        self._allowed: tuple[int, int] | None = None
        self._merges = self._work = 0
        self._size = size + sum(map(len, successors))
        self._work_allowed = _PATIENCE[0] * self._size

    def find(self, node: int) -> int:
        """The group that ``node`` is in, as the number of one of its members."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def members(self, group: int) -> list[int]:
        """The nodes of the group that ``group`` (a group or any node) is in, in order."""
        root = self.find(group)
        return sorted(self._members.get(root, [root]))

    def labels(self) -> list[int]:
        """The group of each node."""
        return [self.find(node) for node in range(len(self._parent))]

    def may_merge(self, first: int, second: int) -> bool:
        """Tell whether the groups of two nodes can become one without a cycle."""
        a, b = self.find(first), self.find(second)
        if a == b:
            return True
        if self._is_blocked(a, b):
            return False
        self._allowed = (a, b)
        return True

    def blocking_path(self, first: int, second: int) -> list[int] | None:
        """A way from one group to the other through a third; None if the two may merge.

        Returns:
            Nodes. The first is in one of the two groups, the last in the other; neighbours are joined by an edge or are
            members of one group. It visits as few groups as there can be.
        """
        a, b = self.find(first), self.find(second)
        if a == b or not self._is_blocked(a, b):
            return None
        label = self._orders[0].label
        groups = self._shortest_detour(a, b) if label[a] < label[b] else self._shortest_detour(b, a)
        path: list[int] = []
        for group, following in pairwise(groups):
            edge = self._edge_between(group, following)
            path.extend(edge if path[-1:] != [edge[0]] else edge[1:])
        return path

    def _edge_between(self, group: int, following: int) -> tuple[int, int]:
        return next(
            (source, target)
            for source in self.members(group)
            for target in self._edges[source]
            if self.find(target) == following
        )

    def merge(self, first: int, second: int) -> int:
        """Make the groups of two nodes one, and give that group.

        Raises:
            CycleError: The merged group would wait for itself; ``path`` holds the way there.
        """
        a, b = self.find(first), self.find(second)
        if a == b:
            return a
        if self._allowed != (a, b) and (path := self.blocking_path(a, b)):
            raise self._error_of(path)
        if self._degree(a) < self._degree(b):
            a, b = b, a
        self._allowed = None
        self._merges += 1
        for order in self._orders:
            self._contract(order, a, b)
        self._parent[b] = a
        self._members.setdefault(a, [a]).extend(self._members.pop(b, [b]))
        _move_edges(self._successors, self._predecessors, b, a)
        _move_edges(self._predecessors, self._successors, b, a)
        for masks in (self._own, self._reaches, self._reached_by):
            masks[a] |= masks[b]
        return a

    def _degree(self, group: int) -> int:
        return len(self._successors[group]) + len(self._predecessors[group])

    def _is_blocked(self, a: int, b: int) -> bool:
        """Tell whether a path leads from one group to the other through a third."""
        x, y = self._orders[0].label, self._orders[-1].label
        if x[a] > x[b]:
            a, b = b, a
        if y[a] > y[b]:
            return False
        if self._reaches[a] & self._reached_by[b] & ~(self._own[a] | self._own[b]):
            return True
        if self._work > self._work_allowed and (self._merges or len(self._orders) == 1):
            self._renew_index()
            return self._is_blocked(a, b)
        return self._search(a, b)

    def _search(self, a: int, b: int) -> bool:
        """Search from both ends, always where the next step looks cheaper, inside the window of both orders."""
        x, y = self._orders[0].label, self._orders[-1].label
        successors, predecessors, reaches, reached_by = (
            self._successors,
            self._predecessors,
            self._reaches,
            self._reached_by,
        )
        low_x, high_x, low_y, high_y = x[a], x[b], y[a], y[b]
        from_a, to_b = reaches[a], reached_by[b]
        down, up = [a], [b]
        seen_down, seen_up = {a}, {b}
        next_down = next_up = 0
        cost_down, cost_up = len(successors[a]), len(predecessors[b])
        blocked = False
        while not blocked:
            if cost_down <= cost_up:
                node = down[next_down]
                for other in successors[node]:
                    if x[other] <= high_x and y[other] <= high_y and other not in seen_down:
                        if other in seen_up:
                            if other == b and node == a:
                                continue
                            blocked = True
                            break
                        if reaches[other] & to_b:
                            blocked = True
                            break
                        seen_down.add(other)
                        down.append(other)
                next_down += 1
                if next_down == len(down):
                    break
                cost_down += len(successors[down[next_down]]) + 1
            else:
                node = up[next_up]
                for other in predecessors[node]:
                    if x[other] >= low_x and y[other] >= low_y and other not in seen_up:
                        if other in seen_down:
                            if other == a and node == b:
                                continue
                            blocked = True
                            break
                        if reached_by[other] & from_a:
                            blocked = True
                            break
                        seen_up.add(other)
                        up.append(other)
                next_up += 1
                if next_up == len(up):
                    break
                cost_up += len(predecessors[up[next_up]]) + 1
        self._work += min(cost_down, cost_up) * 2
        return blocked

    def _shortest_detour(self, a: int, b: int) -> list[int]:
        """The groups on a shortest path from ``a`` through others to ``b``; there is one."""
        label = self._orders[0].label
        came_from = dict.fromkeys(sorted(set(self._successors[a]) - {b}), a)
        queue = list(came_from)
        for node in queue:
            for other in sorted(self._successors[node]):
                if other == b:
                    path = [b, node]
                    while path[-1] != a:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                if other not in came_from and label[other] < label[b]:
                    came_from[other] = node
                    queue.append(other)
        raise ValueError(f"no path leads from group {a} through another to group {b}")

    def _contract(self, order: OrderedList, keep: int, drop: int) -> None:
        """Let ``keep`` stand for both in a topological order, and repair the order around it."""
        label = order.label
        first, second = (keep, drop) if label[keep] < label[drop] else (drop, keep)
        earlier, later, anchor = self._misplaced(label, first, second)
        if anchor in (first, second):
            order.remove(first if anchor == second else second)
            if anchor != keep:
                order.replace(anchor, keep)
            order.move_after(order.previous(keep), earlier)
            order.move_after(keep, later)
            return
        moved = [*earlier, keep, *later]
        order.remove(drop)
        for item in moved:
            order.remove(item)
        order.insert_after(order.previous(anchor), moved)

    def _misplaced(self, label: list[int], first: int, second: int) -> tuple[list[int], list[int], int]:
        """Find what must move so that ``first`` and ``second`` can stand at one place.

        The search goes up the order from ``first`` and down the order from ``second`` until the two meet, expanding the
        cheaper side, and never past the place where they meet.

        Returns:
            What must stand before the merged group, what must stand behind it (both in order), and the group before
            which all of this belongs; or that is ``first`` or ``second``, whose place it takes.
        """
        if _none_between(label, first, second, self._successors[first]):
            return [], [], second
        if _none_between(label, first, second, self._predecessors[second]):
            return [], [], first
        down, up = [(label[first], first)], [(-label[second], second)]
        queued_down, queued_up = {first, second}, {first, second}
        later: list[int] = []
        earlier: list[int] = []
        cost_down = cost_up = 0
        while down and up and down[0][0] < -up[0][0]:
            node, other = down[0][1], up[0][1]
            degree_down, degree_up = len(self._successors[node]), len(self._predecessors[other])
            if cost_down + degree_down <= cost_up + degree_up:
                cost_down += degree_down + 1
                heappop(down)
                later.append(node)
                for successor in self._successors[node]:
                    if label[successor] < label[second] and successor not in queued_down:
                        queued_down.add(successor)
                        heappush(down, (label[successor], successor))
            else:
                cost_up += degree_up + 1
                heappop(up)
                earlier.append(other)
                for predecessor in self._predecessors[other]:
                    if label[predecessor] > label[first] and predecessor not in queued_up:
                        queued_up.add(predecessor)
                        heappush(up, (-label[predecessor], predecessor))
        later, earlier = later[1:], earlier[:0:-1]
        if not down:
            return [], later, second
        if not up:
            return earlier, [], first
        anchor = down[0][1]
        return [node for node in earlier if label[node] > label[anchor]], later, anchor

    def _renew_index(self) -> None:
        """Make the second order and the landmarks anew, for the groups as they are now."""
        self._work = self._merges = 0
        self._work_allowed = _PATIENCE[1] * self._size
        order = self._orders[0].items()
        contrary = self._contrary_order(order)
        if len(self._orders) == 1:
            order = self._contrary_order(contrary)
            self._orders = [OrderedList(order, len(self._parent))]
        self._orders[1:] = [OrderedList(contrary, len(self._parent))]
        for node in order:
            self._own[node] = self._reaches[node] = self._reached_by[node] = 0
        for bit, node in enumerate(self._landmarks(order)):
            self._own[node] = 1 << bit
        for masks, rows, sequence in (
            (self._reaches, self._successors, reversed(order)),
            (self._reached_by, self._predecessors, iter(order)),
        ):
            for node in sequence:
                mask = self._own[node]
                for other in rows[node]:
                    mask |= masks[other]
                masks[node] = mask

    def _contrary_order(self, order: list[int]) -> list[int]:
        """A topological order that always takes the ready group that stands last in ``order``."""
        place = [0] * len(self._parent)
        for number, node in enumerate(order):
            place[node] = -number
        waiting = [len(row) for row in self._predecessors]
        ready = [place[node] for node in order if not waiting[node]]
        heapify(ready)
        result = []
        while ready:
            node = order[-heappop(ready)]
            result.append(node)
            for successor in self._successors[node]:
                waiting[successor] -= 1
                if not waiting[successor]:
                    heappush(ready, place[successor])
        return result

    def _landmarks(self, order: list[int]) -> list[int]:
        """From each stretch of the order the group with most neighbours on both sides."""
        weight = [len(before) * len(after) for before, after in zip(self._predecessors, self._successors, strict=True)]
        stretch = max(1, -(-len(order) // _LANDMARKS))
        return [max(order[start : start + stretch], key=weight.__getitem__) for start in range(0, len(order), stretch)]


def _none_between(label: list[int], first: int, second: int, neighbours: Collection[int]) -> bool:
    """Tell at a glance that no neighbour stands between two groups; False if that would take a longer look."""
    if len(neighbours) > _GLANCE:
        return False
    low, high = label[first], label[second]
    return not any(low < label[other] < high for other in neighbours)


def _move_edges(forward: Edges, backward: Edges, old: int, new: int) -> None:
    """Let ``new`` take over the edges that leave ``old``."""
    mine = _as_set(forward, new)
    for neighbour in forward[old]:
        back = _as_set(backward, neighbour)
        back.discard(old)
        if neighbour != new:
            back.add(new)
            mine.add(neighbour)
    mine.discard(old)
    forward[old] = ()


def _as_set(rows: Edges, group: int) -> set[int]:
    """The neighbours of a group as a set of its own; until it is first changed, a row is the caller's."""
    row = rows[group]
    if not isinstance(row, set):
        rows[group] = row = set(row)
    return row
