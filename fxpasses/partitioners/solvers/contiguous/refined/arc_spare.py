"""What a device runs, sends and needs between two ideals of a core, and what it takes along, compiled."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.contiguous.refined.arc_facts import Facts
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["free_weight", "is_nested", "kept_bytes", "look_at", "taken_along"]

ROUNDING = 1e-12
"""The share of the threshold that a load may be above it, as the order of its sum has it."""


@inlined
def is_nested(facts: Facts, first: int, last: int) -> bool:
    """Whether an ideal holds another one."""
    missing = np.uint64(0)
    for word in range(facts.words.shape[1]):
        missing |= facts.words[first, word] & ~facts.words[last, word]
    return not missing


@inlined
def _saved(facts: Facts, first: int, last: int, way: int) -> float:
    """What is not charged of the values open at either ideal."""
    saved = 0.0
    for entry in range(facts.open_start[first], facts.open_start[first + 1]):
        value = facts.open[entry]
        held = facts.held[last, value]
        if held < facts.users[value]:  # it passes by, and leaves from the device that made it
            saved += facts.leaving[way, value]
        if held == facts.open_held[entry]:
            saved += facts.entering[way, value]
    for entry in range(facts.back_start[first], facts.back_start[first + 1]):
        value = facts.back[entry]
        held, is_made = facts.held[last, value], facts.made[last, value]
        if is_made and held == facts.users[value]:  # it leaves for earlier devices only
            saved -= facts.leaving[way, value]
        if not is_made and held == facts.held[first, value]:
            saved += facts.entering[way, value]
    return saved


@inlined
def kept_bytes(facts: Facts, first: int, last: int) -> float:
    """What a device keeps that runs from one ideal to another, each shared key once."""
    size = float(facts.kept[last] - facts.kept[first])
    for entry in range(facts.key_start[first], facts.key_start[first + 1]):
        key = facts.keys[entry]
        if facts.named[last, key] != facts.named[first, key]:
            size += facts.key_bytes[key]
    return size


@inlined
def _bytes(facts: Facts, first: int, last: int) -> float:
    """What a device needs for that at least."""
    size = kept_bytes(facts, first, last)
    if len(facts.live):
        for word in range(facts.by_live.shape[1]):
            own = facts.by_live[last, word] & ~facts.by_live[first, word]
            if own:
                unit = 64 * word
                while not own & np.uint64(1):
                    own >>= np.uint64(1)
                    unit += 1
                size += facts.live[unit]
                break
    return size


@inlined
def free_weight(facts: Facts, first: int, last: int) -> float:
    """The weight of the units left out between two ideals through which no value goes that passes a device by."""
    free: float = facts.ready[last] - facts.needed[first]
    for entry in range(facts.open_start[first], facts.open_start[first + 1]):
        if facts.held[last, facts.open[entry]] == facts.open_held[entry]:
            free -= facts.along[entry]
    return free


@inlined
def _most(facts: Facts, first: int, last: int, kind: int, room: float, free: float) -> float:
    """What a device takes along at most, where values that pass it by take their toll.

    That is in proportion to what it takes of the units through which they go; the others are free.
    """
    if room <= free:
        return room
    way = facts.charge[kind]
    taken: float = max(free, 0.0)
    room -= taken
    for place in range(facts.open_start[first], facts.open_start[first + 1]):
        entry = facts.cheapest[way, place]
        value, own = facts.open[entry], facts.along[entry]
        if own > 0.0 and facts.held[last, value] == facts.open_held[entry]:
            price = own + facts.toll[way, value] * facts.load_pays[kind]
            taken += own * min(1.0, room / price)
            room = max(room - price, 0.0)
    return taken


@inlined
def taken_along(facts: Facts, first: int, last: int, kind: int, room: float, free: float) -> float:
    """The most weight of units left out that a device takes along between two ideals, with some room for it."""
    taken = _most(facts, first, last, kind, room, free)
    place = int((taken + facts.slack) * facts.bins)
    return min(taken, facts.sums[place]) if 0 <= place < len(facts.sums) else taken


@inlined
def look_at(facts: Facts, first: int, last: int, number: int, spare: Floats) -> bool:
    """Note what a device of each class takes along between two nested ideals; whether any may run what is there.

    None may where what was taken along before, with all that it has room for, is less than the second ideal needs.
    """
    limit, least, can_run = facts.below * (1.0 + ROUNDING), facts.needed[last] - facts.slack, False
    for way in range(len(facts.saved)):
        facts.saved[way] = _saved(facts, first, last, way)
    for kind in range(len(facts.memory)):
        load = facts.ends[last, kind] - facts.begins[first, kind] - facts.saved[facts.charge[kind]]
        can = load <= limit and facts.banned[last, kind] == facts.banned[first, kind]
        spare[number, kind] = (facts.below - load) * facts.load_pays[kind] if can else -np.inf
        can_run |= can and (facts.byte_pays[kind] > 0.0 or facts.going_most[kind] + spare[number, kind] >= least)
    if can_run and facts.counts_bytes:
        size, can_run = _bytes(facts, first, last), False
        for kind in range(len(facts.memory)):
            if size > facts.memory[kind]:
                spare[number, kind] = -np.inf
            elif facts.byte_pays[kind]:
                spare[number, kind] += facts.byte_pays[kind] * (facts.memory[kind] - size)
            can_run |= facts.going_most[kind] + spare[number, kind] >= least
    if can_run:
        free = free_weight(facts, first, last)
        for kind in range(len(facts.memory)):
            if spare[number, kind] > -np.inf:
                spare[number, kind] = taken_along(facts, first, last, kind, spare[number, kind], free)
    return can_run
