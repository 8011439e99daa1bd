"""Cut an order of atoms into one run for each device, with the bytes that the partitioner counts.

What runs need is known for all starts and stops, so this finds a cut wherever the order has one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fxpasses.devices import Device

from .bookkeeping import memory_of
from .workload import Group, Workload

__all__ = ["cut_order", "orders"]

MOST_STATES = 20_000_000
"""Ways to have used up devices, those of equal memory being the same, times the atoms."""

_Used = tuple[int, ...]
"""How many devices of each memory have got a run."""


def orders(workload: Workload) -> Iterator[Sequence[int]]:
    """The graph's own order, and the two in which what leads to a node, or follows from it, stands together."""
    atoms = range(len(workload.atoms))
    yield atoms
    yield _depth_first(atoms, workload.before)
    yield _depth_first(atoms[::-1], workload.behind)[::-1]


def _depth_first(atoms: Sequence[int], neighbours: Sequence[Sequence[int]]) -> list[int]:
    """Each atom behind all its neighbours, as late as they allow. O(atoms and edges)."""
    order: dict[int, None] = {}
    for root in atoms[::-1]:
        waiting = [root]
        while waiting:
            atom = waiting[-1]
            missing = [other for other in neighbours[atom] if other not in order]
            if missing and atom not in order:
                waiting.append(missing[-1])
            else:
                order[waiting.pop()] = None
    return list(order)


def cut_order(workload: Workload, order: Sequence[int], devices: Sequence[Device]) -> list[Group] | None:
    """One run of an order for each device, on as few devices as can be; None if there is no such cut.

    Args:
        workload: The graph.
        order: All atoms, in an order in which they can run.
        devices: The devices. With very many of different memory nothing is tried.

    O(n^2 + d n s) for n atoms and d memories, of which s choices may be used up, in numpy.
    """
    by_memory: dict[float, list[Device]] = {}
    for device in devices:
        by_memory.setdefault(memory_of(device), []).append(device)
    choices = [range(len(alike) + 1) for alike in by_memory.values()]
    if math.prod(map(len, choices)) * len(order) > MOST_STATES:
        return None
    stops = _furthest_stops(workload, order, list(by_memory))
    reached: dict[_Used, NDArray[np.bool_]] = {}
    for used in sorted(itertools.product(*choices), key=sum):
        reached[used] = _reached(used, reached, stops)
        if reached[used][-1]:
            return _runs(workload, order, used, reached, stops, list(by_memory.values()))
    return None


def _furthest_stops(workload: Workload, order: Sequence[int], memories: Sequence[float]) -> list[NDArray[np.int64]]:
    """For each memory and each start, where the longest run that fits stops: a longer one never needs less."""
    added, left_out = _weights(workload, order)
    stops = [np.zeros(len(order), np.int64) for _ in memories]
    for start in range(len(order)):
        needed = np.cumsum(added[start:])
        for memory, found in zip(memories, stops, strict=True):
            found[start] = start + int(np.searchsorted(needed, memory, side="right"))
        for place, size in left_out[start]:
            added[place] += size
    return stops


def _weights(workload: Workload, order: Sequence[int]) -> tuple[NDArray[np.int64], list[list[tuple[int, int]]]]:
    """Bytes that each place adds to a run from the start, and what places add more if one before them is left out."""
    place_of = {atom: place for place, atom in enumerate(order)}
    added = np.zeros(len(order), np.int64)
    left_out: list[list[tuple[int, int]]] = [[] for _ in order]
    held_at: dict[Hashable, int] = {}
    for place, atom in enumerate(order):
        added[place] = workload.own[atom]
        for source, size in workload.reads[atom].items():
            left_out[place_of[source]].append((place, size))
        for key, size in workload.items[atom].items():
            if key in held_at:
                left_out[held_at[key]].append((place, size))
            else:
                added[place] += size
            held_at[key] = place
    return added, left_out


def _before(used: _Used, kind: int) -> _Used:
    return (*used[:kind], used[kind] - 1, *used[kind + 1 :])


def _reached(
    used: _Used, reached: dict[_Used, NDArray[np.bool_]], stops: Sequence[NDArray[np.int64]]
) -> NDArray[np.bool_]:
    """The places up to which runs on some devices can take everything."""
    length = len(stops[0])
    opened = np.zeros(length + 2, np.int64)
    if not any(used):
        opened[:2] = 1, -1
    for kind, count in enumerate(used):
        if count:
            starts = np.flatnonzero(reached[_before(used, kind)][:length])
            opened[starts + 1] += 1
            np.subtract.at(opened, stops[kind][starts] + 1, 1)
    here: NDArray[np.bool_] = np.cumsum(opened)[: length + 1] > 0
    return here


def _runs(
    workload: Workload,
    order: Sequence[int],
    used: _Used,
    reached: dict[_Used, NDArray[np.bool_]],
    stops: Sequence[NDArray[np.int64]],
    devices: Sequence[Sequence[Device]],
) -> list[Group]:
    """The runs of a cut, found from the last to the first."""
    groups: list[Group] = []
    stop = len(order)
    while stop:
        start, kind = min(_starts(used, stop, reached, stops))
        used = _before(used, kind)
        group = workload.group(order[start:stop])
        group.device_ids = [devices[kind][used[kind]].logical_id]
        groups.insert(0, group)
        stop = start
    return groups


def _starts(
    used: _Used, stop: int, reached: dict[_Used, NDArray[np.bool_]], stops: Sequence[NDArray[np.int64]]
) -> Iterator[tuple[int, int]]:
    """Where the run that stops somewhere may start, at the earliest, for each kind of device that may take it."""
    for kind, count in enumerate(used):
        if count:
            starts = np.flatnonzero(reached[_before(used, kind)][:stop] & (stops[kind][:stop] >= stop))
            if len(starts):
                yield int(starts[0]), kind
