"""Bounds on what any placement can reach: fractional loads under the memory budgets, transfers left out."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.tables import Floats
from fxpasses.partitioners.solvers.reducing import Units

__all__ = ["load_bound", "weights_of"]

MAX_VARIABLES = 8000


def weights_of(units: Units, objective: str) -> Floats:
    """What each unit adds to the load of each device, ``(m, k)``; ``inf`` where the device cannot run it."""
    if objective == "throughput":
        return units.seconds
    return np.where(np.isfinite(units.seconds), units.kept[:, None].astype(np.float64), np.inf)


def load_bound(units: Units, memory: Floats, objective: str) -> float:
    """No placement has a smaller largest load.

    The heaviest unit; the least work over the number of devices; and, for problems of up to 8000 unit-device pairs, the
    linear program that spreads units over devices in fractions and keeps the budgets.
    """
    weights = weights_of(units, objective)
    least = weights.min(axis=1)
    simple = max(float(least.max()), float(least.sum()) / len(memory))
    if weights.size > MAX_VARIABLES:
        return simple
    return max(simple, _fractional(weights, units.kept.astype(np.float64), memory))


def _fractional(weights: Floats, kept: Floats, memory: Floats) -> float:
    """The smallest largest load when a unit may be spread over devices, or 0 when the program has no answer."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

    count, kinds = weights.shape
    scale = float(weights[np.isfinite(weights)].max(initial=0.0))
    if not scale:
        return 0.0
    allowed = np.isfinite(weights)
    busy = (np.where(allowed, weights, 0.0) / scale)[:, :, None] * np.eye(kinds)[None]
    heavy = kept[:, None, None] * np.eye(kinds)[None]
    load_rows = hstack([csr_array(busy.reshape(-1, kinds).T), csr_array(np.full((kinds, 1), -1.0))])
    limited = np.flatnonzero(np.isfinite(memory))
    unit_bytes = max(1.0, float(kept.max()))
    byte_rows = csr_array(np.pad(heavy.reshape(-1, kinds).T[limited] / unit_bytes, ((0, 0), (0, 1))))
    once = hstack([kron(eye_array(count), np.ones((1, kinds))), csr_array((count, 1))])
    objective: Floats = np.append(np.zeros(count * kinds), 1.0)
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse arrays
        objective,
        A_ub=csr_array(vstack([load_rows, byte_rows])),
        b_ub=np.append(np.zeros(kinds), memory[limited] / unit_bytes),
        A_eq=csr_array(once),
        b_eq=np.ones(count),
        bounds=[*((0.0, float(fine)) for fine in allowed.ravel().tolist()), (0.0, None)],
        method="highs",
    )
    return float(answer.fun) * scale * (1 - 1e-6) if answer.status == 0 else 0.0  # HiGHS is right to about 1e-7
