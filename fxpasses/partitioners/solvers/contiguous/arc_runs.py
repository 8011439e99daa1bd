"""Find the pairs of ideals between which a device can run, and go along them, compiled.

Importing numba takes a fifth of a second, so this module is imported where a search starts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached, inlined
from fxpasses.partitioners.solvers.contiguous import arc_facts
from fxpasses.partitioners.solvers.contiguous.arc_facts import Facts, Indices
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["extend", "find", "precede"]

Bools = NDArray[np.bool_]
ROUNDING = 1e-12
"""The share of the threshold that a load may be above it, as the order of its sum has it."""


@inlined
def _is_nested(facts: Facts, first: int, last: int) -> bool:
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
def _bytes(facts: Facts, first: int, last: int) -> float:
    """What a device needs that runs from one ideal to another."""
    size = float(facts.kept[last] - facts.kept[first])
    for entry in range(facts.key_start[first], facts.key_start[first + 1]):
        key = facts.keys[entry]
        if facts.named[last, key] != facts.named[first, key]:
            size += facts.key_bytes[key]
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
def _look_at(facts: Facts, first: int, last: int, number: int, spare: Floats) -> bool:
    """Note what a device of each class has to spare between two nested ideals; whether any can run that."""
    for way in range(len(facts.saved)):
        facts.saved[way] = _saved(facts, first, last, way)
    limit, can_run = facts.below * (1.0 + ROUNDING), False
    for kind in range(len(facts.memory)):
        load = facts.ends[last, kind] - facts.begins[first, kind] - facts.saved[facts.charge[kind]]
        can = load <= limit and facts.banned[last, kind] == facts.banned[first, kind]
        spare[kind, number] = (facts.below - load) * facts.load_pays[kind] if can else -np.inf
        can_run |= can
    if not can_run or not facts.counts_bytes:
        return can_run
    size, can_run = _bytes(facts, first, last), False
    for kind in range(len(facts.memory)):
        if size > facts.memory[kind]:
            spare[kind, number] = -np.inf
        if spare[kind, number] > -np.inf:
            can_run = True
            if facts.byte_pays[kind]:
                spare[kind, number] += facts.byte_pays[kind] * (facts.memory[kind] - size)
    return can_run


@cached(compiling, arc_facts)
def find(facts: Facts, first: int, count: Ints, last: Indices, spare: Floats) -> tuple[int, int, int]:
    """Find pairs, from an ideal on, until there may be no room for those of the next one.

    Only ideals are looked at of which the coarser core allows the parents.

    Args:
        facts: The ideals and the devices.
        first: The first ideal.
        count: How many pairs each ideal is the first of, ``(f,)``.
        last: Their last ideals, ``(n,)``.
        spare: What a device of each class has to spare, by the prices that it pays; -inf where it cannot run what is
            between, ``(k, n)``.

    Returns:
        The next ideal, the pairs that were looked at, and how many were found.
    """
    seen, found = 0, 0
    for ideal in range(first, len(facts.position)):
        parent, begun, most = facts.parent[ideal], found, facts.position[ideal] + facts.reach
        begin, stop = facts.coarse_start[parent], facts.coarse_start[parent + 1]
        room = facts.child_start[parent + 1] - facts.child_start[parent]
        for entry in range(begin, stop):
            room += facts.child_start[facts.coarse[entry] + 1] - facts.child_start[facts.coarse[entry]]
        if found + room > len(last):
            return ideal, seen, found
        for entry in range(begin - 1, stop):
            later = parent if entry < begin else facts.coarse[entry]
            for child in range(facts.child_start[later], facts.child_start[later + 1]):
                other = int(facts.children[child])
                if facts.position[other] > most:
                    break
                if other > ideal:
                    seen += 1
                    if _is_nested(facts, ideal, other) and _look_at(facts, ideal, other, found, spare):
                        last[found] = other
                        found += 1
        count[ideal] = found - begun
    return len(facts.position), seen, found


@cached(compiling, arc_facts)
def extend(first: int, stop: int, begins: Ints, last: Indices, spare: Floats, before: Floats, after: Floats) -> int:
    """Raise ``after`` at the last ideal of each pair to ``before`` at its first and what is to spare; count the pairs.

    Args:
        first: The first of the first ideals.
        stop: The one behind the last of them.
        begins: Where the pairs of each ideal begin, and end, ``(f + 1,)``.
        last: The last ideal of each pair.
        spare: What is to spare there.
        before: The most at each ideal; nothing goes on from ``-inf``.
        after: The same one device later.
    """
    count = 0
    for ideal in range(first, stop):
        most = before[ideal]
        if most == -np.inf:
            continue
        count += begins[ideal + 1] - begins[ideal]
        for pair in range(begins[ideal], begins[ideal + 1]):
            after[last[pair]] = max(after[last[pair]], most + spare[pair])
    return count


@cached(compiling, arc_facts)
def precede(
    first: int,
    stop: int,
    begins: Ints,
    last: Indices,
    spare: Floats,
    before: Floats,
    after: Floats,
    taken: Floats,
    enough: float,
    left: Bools,
) -> int:
    """Raise ``before`` at the first ideal of each pair in the same way; count the pairs.

    A pair is ``left`` where it is ``enough`` with what was ``taken`` up to its first ideal.
    """
    count = 0
    for ideal in range(first, stop):
        lacking = enough - taken[ideal]
        if lacking == np.inf:
            continue
        most = before[ideal]
        count += begins[ideal + 1] - begins[ideal]
        for pair in range(begins[ideal], begins[ideal + 1]):
            found = after[last[pair]] + spare[pair]
            most = max(most, found)
            left[pair] |= found >= lacking
        before[ideal] = most
    return count
