"""The most that is on a device while it runs from one ideal of a core to another, compiled."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words
from fxpasses.partitioners.solvers.contiguous.refined.live_facts import LiveFacts

__all__ = ["begin_at", "bytes_there"]


@inlined
def _holds(words: Words, ideal: int, unit: int) -> bool:
    return bool(words[ideal, unit >> 6] >> np.uint64(unit & 63) & np.uint64(1))


@inlined
def begin_at(lives: LiveFacts, words: Words, first: int) -> None:
    """Note what may come to a device that begins at an ideal: what is made before, and used after it."""
    count = 0
    for value in range(len(lives.arrives)):
        maker = lives.arrives_from[value]
        if maker < 0 or _holds(words, first, maker):
            waits = np.uint64(0)
            for word in range(words.shape[1]):
                waits |= lives.arrives_for[value, word] & ~words[first, word]
            if waits:
                lives.waiting[count] = value
                count += 1
    lives.waiting_count[0] = count


@inlined
def bytes_there(lives: LiveFacts, words: Words, first: int, last: int, size: float, limit: float) -> float:
    """The most bytes that are there, with ``size`` all the time; above ``limit`` any number that is."""
    for place in range(lives.waiting_count[0]):
        value, comes = lives.waiting[place], np.uint64(0)
        for word in range(words.shape[1]):
            comes |= lives.arrives_for[value, word] & words[last, word] & ~words[first, word]
        if comes:
            size += lives.arrives[value]
    most: float = size
    for operator in range(len(lives.unit)):
        unit = lives.unit[operator]
        if _holds(words, first, unit) or not _holds(words, last, unit):
            continue
        size += lives.made[operator]
        most = max(most, size + lives.own[operator])
        if most > limit:
            return most
        for entry in range(lives.free_start[operator], lives.free_start[operator + 1]):
            left = np.uint64(0)
            for word in range(words.shape[1]):
                left |= lives.free_users[entry, word] & ~words[last, word]
            if not left and not _holds(words, first, lives.free_maker[entry]):
                size -= lives.free_size[entry]
    return most
