"""``kl_based``: begin with ``size_based``, and move or swap atoms between partitions while the graph becomes faster.

Source: Kernighan and Lin, "An efficient heuristic procedure for partitioning graphs", Bell System Technical Journal
49(2), 1970. Each round takes the move or swap that gains most, of all that keep the partitions free of cycles and
inside the memory of the devices.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .by_size import partition_by_size
from .mapping import Clock
from .workload import Group, Workload

__all__ = ["improved", "partition_by_swapping"]

MOST_STEPS = 2_000_000
"""Trials in all, times the atoms that each looks at."""

MOST_SWAPPED = 128
"""In a graph with more atoms, only moves to groups that an atom has an edge with are tried."""


def partition_by_swapping(workload: Workload, clock: Clock) -> list[Group]:
    """Improve the partitions by size until no move or swap does.

    Raises:
        InfeasibleError: There are no partitions by size.
    """
    return improved(workload, clock, partition_by_size(workload, clock.devices))


def improved(workload: Workload, clock: Clock, groups: list[Group]) -> list[Group]:
    """The groups, which have devices, after all moves and swaps that made the graph faster."""
    best = clock.placed_seconds(groups)
    left = MOST_STEPS // len(workload.atoms)
    while left > 0:
        found: tuple[list[Group], list[int]] | None = None
        for candidate in itertools.islice(_neighbours(workload, groups), left):
            left -= 1
            tried = clock.try_out(candidate)
            if tried is not None and tried[0] < best:
                best, found = tried[0], (candidate, tried[1])
        if found is None:
            break
        groups = found[0]
        clock.place(groups, found[1])
    return groups


def _neighbours(workload: Workload, groups: Sequence[Group]) -> Iterator[list[Group]]:
    """What one move of an atom to another group, or one swap of two, makes of the groups; without cycles."""
    home = workload.homes(groups)
    quotient = _Quotient(workload, home, len(groups))
    if len(home) <= MOST_SWAPPED:
        moves = ({atom: target} for atom in range(len(home)) for target in range(len(groups)))
        pairs = itertools.combinations(range(len(home)), 2)
    else:
        moves = ({atom: target} for atom in range(len(home)) for target in _beside(workload, home, atom))
        pairs = itertools.combinations((), 2)
    swaps = ({one: home[other], other: home[one]} for one, other in pairs)
    for to in itertools.chain(moves, swaps):
        if any(home[atom] != target for atom, target in to.items()) and quotient.stays_acyclic(to):
            yield _moved(workload, groups, home, to)


def _beside(workload: Workload, home: Sequence[int], atom: int) -> dict[int, None]:
    return dict.fromkeys(home[other] for other in (*workload.before[atom], *workload.behind[atom]))


def _moved(workload: Workload, groups: Sequence[Group], home: Sequence[int], to: Mapping[int, int]) -> list[Group]:
    """The groups after some atoms went to others; a group that is left empty is gone."""
    touched = {*to.values(), *(home[atom] for atom in to)}
    moved = []
    for number, group in enumerate(groups):
        if number in touched:
            kept = [atom for atom in group.atoms if to.get(atom, number) == number]
            kept += [atom for atom, target in to.items() if target == number != home[atom]]
            if kept:
                moved.append(workload.group(kept))
        else:
            moved.append(group)
    return moved


class _Quotient:
    """Which group waits for which, counted, so that a move can be judged by the edges of what moves."""

    def __init__(self, workload: Workload, home: Sequence[int], size: int) -> None:
        self.workload = workload
        self.home = home
        self.size = size
        self.count: Counter[tuple[int, int]] = Counter()
        for atom, before in enumerate(workload.before):
            self.count.update((home[other], home[atom]) for other in before)

    def stays_acyclic(self, to: Mapping[int, int]) -> bool:
        """Whether no group waits for itself, through others, once some atoms have moved."""
        change: Counter[tuple[int, int]] = Counter()
        for source, target in self._edges(to):
            change[self.home[source], self.home[target]] -= 1
            change[to.get(source, self.home[source]), to.get(target, self.home[target])] += 1
        behind: list[list[int]] = [[] for _ in range(self.size)]
        waiting = [0] * self.size
        for edge in (*self.count, *(edge for edge in change if edge not in self.count)):
            if edge[0] != edge[1] and self.count[edge] + change[edge] > 0:
                behind[edge[0]].append(edge[1])
                waiting[edge[1]] += 1
        ready = [number for number, count in enumerate(waiting) if not count]
        for number in ready:  # grows while it is walked
            for other in behind[number]:
                waiting[other] -= 1
                if not waiting[other]:
                    ready.append(other)
        return len(ready) == self.size

    def _edges(self, to: Mapping[int, int]) -> dict[tuple[int, int], None]:
        edges = {(other, atom): None for atom in to for other in self.workload.before[atom]}
        edges.update({(atom, other): None for atom in to for other in self.workload.behind[atom]})
        return edges
