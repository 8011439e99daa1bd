"""A bound from single heavy units: what any device that runs one of them is busy with at least.

The head of a language model often takes longer than an equal share of all the rest. The device that runs it also
receives what it reads, or runs what makes that: whichever is cheaper is a minimum cut between the unit and the rest of
the graph, where a unit on the near side costs its seconds and a value that crosses what it takes to send or to receive.
It holds for sets of units of any shape, so for every kind of placement.
"""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers.reduced.minimum_cuts import ENDLESS, least_cut
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["heavy_bound"]

FEW = 4
"""How many units are asked about on each kind of device."""


def heavy_bound(units: Units, kinds: list[tuple[Floats, Floats, Floats]], bound: float) -> float:
    """No placement has a smaller largest load than what the heaviest units take wherever they run.

    Args:
        units: The reduced problem.
        kinds: For each kind of device the seconds of each unit (``inf`` where it cannot run there) ``(m,)``, and what
            each value takes at least to leave it and to enter it, ``(q,)`` each.
        bound: A bound that is known; only units that may be above it are asked about.
    """
    alone = np.min([_alone(units, *kind) for kind in kinds], axis=0)
    heavy = np.argsort(-alone, kind="stable")[:FEW]
    for unit in heavy[alone[heavy] > bound * (1 + 1e-9)].tolist():
        loads = [_around(units, *kind, unit) for kind in kinds if np.isfinite(kind[0][unit])]
        bound = max(bound, min(loads, default=bound))
    return bound


def _alone(units: Units, seconds: Floats, leaving: Floats, entering: Floats) -> Floats:
    """What a device takes for each unit if it runs nothing else."""
    pairs = units.uses[units.source[units.uses[:, 0]] != units.uses[:, 1]]
    sends = np.zeros(len(units.source), dtype=bool)
    sends[pairs[:, 0]] = True
    found = seconds + np.bincount(units.source, weights=leaving * sends, minlength=units.size)
    alone: Floats = found + np.bincount(pairs[:, 1], weights=entering[pairs[:, 0]], minlength=units.size)
    return alone


def _around(units: Units, seconds: Floats, leaving: Floats, entering: Floats, unit: int) -> float:
    """The least load of a device of one kind that runs a unit, whatever else it runs."""
    values = np.arange(len(units.source), dtype=np.int64)
    each: Ints = np.arange(units.size, dtype=np.int64)
    sent, received, sink = units.size + values, units.size + len(values) + values, units.size + 2 * len(values)
    value, user = units.uses[:, 0], units.uses[:, 1]
    endless = np.full(len(value), ENDLESS)
    own = each != unit
    edges = [
        (each[own], np.full(int(own.sum()), sink), seconds[own]),
        (units.source, sent, leaving),
        (sent[value], user, endless),
        (user, received[value], endless),
        (received, units.source, entering),
    ]
    tails, heads, capacity = (np.concatenate(part) for part in zip(*edges, strict=True))
    return float(seconds[unit]) + least_cut(tails, heads, capacity, unit, sink)
