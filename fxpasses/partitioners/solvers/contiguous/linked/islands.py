"""Devices with the devices before and after them: what pipelines cost at least where links differ.

Some values must go to the device that comes next: those that every unit uses that can run next. And some must come from
the device before: those of the last unit, where an ideal has only one. They are charged over the link between the two,
the others over the best link to any device that is left, or from any that was used. So the states of the search say
also which device ran last, and which comes next; devices that can take each other's place, as those of one island of
fast links, are one class.

A value can also pass a device by: it is made before and used after what the device runs. Few do, since most values are
used soon, and a device that such a value passes runs little. So the states say of each device whether a value passes it
that does not reach far. Where none passes the device before and the one after, all these values come from the one and
go to the other, and are charged over those two links.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.absorbing import ordered
from fxpasses.partitioners.solvers.contiguous.ideals.classes import Sending, device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.searching import Search
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats

__all__ = ["all_uses", "between_devices", "islands_of"]

MAX_KINDS = 600
MAX_STATES = 1500
LOCAL = 0.5
"""What share of the work of a device a value may reach over that is not to pass a device by."""

Key = tuple[tuple[int, ...], int, int, bool, bool]
"""How many devices of each island are used, which one ran last, which comes next (-1 for none); whether
values pass them by."""
Kind = tuple[int, int, int, tuple[int, ...], tuple[int, ...], bool, bool]
"""An island, the one before, the one after, all that have devices before, and all that have some after; whether its
device is passed by, and whether the one before and the one after are not."""


def between_devices(search: Search) -> Search | None:
    """The search with a class for each device, the one before it and the one after it; None if these are too many."""
    islands = islands_of(search)
    sizes = tuple(map(len, islands))
    if int(np.prod([size + 1 for size in sizes])) * len(sizes) ** 2 > MAX_STATES:
        return None
    moves = _moves(sizes)
    found = _classes(search, islands, list(dict.fromkeys(kind for own in moves.values() for kind, _there in own)))
    if found is None:
        return None
    number, classes = found
    first = [next(place for kind, place in number.items() if kind[0] == island) for island in range(len(sizes))]
    used = np.zeros((len(moves), len(classes)), dtype=np.int64)
    for row, key in enumerate(moves):
        used[row, first] = key[0]
    there = {key: row for row, key in enumerate(moves)}
    states = States(
        used,
        tuple(tuple((number[kind], there[after]) for kind, after in own) for own in moves.values()),
        tuple(group.devices for group in classes),
        (-1,) * len(moves),
        tuple(next(first[kind[0]] for kind, own in number.items() if own == place) for place in range(len(classes))),
    )
    return attrs.evolve(search, classes=classes, given=states)


def islands_of(search: Search) -> list[tuple[int, ...]]:
    """Devices that are alike, and that have the same links to each other device."""
    found: list[list[int]] = []
    for group in device_classes(search.tables, search.units):
        own: list[list[int]] = []
        for device in group.devices:
            home = next((island for island in own if _swap(search.tables, island[0], device)), None)
            if home is None:
                own.append([device])
            else:
                home.append(device)
        found += own
    return [tuple(island) for island in found]


def _swap(tables: CostTables, first: int, second: int) -> bool:
    """Whether two devices can take each other's place."""
    order = np.arange(len(tables.memory))
    order[[first, second]] = second, first
    apart = ~np.eye(len(order), dtype=bool)
    return all(bool((table[np.ix_(order, order)] == table)[apart].all()) for table in (tables.latency, tables.per_byte))


def _moves(sizes: tuple[int, ...]) -> dict[Key, list[tuple[Kind, Key]]]:
    """For each state what can be done, and the state after it; the fewest devices first."""
    start: Key = ((0,) * len(sizes), -1, -1, False, False)
    keys, moves = [start], {start: list[tuple[Kind, Key]]()}
    for key in keys:
        held, last, own, before, passed = key
        earlier = tuple(place for place, size in enumerate(held) if size)
        begins = [(island, by) for island in range(len(sizes)) for by in (False, True)]
        for island, by in begins if key == start else [(own, passed)] if own >= 0 else []:
            counts = tuple(size + (place == island) for place, size in enumerate(held))
            later = tuple(place for place, size in enumerate(counts) if size < sizes[place])
            for following, after in [(-1, False), *itertools.product(later, (False, True))]:
                there = (counts, island, following, by, after)
                moves[key].append(((island, last, following, earlier, later, by, not before and not after), there))
                if there not in moves:
                    moves[there] = []
                    keys.append(there)
    return moves


def _classes(
    search: Search, islands: list[tuple[int, ...]], kinds: list[Kind]
) -> tuple[dict[Kind, int], tuple[DeviceClass, ...]] | None:
    """The number of the class of each kind, and the classes; kinds that nothing tells apart are one class."""
    units, sending = search.units, Sending(search.tables, search.units, {})
    ahead, back = all_uses(units, ordered(units, back=False)), all_uses(units, ordered(units, back=True))
    every = range(len(islands))
    alone = device_classes(search.tables, units)
    plain = {device: group for group in alone for device in group.devices}
    classes: dict[tuple[object, ...], DeviceClass] = {}
    number: dict[Kind, int] = {}

    def best(sources: Iterable[int], targets: Iterable[int]) -> Floats:
        pairs = itertools.product(sources, targets)
        return sending.best([(a, b) for one, two in pairs for a in islands[one] for b in islands[two] if a != b])

    local = _local(search) & (ahead | back)
    for kind in kinds:
        island, before, after, earlier, later, passed, straight = kind
        own = (island,)
        leaving = np.where(ahead, best(own, later), np.where(back, best(own, earlier), best(own, every)))
        entering = np.where(ahead, best(earlier, own), np.where(back, best(later, own), best(every, own)))
        if straight:
            last, following = ((place,) if place >= 0 else () for place in (before, after))
            leaving = np.where(local, np.where(ahead, best(own, following), best(own, last)), leaving)
            entering = np.where(local, np.where(ahead, best(last, own), best(following, own)), entering)
        group = attrs.evolve(plain[islands[island][0]], devices=islands[island], leaving=leaving, entering=entering)
        to_next = None if after < 0 else np.where(ahead, best(own, (after,)) - leaving, 0.0)
        from_last = None if before < 0 else np.where(ahead, best((before,), own) - entering, 0.0)
        group = attrs.evolve(group, to_next=to_next, from_last=from_last, passed=passed, local=local)
        key = (island, passed, *group.charges)
        classes.setdefault(key, group)
        number[kind] = list(classes).index(key)
        if len(classes) > MAX_KINDS:
            return None
    return number, tuple(classes.values())


def _local(search: Search) -> NDArray[np.bool_]:
    """The values that do not reach farther than a share of what a device runs, in the order of the units."""
    units = search.units
    at = np.cumsum(search.prices.weight)
    low, high = at[units.source].copy(), at[units.source].copy()
    np.minimum.at(low, units.uses[:, 0], at[units.uses[:, 1]])
    np.maximum.at(high, units.uses[:, 0], at[units.uses[:, 1]])
    near: NDArray[np.bool_] = high - low <= LOCAL * at[-1] / len(search.tables.memory)
    return near


def all_uses(units: Units, certain: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each value whether something holds for all its uses."""
    found: NDArray[np.bool_] = np.bincount(units.uses[~certain, 0], minlength=len(units.source)) == 0
    return found
