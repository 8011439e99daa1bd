"""Find the pairs of ideals between which a device can run, and go along them, compiled.

Importing numba takes a fifth of a second, so this module is imported where a search starts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached, inlined, unsigned
from fxpasses.partitioners.solvers.contiguous.refined import arc_facts, arc_spare, live_bytes, live_facts
from fxpasses.partitioners.solvers.contiguous.refined.arc_facts import Facts, Indices
from fxpasses.partitioners.solvers.contiguous.refined.arc_spare import (
    free_weight,
    is_nested,
    kept_bytes,
    look_at,
    taken_along,
)
from fxpasses.partitioners.solvers.contiguous.refined.live_bytes import begin_at, bytes_there
from fxpasses.partitioners.solvers.contiguous.refined.live_facts import LiveFacts
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["back", "forth", "stay"]

Bools = NDArray[np.bool_]


@inlined
def _settle_taken(facts: Facts, ideal: int, most: Floats) -> int:
    """Settle what was taken along up to an ideal in each state; count the moves from those that go on.

    The next device may run no unit of the core.
    """
    least, going = facts.needed[ideal] - facts.slack, 0
    start, stop = facts.state_start[ideal], facts.state_start[ideal + 1]
    for entry in range(start, stop):
        state, taken = facts.state[entry], most[entry]
        for kind in range(len(facts.memory)):
            taken = max(taken, facts.amount[facts.state_before[state, kind]] + facts.room[ideal, kind])
        taken = min(taken, facts.ready[ideal])
        most[entry] = facts.amount[state] = taken if taken >= least else -np.inf
    for kind in range(len(facts.memory)):
        facts.going_most[kind] = -np.inf
        for entry in range(start, stop):
            there = facts.state_after[facts.state[entry], kind]
            if most[entry] > -np.inf and there < len(facts.state_after):
                facts.going_to[going], facts.going_with[going] = there, most[entry]
                facts.going_most[kind] = max(facts.going_most[kind], most[entry])
                going += 1
        facts.going_stop[kind] = going
    for entry in range(start, stop):
        facts.amount[facts.state[entry]] = -np.inf
    return going


@inlined
def _go_along(facts: Facts, last: int, number: int, spare: Floats, most: Floats) -> bool:
    """Let a device run up to an ideal in each state that goes on; whether any takes along what has to be."""
    entry = 0
    for kind in range(len(facts.memory)):
        own, stop = spare[number, kind], facts.going_stop[kind]
        if own == -np.inf:
            entry = stop
        while entry < stop:
            there = facts.going_to[entry]
            facts.amount[there] = max(facts.amount[there], facts.going_with[entry] + own)
            entry += 1
    least, can_go = facts.needed[last] - facts.slack, False
    for place in range(facts.state_start[last], facts.state_start[last + 1]):
        taken = facts.amount[facts.state[place]]
        most[place] = max(most[place], taken)
        can_go |= taken >= least
    for place in range(entry):
        facts.amount[facts.going_to[place]] = -np.inf
    return can_go


@cached(compiling, arc_facts, arc_spare)
def stay(facts: Facts) -> None:
    """Find what a device takes along at each ideal that runs no unit of the core; at first it is all its room."""
    for number in range(len(facts.position)):
        ideal = unsigned(number)
        free = free_weight(facts, ideal, ideal)
        for kind in range(len(facts.memory)):
            facts.room[ideal, kind] = taken_along(facts, ideal, ideal, kind, facts.room[ideal, kind], free)


@cached(compiling, arc_facts, arc_spare)
def forth(facts: Facts, first: int, most: Floats, count: Ints, last: Indices, spare: Floats) -> tuple[int, int, int]:
    """Find pairs, from an ideal on, until there may be no room for those of the next one, and go along them.

    Only ideals are looked at of which the coarser core allows the parents, from those that some devices can have run.

    Args:
        facts: The ideals and the devices.
        first: The first ideal.
        most: The most that was taken along up to each ideal in each of its states, ``(e,)``; settled up to the one
            before.
        count: How many pairs each ideal is the first of, ``(f,)``.
        last: Their last ideals, ``(n,)``.
        spare: What a device of each class has to spare, by the prices that it pays; -inf where it cannot run what is
            between, ``(n, k)``.

    Returns:
        The next ideal, the pairs that were looked at, and in how many states devices went along one.
    """
    seen, found, moved = 0, 0, 0
    for number in range(first, len(facts.position)):
        ideal = unsigned(number)
        parent, begun, reach = facts.parent[ideal], found, facts.position[ideal] + facts.reach
        begin, stop = facts.coarse_start[parent], facts.coarse_start[parent + 1]
        room = facts.child_start[parent + 1] - facts.child_start[parent]
        for entry in range(begin, stop):
            room += facts.child_start[facts.coarse[entry] + 1] - facts.child_start[facts.coarse[entry]]
        if found + room > len(last):
            return number, seen, moved
        going = _settle_taken(facts, ideal, most)
        for entry in range(begin - 1, stop if going else begin - 1):
            later = parent if entry < begin else facts.coarse[entry]
            for child in range(facts.child_start[later], facts.child_start[later + 1]):
                other = unsigned(facts.children[child])
                if facts.position[other] > reach:
                    break
                if other > ideal:
                    seen += 1
                    here = int(found)  # of one type, also while it is known to be 0: both are compiled once
                    if is_nested(facts, ideal, other) and look_at(facts, ideal, other, here, spare):
                        moved += going
                        if _go_along(facts, other, here, spare, most):
                            last[found] = other
                            found += 1
        count[ideal] = found - begun
    return len(facts.position), seen, moved


@inlined
def _may_be_taken(facts: Facts, last: int, number: int, spare: Floats, most: Floats) -> bool:
    """Whether what is taken along on both sides of a pair is enough for a device of some class."""
    for entry in range(facts.state_start[last], facts.state_start[last + 1]):
        for kind in range(len(facts.memory)):
            if most[entry] + spare[number, kind] >= facts.lacking[facts.state_before[facts.state[entry], kind]]:
                return True
    return False


@inlined
def _leave_out(facts: Facts, lives: LiveFacts, first: int, last: int, number: int, spare: Floats) -> None:
    """Note which classes of devices have no room for what is there between two ideals."""
    limit = 0.0
    for kind in range(len(facts.memory)):
        if spare[number, kind] > -np.inf:
            limit = max(limit, facts.memory[kind])
    size = bytes_there(lives, facts.words, first, last, kept_bytes(facts, first, last), limit)
    for kind in range(len(facts.memory)):
        if size > facts.memory[kind]:
            spare[number, kind] = -np.inf


@inlined
def _come_back(facts: Facts, last: int, number: int, spare: Floats, most: Floats) -> bool:
    """Let a device run up to an ideal in each state of that; whether what is taken along on both sides is enough."""
    is_enough = False
    for entry in range(facts.state_start[last], facts.state_start[last + 1]):
        state, left = facts.state[entry], most[entry]
        if left == -np.inf:
            continue
        for kind in range(len(facts.memory)):
            found, before = left + spare[number, kind], facts.state_before[state, kind]
            facts.amount[before] = max(facts.amount[before], found)
            is_enough |= found >= facts.lacking[before]
    return is_enough


@inlined
def _settle_left(facts: Facts, ideal: int, taken: Floats, most: Floats) -> None:
    """Settle what can be taken along from an ideal on in each state; the next device may run no unit of the core."""
    least, limit = facts.total - facts.ready[ideal] - facts.slack, facts.total - facts.needed[ideal]
    for entry in range(facts.state_start[ideal + 1] - 1, facts.state_start[ideal] - 1, -1):
        state = facts.state[entry]
        left = min(max(most[entry], facts.amount[state]), limit)
        most[entry] = left = left if left >= least and taken[entry] > -np.inf else -np.inf
        for kind in range(len(facts.memory)):
            before = facts.state_before[state, kind]
            facts.amount[before] = max(facts.amount[before], left + facts.room[ideal, kind])


@cached(compiling, arc_facts, arc_spare, live_facts, live_bytes)
def back(
    facts: Facts,
    lives: LiveFacts,
    first: int,
    begins: Ints,
    last: Indices,
    spare: Floats,
    taken: Floats,
    most: Floats,
    left: Bools,
) -> tuple[int, int]:
    """Go back along the pairs of some ideals, the last of them first.

    Where it is known what is there while devices run, that is asked of the pairs that pipelines may take otherwise.

    Args:
        facts: The ideals and the devices.
        lives: What is there while devices run.
        first: The first of these ideals.
        begins: Where the pairs of each begin, and end, ``(a + 1,)``.
        last: The last ideal of each pair, ``(n,)``.
        spare: What is to spare there, ``(n, k)``; -inf from now on where there is no room.
        taken: The most that was taken along up to each ideal in each of its states, ``(e,)``.
        most: The most from each ideal on, ``(e,)``; settled for all that come later.
        left: Which pairs are enough with what is taken on both sides of them, ``(n,)``.

    Returns:
        In how many states devices went back, and of how many pairs it was asked what is there.
    """
    moved, asked = 0, 0
    for row in range(len(begins) - 2, -1, -1):
        ideal = unsigned(first + row)
        for state in range(len(facts.amount)):
            facts.amount[state], facts.lacking[state] = -np.inf, np.inf
        for entry in range(facts.state_start[ideal], facts.state_start[ideal + 1]):
            if taken[entry] > -np.inf:
                facts.lacking[facts.state[entry]] = facts.enough - taken[entry]
        if len(lives.unit):
            begin_at(lives, facts.words, ideal)
        for number in range(begins[row], begins[row + 1]):
            if len(lives.unit) and _may_be_taken(facts, last[number], number, spare, most):
                _leave_out(facts, lives, ideal, last[number], number, spare)
                asked += 1
            left[number] = _come_back(facts, last[number], number, spare, most)
            moved += facts.state_start[last[number] + 1] - facts.state_start[last[number]]
        _settle_left(facts, ideal, taken, most)
    return moved, asked
