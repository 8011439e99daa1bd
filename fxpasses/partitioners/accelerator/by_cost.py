"""``cost_aware``: begin with each atom alone, and join the pair that makes the graph fastest, while one does.

A pair may be joined when their levels differ by one at most, or one reads from the other. Of pairs that are equally
good the last is joined, and pairs that change nothing are joined as well: fewer partitions of equal speed are better.
The steps are those of torch's ``cost_aware_partition``: where bytes and atoms are those that torch sees, so is what
comes of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from fxpasses.errors import PlacementError

from .by_size import partition_by_size
from .by_swapping import improved
from .mapping import Clock
from .workload import Filling, Group, Workload

__all__ = ["partition_by_cost"]

MOST_GROUPS = 64
"""More atoms than this are first put together into runs of the graph order: trying all pairs takes cubic time."""


def partition_by_cost(workload: Workload, clock: Clock) -> list[Group]:
    """Join pairs until none makes the graph faster.

    Large graphs are joined as runs of atoms, and what comes of that is improved atom by atom.

    Raises:
        InfeasibleError: There is no way that fits the devices.
        PlacementError: None was found.
    """
    if len(workload.atoms) <= MOST_GROUPS:
        return _joined(workload, clock) or improved(workload, clock, partition_by_size(workload, clock.devices))
    coarse = workload.coarsened(_runs(workload, max(clock.memory) / 4))
    joined = [workload.refined(group) for group in _joined(coarse, clock.of(coarse)) or ()]
    try:
        by_size = partition_by_size(workload, clock.devices)
    except PlacementError:
        if not joined:
            raise
        by_size = joined
    candidates = [groups for groups in (joined, by_size) if groups]
    return improved(workload, clock, min(candidates, key=lambda groups: clock.placed(groups)[0]))


def _joined(workload: Workload, clock: Clock) -> list[Group] | None:
    """The groups with their devices; None if they do not fit."""
    groups = [workload.group([atom]) for atom in range(len(workload.atoms))]
    made: dict[tuple[Group, Group], Group] = {}
    best = clock.seconds(groups, [-1] * len(groups))
    found: list[Group] | None = groups
    while found is not None:
        groups, found = found, None
        for first, second in _pairs(workload, groups):
            one, other = groups[first], groups[second]
            if (one, other) not in made:
                made[one, other] = workload.group((*one.atoms, *other.atoms))
            candidate = [group for group in groups if group is not one and group is not other]
            candidate.append(made[one, other])
            tried = clock.try_out(candidate)
            if tried is not None and tried[0] <= best:
                best, found = tried[0], candidate
    if (settled := clock.try_out(groups)) is None:
        return None
    clock.place(groups, settled[1])
    return groups


def _pairs(workload: Workload, groups: Sequence[Group]) -> list[tuple[int, int]]:
    """The pairs that may be joined."""
    home = workload.homes(groups)
    parents = [dict.fromkeys(home[atom] for atom in group.values.values()) for group in groups]
    level = workload.levels(groups)
    return [
        (first, second)
        for first in range(len(groups))
        for second in range(first + 1, len(groups))
        if abs(level[first] - level[second]) <= 1 or first in parents[second] or second in parents[first]
    ]


def _runs(workload: Workload, room: float) -> list[Group]:
    """Runs of atoms, about equal in bytes and number; none larger than ``room``, but single atoms that are."""
    share = min(2 * workload.total_bytes() / MOST_GROUPS, room)
    longest = -(-2 * len(workload.atoms) // MOST_GROUPS)
    runs: list[list[int]] = []
    filling = Filling(workload)
    for atom in range(len(workload.atoms)):
        if not runs or filling.used + filling.extra(atom) > share or len(runs[-1]) >= longest:
            runs.append([])
            filling = Filling(workload)
        filling.add(atom)
        runs[-1].append(atom)
    return [workload.group(run) for run in runs]
