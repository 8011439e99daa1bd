"""Where a linear order is cut: a few places of many."""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["open_along", "stops_near", "stops_of"]


def stops_of(order: Ints, weight: Floats, count: int, devices: int) -> Ints:
    """Some ``count`` places to cut one order, among them those of equal shares for each number of devices."""
    progress = progress_of(order, weight)
    goals = np.linspace(0, 1, max(1, count // devices) * devices + 1)
    return np.unique(np.concatenate([[0, len(order)], np.searchsorted(progress, goals[1:-1]) + 1]).clip(0, len(order)))


def stops_near(order: Ints, stops: Ints, weight: Floats, share: float, reach: int) -> Ints:
    """The places at some stops, and ``reach`` on either side of each, a ``share`` of the weight apart."""
    progress = progress_of(order, weight)
    goals = progress[stops - 1][:, None] + share * np.arange(-reach, reach + 1)[None, :]
    near = np.searchsorted(progress, goals.ravel()) + 1
    return np.unique(np.concatenate([[0, len(order)], stops, near]).clip(0, len(order)))


def open_along(order: Ints, units: Units, price: Floats) -> Floats:
    """What the values cost together that are open after each place of an order, ``(m + 1,)``, by prices ``(q,)``."""
    rank = np.empty(units.size, dtype=np.int64)
    rank[order] = np.arange(units.size)
    first, last = rank[units.source], rank[units.source]
    np.minimum.at(first, units.uses[:, 0], rank[units.uses[:, 1]])
    np.maximum.at(last, units.uses[:, 0], rank[units.uses[:, 1]])
    change = np.bincount(first + 1, price, units.size + 1) - np.bincount(last + 1, price, units.size + 1)
    opened: Floats = np.cumsum(change)
    return opened


def progress_of(order: Ints, weight: Floats) -> Floats:
    """The share of the weight up to each unit of an order; what weighs nothing takes some room: it may keep bytes."""
    least = max(float(weight.mean()), 1e-300) / 100
    progress: Floats = np.cumsum((weight + least)[order])
    progress /= progress[-1]
    return progress
