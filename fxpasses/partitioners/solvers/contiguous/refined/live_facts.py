"""What is on a device while it runs operators as flat arrays, for compiled code that goes through pairs of ideals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, pack
from fxpasses.partitioners.solvers.contiguous.ideals.lifetimes import Lifetimes
from fxpasses.partitioners.solvers.contiguous.refined.arc_facts import Indices
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["LiveFacts", "live_facts_of"]


class LiveFacts(NamedTuple):
    """Operators in the order in which they run, and what comes from elsewhere."""

    unit: Indices  # (o,), the unit of each operator
    own: Floats  # (o,), what each needs for itself
    made: Floats  # (o,), what each makes
    free_start: Ints  # (o + 1,), where the list of what may be free after each begins, and ends
    free_size: Floats  # (n,), the bytes of that
    free_maker: Indices  # (n,), the unit that makes it
    free_users: Words  # (n, w), the others that touch it, as bits
    arrives_from: Ints  # (r,), the unit that makes what comes from elsewhere; -1 for none
    arrives_for: Words  # (r, w), the units that use it
    arrives: Floats  # (r,), its bytes
    waiting: Ints  # (r,), what may come to a device that begins at an ideal, while that is looked at
    waiting_count: Ints  # (1,), how many of these there are


def live_facts_of(lives: Lifetimes | None, units: int) -> LiveFacts:
    """Lay out what is there in a core of some units; nothing if nobody knows. Time O(units × values)."""
    if lives is None:
        lives = Lifetimes(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), (), ())
    freed = [entry for entries in lives.freed for entry in entries]
    return LiveFacts(
        unit=lives.unit.astype(np.uint32),
        own=lives.own.astype(np.float64),
        made=lives.new.astype(np.float64),
        free_start=np.cumsum([0, *map(len, lives.freed)]),
        free_size=np.array([size for size, _maker, _users in freed], dtype=np.float64),
        free_maker=np.array([maker for _size, maker, _users in freed], dtype=np.uint32),
        free_users=_bits([users for _size, _maker, users in freed], units),
        arrives_from=np.array([-1 if each.maker is None else each.maker for each in lives.arrivals], dtype=np.int64),
        arrives_for=_bits([each.users for each in lives.arrivals], units),
        arrives=np.array([each.size for each in lives.arrivals], dtype=np.float64),
        waiting=np.zeros(len(lives.arrivals), dtype=np.int64),
        waiting_count=np.zeros(1, dtype=np.int64),
    )


def _bits(rows: Sequence[Sequence[int]], units: int) -> Words:
    """The units of each row as bits."""
    table = np.zeros((len(rows), units), dtype=bool)
    for row, own in enumerate(rows):
        table[row, list(own)] = True
    return pack(table)
