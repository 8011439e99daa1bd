"""Which groups of nodes may become one, kept up to date while they do.

See :class:`Merger`. The view of the graph that it starts from is :class:`fxpasses.dependencies.Dependencies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import CycleError

__all__ = ["Merger"]


class Merger:
    """Groups of nodes that grow by merging and never form a cycle.

    Args:
        successors: For each node the nodes that wait for it; an acyclic graph.
        predecessors: The same edges, seen from the other end.
        describe: Turns a path into text for error messages.
    """

    def __init__(
        self,
        successors: Sequence[Sequence[int]],
        predecessors: Sequence[Sequence[int]],
        describe: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        self._parent = list(range(len(successors)))
        self._members: dict[int, list[int]] = {}
        self._successors = [set(row) for row in successors]
        self._predecessors = [set(row) for row in predecessors]
        self._describe = describe or (lambda path: " -> ".join(map(str, path)))

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
        return a == b or (self._group_path(a, b) is None and self._group_path(b, a) is None)

    def blocking_path(self, first: int, second: int) -> list[int] | None:
        """The groups on a path from one to the other through a third, None if they may merge."""
        a, b = self.find(first), self.find(second)
        if a == b:
            return None
        return self._group_path(a, b) or self._group_path(b, a)

    def merge(self, first: int, second: int) -> int:
        """Make the groups of two nodes one, and give that group.

        Raises:
            CycleError: The merged group would wait for itself; ``path`` holds the way.
        """
        a, b = self.find(first), self.find(second)
        if a == b:
            return a
        if path := self.blocking_path(a, b):
            raise CycleError(f"these groups cannot merge: {self._describe(path)}", path=path)
        if len(self._successors[a]) + len(self._predecessors[a]) < len(self._successors[b]) + len(
            self._predecessors[b]
        ):
            a, b = b, a
        self._parent[b] = a
        self._members.setdefault(a, [a]).extend(self._members.pop(b, [b]))
        self._move_edges(self._successors, self._predecessors, b, a)
        self._move_edges(self._predecessors, self._successors, b, a)
        return a

    @staticmethod
    def _move_edges(forward: list[set[int]], backward: list[set[int]], old: int, new: int) -> None:
        for neighbour in forward[old]:
            backward[neighbour].discard(old)
            if neighbour != new:
                backward[neighbour].add(new)
                forward[new].add(neighbour)
        forward[old] = set()

    def _group_path(self, start: int, goal: int) -> list[int] | None:
        came_from = dict.fromkeys(self._successors[start], start)
        came_from.pop(goal, None)
        queue = list(came_from)
        for node in queue:
            for successor in self._successors[node]:
                if successor == goal:
                    path = [goal, node]
                    while path[-1] != start:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                if successor not in came_from:
                    came_from[successor] = node
                    queue.append(successor)
        return None
