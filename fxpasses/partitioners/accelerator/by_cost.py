"""``cost_aware``: begin with each atom alone, and join the pair that makes the graph fastest, while one does.

A pair may be joined when their levels differ by one at most, or one reads from the other. Of pairs that are equally
good the last is joined, and pairs that change nothing are joined as well: fewer partitions of equal speed are better.
The steps are those of torch's ``cost_aware_partition``, so the latency is never above torch's.
"""

from __future__ import annotations

from collections.abc import Sequence

from .mapping import Clock
from .refusing import unmappable
from .workload import Filling, Group, Workload

__all__ = ["partition_by_cost"]

MOST_GROUPS = 64
"""More atoms than this are first put together into runs of the graph order: trying all pairs takes cubic time."""


def partition_by_cost(workload: Workload, clock: Clock) -> list[Group]:
    """Join pairs until none makes the graph faster.

    Raises:
        InfeasibleError: No way to join them was found that fits the devices.
    """
    if len(workload.atoms) > MOST_GROUPS:
        workload = workload.coarsened(_runs(workload, max(clock.memory) / 4))
        clock = clock.of(workload)
    groups = [workload.group([atom]) for atom in range(len(workload.atoms))]
    joined: dict[tuple[Group, Group], Group] = {}
    best = clock.seconds(groups, [-1] * len(groups))
    while True:
        found: list[Group] | None = None
        for first, second in _pairs(workload, groups):
            one, other = groups[first], groups[second]
            if (one, other) not in joined:
                joined[one, other] = workload.group((*one.atoms, *other.atoms))
            candidate = [group for group in groups if group is not one and group is not other]
            candidate.append(joined[one, other])
            tried = clock.try_out(candidate)
            if tried is not None and tried[0] <= best:
                best, found = tried[0], candidate
        if found is None:
            return settled(clock, groups)
        groups = found


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


def settled(clock: Clock, groups: list[Group]) -> list[Group]:
    """The groups with their devices.

    Raises:
        InfeasibleError: A group finds no room.
    """
    tried = clock.try_out(groups)
    if tried is None:
        raise unmappable(groups, clock.devices)
    for group, number in zip(groups, tried[1], strict=True):
        group.device_ids = [clock.devices[number].logical_id]
    return groups
