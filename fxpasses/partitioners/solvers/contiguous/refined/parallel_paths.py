"""Paths side by side through the units that a core leaves out, for as long as they go.

A unit left out stands in for one value of the core. So what crosses between branches that run beside the core, as the
layers of a recurrent net beside its first one, depends on which: at a cut as many values count as there are paths from
the core before it to the core behind it that have no unit in common. The paths that go furthest in sum are a flow of
the largest gain that passes each unit, and each value of the core, once (Ford and Fulkerson 1956).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["parallel_paths"]

Bools = NDArray[np.bool_]
CHEAP = 0.25
"""No path leads over values that cost less than this share of the mean: what it is worth is what the cheapest costs."""
MOST = 2500
"""Uses of values up to which it is worth the while: a linear program of so many takes up to a fifth of a second."""


def parallel_paths(units: Units, is_chosen: Bools, weight: Floats, cost: Floats) -> dict[int, int]:
    """The value that a unit left out stands in for, where a path leads through it.

    Args:
        units: The units.
        is_chosen: Which are in the core; they stand in a row.
        weight: What each weighs, by which paths are measured, ``(m,)``.
        cost: What each value costs where it crosses, ``(q,)``.
    """
    value, user = units.uses.T
    maker = units.source[value]
    fine = ~(is_chosen[maker] & is_chosen[user]) & (maker < user)
    fine &= cost[value] >= CHEAP * float(cost.mean() if len(cost) else 0.0)
    value, maker, user = value[fine], maker[fine], user[fine]
    if not 0 < len(value) <= MOST:
        return {}
    row = np.where(is_chosen, weight, 0.0)
    begins = np.cumsum(row) - row
    length = np.where(is_chosen[user], begins[user], 0.0) - np.where(is_chosen[maker], begins[maker], 0.0)
    used = _furthest(value, maker, user, is_chosen, length / (float(row.sum()) or 1.0))
    return dict(zip(user[used].tolist(), value[used].tolist(), strict=True))


def _furthest(value: Ints, maker: Ints, user: Ints, is_chosen: Bools, length: Floats) -> Ints:
    """Which uses are on paths from the core to the core that are longest in sum; they have no value in common."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    number = np.arange(len(value))
    into, out_of = np.flatnonzero(~is_chosen[user]), np.flatnonzero(~is_chosen[maker])
    left_out, row = np.unique(np.concatenate([user[into], maker[out_of]]), return_inverse=True)
    sign = np.concatenate([np.ones(len(into)), -np.ones(len(out_of))])
    kept = csr_array((sign, (row, np.concatenate([into, out_of]))), shape=(len(left_out), len(value)))
    _own, passed = np.unique(np.where(is_chosen[maker], value, -1 - maker), return_inverse=True)
    once = csr_array((np.ones(len(value)), (passed, number)))
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse arrays
        -length, A_ub=once, b_ub=np.ones(once.shape[0]), A_eq=kept, b_eq=np.zeros(len(left_out)), bounds=(0.0, 1.0)
    )
    chosen: Ints = np.flatnonzero((answer.x > 0.5) & ~is_chosen[user]) if answer.status == 0 else number[:0]
    return chosen
