"""Bounds on what any placement can reach: fractional loads under the memory budgets, transfers left out."""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.partitioners.solvers.reduced.columns import equal_columns
from fxpasses.partitioners.solvers.reduced.fitting import needed_alone
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["Prices", "load_bound", "prices_of"]

MAX_VARIABLES = 8000
"""Pairs of a unit and a kind of device up to which each unit counts for itself in the linear program for prices."""
LEAST_MEAN, SMALLEST = 1e-100, 1e-200
"""Seconds of a device, as a share of the longest and at all, below which its price is no higher: it stays a number."""
FEW_VARIABLES = 2000
"""To how many of them units that are much alike are joined where there are more."""


def _weights_of(units: Units, objective: str) -> Floats:
    """What each unit adds to the load of each device, ``(m, k)``; ``inf`` where the device cannot run it."""
    if objective != "memory":
        return units.seconds
    return np.where(np.isfinite(units.seconds), units.kept[:, None].astype(np.float64), np.inf)


@attrs.frozen(eq=False)
class Prices:
    """Prices of the load and of the bytes of each device: the duals of the fractional relaxation.

    A unit costs at least ``weight``, wherever it runs. A device whose load is at most ``t`` pays at most
    ``load * t + byte * memory``. So for every ``t`` below ``bound`` the units cost more than all devices pay.

    Args:
        load: The price of a unit of load on each device, ``(k,)``; they sum to 1.
        byte: The price of a byte on each device, ``(k,)``; 0 where memory has no limit.
        weight: What each unit costs where it costs least, ``(m,)``.
        bound: No placement has a smaller largest load.
    """

    load: Floats
    byte: Floats
    weight: Floats
    bound: float

    @classmethod
    def of(cls, weights: Floats, kept: Floats, memory: Floats, load: Floats, byte: Floats) -> Prices:
        """What follows from any prices that are not negative. Time O(units × devices)."""
        byte = np.where(np.isfinite(memory), byte, 0.0)
        some, _kind = equal_columns(np.concatenate([weights, [load, byte]]))
        allowed = np.isfinite(weights[:, some])
        costs = np.where(allowed, weights[:, some], 0.0) * load[some] + kept[:, None] * byte[some]
        weight: Floats = np.where(allowed, costs, np.inf).min(axis=1)
        room = float((byte * np.where(np.isfinite(memory), memory, 0.0)).sum())
        total = float(load.sum()) or 1.0
        return cls(load / total, byte / total, weight / total, (float(weight.sum()) - room) / total)


def prices_of(units: Units, memory: Floats, objective: str) -> Prices:
    """The best prices for problems of up to 8000 pairs of a unit and a kind of device, else nearly the best.

    Units with about as many bytes for each second are then one in the linear program; its prices are exact where they
    are alike, and prove what they prove in any case.
    """
    weights, kept = _weights_of(units, objective), units.kept.astype(np.float64)
    first, kind = equal_columns(weights)
    mean = np.array([_mean(weights[:, device]) for device in first.tolist()])[kind]
    by_speed = np.where(mean > 0, 1 / np.maximum(mean, max(mean.max() * LEAST_MEAN, SMALLEST)), 0.0)
    if not by_speed.any():
        by_speed = np.ones(len(memory))
    simple = Prices.of(weights, kept, memory, by_speed, np.zeros(len(memory)))
    kinds: dict[tuple[int, float], list[int]] = {}
    for device, alike in enumerate(zip(kind.tolist(), memory.tolist(), strict=True)):
        kinds.setdefault(alike, []).append(device)
    groups = list(kinds.values())
    free = len(groups) == 1 and float(kept.sum()) <= float(memory.min())
    if free or not weights[np.isfinite(weights)].any():
        return simple
    some = weights[:, [group[0] for group in groups]], kept
    if some[0].size > MAX_VARIABLES:
        some = _joined(*some, max(1, FEW_VARIABLES // len(groups)))
    duals = _duals(*some, memory, groups)
    if duals is None:
        return simple
    return max(simple, Prices.of(weights, kept, memory, *duals), key=lambda prices: prices.bound)


def _mean(seconds: Floats) -> float:
    """Of the units that a device can run."""
    allowed = seconds[np.isfinite(seconds)]
    return float(allowed.mean()) if len(allowed) else 0.0


def load_bound(units: Units, memory: Floats, objective: str, prices: Prices | None = None) -> float:
    """No placement has a smaller largest load: the heaviest unit, and what :func:`prices_of` proves, if not given."""
    least = _weights_of(units, objective).min(axis=1)
    prices = prices or prices_of(units, memory, objective)
    bound = max(float(least.max()), prices.bound)
    if objective == "memory":
        together = float(units.kept.sum() + units.shared.sum() + units.live.max()) / len(memory)
        bound = max(bound, together, float(needed_alone(units).max()))
    return bound


def _joined(weights: Floats, kept: Floats, most: int) -> tuple[Floats, Floats]:
    """Sums over units that the same devices run, with about as many bytes for each second; about so many."""
    allowed = np.isfinite(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(kept / np.where(allowed, weights, 0.0).sum(axis=1))
    bits = np.ascontiguousarray(np.packbits(allowed, axis=1))
    _rows, pattern = np.unique(bits.view(f"V{bits.shape[1]}").ravel(), return_inverse=True)  # each row a word of bits
    order = np.lexsort((ratio, pattern))
    share = (np.arange(len(order)) * most) // len(order)
    starts = np.flatnonzero(np.append(True, (np.diff(share) > 0) | (np.diff(pattern[order]) > 0)))
    return np.add.reduceat(weights[order], starts), np.add.reduceat(kept[order], starts)


def _duals(weights: Floats, kept: Floats, memory: Floats, groups: list[list[int]]) -> tuple[Floats, Floats] | None:
    """Prices from the linear program that spreads units over kinds of devices in fractions and keeps the budgets."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    memory = memory[[group[0] for group in groups]]
    count, kinds = weights.shape
    scale, unit_bytes = float(weights[np.isfinite(weights)].max()), max(1.0, float(kept.max()))
    allowed = np.isfinite(weights)
    each = np.eye(kinds)[None]
    busy = ((np.where(allowed, weights, 0.0) / scale)[:, :, None] * each).reshape(-1, kinds).T
    heavy = ((kept / unit_bytes)[:, None, None] * each).reshape(-1, kinds).T
    limited = np.flatnonzero(np.isfinite(memory))
    objective: Floats = np.append(np.zeros(count * kinds), 1.0)
    answer = linprog(  # type: ignore[call-overload]  # the stubs know no sparse arrays
        objective,
        A_ub=csr_array(
            vstack(
                [
                    hstack([csr_array(busy), csr_array(-sizes[:, None])]),
                    csr_array(np.pad(heavy[limited], ((0, 0), (0, 1)))),
                ]
            )
        ),
        b_ub=np.append(np.zeros(kinds), (sizes * memory)[limited] / unit_bytes),
        A_eq=csr_array(hstack([kron(eye_array(count), np.ones((1, kinds))), csr_array((count, 1))])),
        b_eq=np.ones(count),
        bounds=[*((0.0, float(fine)) for fine in allowed.ravel().tolist()), (0.0, None)],
        method="highs",
    )
    if answer.status != 0:
        return None
    price = np.maximum(-answer.ineqlin.marginals, 0.0)
    load, byte = np.zeros(sum(map(len, groups))), np.zeros(sum(map(len, groups)))
    for kind, group in enumerate(groups):
        load[group] = price[kind]
    for place, kind in enumerate(limited.tolist()):
        byte[groups[kind]] = price[kinds + place] * scale / unit_bytes
    return load, byte
