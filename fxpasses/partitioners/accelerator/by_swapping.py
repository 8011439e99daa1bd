"""``kl_based``: begin with ``size_based``, and move or swap atoms between partitions while the graph becomes faster.

Source: Kernighan and Lin, "An efficient heuristic procedure for partitioning graphs", Bell System Technical Journal
49(2), 1970. Each step takes the move or swap that gains most or loses least, of all that keep the partitions free of
cycles and inside the memory of the devices; a round ends with the first step that is faster than all before. In the
end partitions go to other devices, while that is faster.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import attrs

from .by_size import partition_by_size
from .mapping import Clock, Placed
from .workload import Group, Workload

__all__ = ["improved", "partition_by_swapping"]

MOST_STEPS = 500_000
"""Trials in all, times the atoms that each looks at."""

LEAST_DEPTH = 3
"""Steps of a round that may lose time before one gains; small graphs take more (``DEEP`` over their atoms)."""

DEEP = 100

MOST_REMEMBERED = 5_000_000
"""Groups that are remembered, times the atoms of the graph."""

FEW = 16
"""In a graph with no more atoms, there are two more descents."""

MOST_SWAPPED = 128
"""In a graph with more atoms, there is one descent, by moves to groups that an atom has an edge with."""


def partition_by_swapping(workload: Workload, clock: Clock) -> list[Group]:
    """Improve the partitions by size until no move or swap does.

    Raises:
        PlacementError: No partitions by size were found (InfeasibleError where there are none).
    """
    return improved(workload, clock, partition_by_size(workload, clock.devices))


def improved(workload: Workload, clock: Clock, groups: list[Group]) -> list[Group]:
    """The groups, which have devices, after all rounds of moves and swaps that made the graph faster."""
    search = _Search(workload, clock, len(groups), MOST_STEPS // len(workload.atoms))
    start = clock.placed(groups)
    starts = [start]
    atoms = range(len(workload.atoms))
    if len(atoms) <= MOST_SWAPPED:
        starts += [search.sweep(start, atoms), search.lenient(start, swaps_first=True)]
    if len(atoms) <= FEW:
        starts += [search.sweep(start, atoms[::-1]), search.lenient(start, swaps_first=False)]
    ends = [search.to_the_end(each, 1) for place, each in enumerate(starts) if place == 0 or each is not start]
    best = min(ends, key=operator.itemgetter(0))
    found = search.to_the_end(best, max(LEAST_DEPTH, DEEP // len(atoms)))
    _, groups, device_of = search.on_faster_devices(found)
    clock.place(groups, device_of)
    return groups


@attrs.define
class _Search:
    """Rounds of moves and swaps.

    Args:
        workload: The graph.
        clock: Tells the seconds.
        slots: The largest number of groups.
        trials: How many moves and swaps may still be tried.
    """

    workload: Workload
    clock: Clock
    slots: int
    trials: int
    _made: dict[tuple[int, ...], Group] = attrs.field(factory=dict, init=False)

    def to_the_end(self, placed: Placed, depth: int) -> Placed:
        """Rounds of at most ``depth`` steps until none is faster."""
        while (found := self._round(placed, depth)) is not None:
            placed = found
        return placed

    def sweep(self, placed: Placed, atoms: Iterable[int]) -> Placed:
        """For each atom in turn, its best move or swap, if that is faster."""
        for atom in atoms:
            step = self._best_step(placed[1], (), atom)
            if step is not None and step[0][0] < placed[0]:
                placed = step[0]
        return placed

    def lenient(self, placed: Placed, *, swaps_first: bool) -> Placed:
        """For each atom in turn, the best step to a group, if moving it there alone beats the last such move.

        That is how torch's partitioner goes on; it may lose time on the way. Which of equally good steps it takes is
        chance there; here a swap wins or a move does.
        """
        least = placed[0]
        for atom in range(len(self.workload.atoms)):
            moves: dict[int, Placed] = {}
            swaps: dict[int, Placed] = {}
            for to in _steps(self.workload, placed[1], len(placed[1]), (), atom):
                found, target = (moves if len(to) == 1 else swaps), to[atom]
                candidate = self._moved(placed[1], to)
                tried = self.clock.try_out(candidate)
                if tried is not None and (target not in found or tried[0] < found[target][0]):
                    found[target] = (tried[0], candidate, tried[1])
            for target, move in sorted(moves.items()):
                if move[0] < least:
                    least, swap = move[0], swaps.get(target, move)
                    better = swap[0] <= move[0] if swaps_first else swap[0] < move[0]
                    placed = swap if better else move
        return placed

    def on_faster_devices(self, placed: Placed) -> Placed:
        """Each group on another device, while that is faster: the fullest one may be far from what a group reads."""
        while (found := self._faster_device(placed)) is not None:
            placed = found
        return placed

    def _faster_device(self, placed: Placed) -> Placed | None:
        seconds, groups, device_of = placed
        for number, device in itertools.product(range(len(groups)), range(len(self.clock.memory))):
            if device == device_of[number]:
                continue
            self.trials -= 1
            if self.trials < 0:
                return None
            homes = [*device_of[:number], device, *device_of[number + 1 :]]
            tried = self.clock.seconds(groups, homes)
            if tried < seconds and all(self._holds(groups, homes, each) for each in (device, device_of[number])):
                return tried, groups, homes
        return None

    def _holds(self, groups: Sequence[Group], homes: Sequence[int], device: int) -> bool:
        """Whether a device has room for all its groups; what one reads of another there is not sent."""
        there = [atom for group, home in zip(groups, homes, strict=True) if home == device for atom in group.atoms]
        return self._group(there).used <= self.clock.memory[device]

    def _round(self, placed: Placed, depth: int) -> Placed | None:
        """What is faster: the first gain, or what a few steps with losses on the way lead to.

        An atom that was touched is locked until the round is over.
        """
        best, groups, _ = placed
        locked: set[int] = set()
        for _ in range(min(depth, len(self.workload.atoms))):
            step = self._best_step(groups, locked)
            if step is None:
                return None
            found, touched = step
            if found[0] < best:
                return found
            groups = found[1]
            locked |= touched
        return None

    def _best_step(
        self, groups: list[Group], locked: Collection[int], atom: int | None = None
    ) -> tuple[Placed, set[int]] | None:
        best: tuple[Placed, set[int]] | None = None
        for to in _steps(self.workload, groups, self.slots, locked, atom):
            self.trials -= 1
            if self.trials < 0:
                return None
            candidate = self._moved(groups, to)
            tried = self.clock.try_out(candidate)
            if tried is not None and (best is None or tried[0] < best[0][0]):
                best = (tried[0], candidate, tried[1]), set(to)
        return best

    def _moved(self, groups: Sequence[Group], to: Mapping[int, int]) -> list[Group]:
        """The groups after some atoms went to others; a group that is left empty is gone."""
        moved = []
        for number, group in enumerate(groups):
            stay = [atom for atom in group.atoms if to.get(atom, number) == number]
            come = [atom for atom, target in to.items() if target == number and atom not in group.atoms]
            if len(stay) == len(group.atoms) and not come:
                moved.append(group)
            elif stay or come:
                moved.append(self._group([*stay, *come]))
        if fresh := [atom for atom, target in to.items() if target == len(groups)]:
            moved.append(self._group(fresh))
        return moved

    def _group(self, atoms: list[int]) -> Group:
        key = tuple(sorted(atoms))
        if key not in self._made:
            if len(self._made) * len(self.workload.atoms) > MOST_REMEMBERED:
                self._made.clear()
            self._made[key] = self.workload.group(key)
        return self._made[key]


def _steps(
    workload: Workload, groups: Sequence[Group], slots: int, locked: Collection[int], only: int | None = None
) -> Iterator[dict[int, int]]:
    """Moves of one atom to another group or a new one, then swaps of two; all that make no cycle.

    Args:
        workload: The graph.
        groups: Its groups.
        slots: The largest number of groups.
        locked: Atoms that stay.
        only: The atom that all steps are about; None for all atoms.
    """
    home = workload.homes(groups)
    quotient = _Quotient(workload, home, len(groups) + 1)
    free = [atom for atom in range(len(home)) if atom not in locked]
    places = range(min(len(groups) + 1, slots))
    small = len(home) <= MOST_SWAPPED
    moving = free if only is None else [only]
    moves = ({atom: to} for atom in moving for to in (places if small else _beside(workload, home, atom)))
    swapping = free if small else []
    pairs = itertools.combinations(swapping, 2) if only is None else ((only, other) for other in swapping)
    swaps = ({one: home[other], other: home[one]} for one, other in pairs)
    for step in itertools.chain(moves, swaps):
        if any(home[atom] != to for atom, to in step.items()) and quotient.stays_acyclic(step):
            yield step


def _beside(workload: Workload, home: Sequence[int], atom: int) -> dict[int, None]:
    return dict.fromkeys(home[other] for other in (*workload.before[atom], *workload.behind[atom]))


class _Quotient:
    """Which group waits for which, counted, so that a step can be judged by the edges of the atoms that move."""

    def __init__(self, workload: Workload, home: Sequence[int], size: int) -> None:
        self.workload = workload
        self.home = home
        self.size = size
        self.count = [0] * (size * size)
        """The edges from one group to another, at source times ``size`` plus target."""
        for atom, before in enumerate(workload.before):
            for other in before:
                self.count[home[other] * size + home[atom]] += 1
        self.behind = [0] * size
        """For each group a bit for each other that waits for it."""
        for edge, count in enumerate(self.count):
            self._see(self.behind, edge, count)

    def stays_acyclic(self, to: Mapping[int, int]) -> bool:
        """Whether no group waits for itself, through others, once some atoms have moved."""
        gone, come = self._changes(to)
        count, behind = self.count, self.behind.copy()
        for edge in gone:
            count[edge] -= 1
        for edge in come:
            count[edge] += 1
        for edge in {*gone, *come}:
            self._see(behind, edge, count[edge])
        for edge in gone:
            count[edge] += 1
        for edge in come:
            count[edge] -= 1
        left = (1 << self.size) - 1
        while left:
            last = left
            for number, others in enumerate(behind):
                if not others & left:
                    left &= ~(1 << number)
            if left == last:
                return False
        return True

    def _see(self, behind: list[int], edge: int, count: int) -> None:
        source, target = divmod(edge, self.size)
        if source != target and count > 0:
            behind[source] |= 1 << target
        else:
            behind[source] &= ~(1 << target)

    def _changes(self, to: Mapping[int, int]) -> tuple[list[int], list[int]]:
        """The edges between groups that go when atoms move, and those that come, one for each edge of an atom."""
        home, size = self.home, self.size
        gone, come = list[int](), list[int]()
        for atom, target in to.items():
            was = home[atom]
            for other in self.workload.before[atom]:
                gone.append(home[other] * size + was)
                come.append(to.get(other, home[other]) * size + target)
            for other in self.workload.behind[atom]:
                if other not in to:  # else it is one of those before
                    gone.append(was * size + home[other])
                    come.append(target * size + home[other])
        return gone, come
