"""What a device needs for certain that runs from one ideal of a graph to another, whatever the other devices run.

Beside the constants of the run and what one of its operators reads and makes, all that came from other devices is
there, from the beginning of the run to its end. The two add up where what the operator reads was made in the run.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.contiguous.tight_memory.impossible import pair_bytes
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats
from fxpasses.partitioners.tensor_sizes import tensor_bytes

__all__ = ["certain_bytes"]

WORK = 1e9
"""Operators times pairs of ideals up to which more is asked than what each operator needs alone."""


def certain_bytes(figures: GraphFigures, units: Units, family: CutFamily, unit_of: Mapping[Node, int]) -> Floats:
    """Bytes between each two ideals, ``inf`` where the second does not hold the first, ``(f, f)``.

    Args:
        figures: The measured graph; not that of a training step.
        units: Its reduced problem, with what operators need in any case as live bytes.
        family: The ideals.
        unit_of: The unit of each compute node.

    Time O(operators × ideals²).
    """
    alone = pair_bytes(units, family)
    if len(figures.nodes) * alone.size > WORK:
        return alone
    constants = pair_bytes(attrs.evolve(units, live=np.zeros_like(units.live)), family)
    beside = _received(figures, family, unit_of) + _of_own_values(figures, family, unit_of)
    return np.maximum(alone, constants + beside)


def _received(figures: GraphFigures, family: CutFamily, unit_of: Mapping[Node, int]) -> Floats:
    """Bytes of what is made in the first ideal and used between the two, each copied once."""
    received = np.zeros((family.count, family.count))
    for index, node in enumerate(figures.nodes):
        value = value_of(node)
        users = sorted({unit_of[user] for user in node.users if user in unit_of} - {unit_of[node]})
        if not users or not isinstance(value, torch.Tensor) or figures.is_constant(index):
            continue
        used = family.inside[users].sum(axis=0)
        crosses = family.inside[unit_of[node]][:, None] & (used[None, :] > used[:, None])
        received += tensor_bytes(value) * crosses
    return received


def _of_own_values(figures: GraphFigures, family: CutFamily, unit_of: Mapping[Node, int]) -> Floats:
    """The most that an operator between two ideals reads and makes, of those that read nothing made in the first."""
    most = np.zeros((family.count, family.count))
    open_: NDArray[np.bool_] = np.ones(most.shape, dtype=bool)
    makers = _makers(figures, unit_of)
    for index in np.argsort(-figures.needs, kind="stable").tolist():
        node = figures.nodes[index]
        touched = {unit_of[node]}.union(*(makers.get(storage, ()) for storage in figures.living[index]))
        none_before = family.inside[sorted(touched)].sum(axis=0) == 0
        runs_it = none_before[:, None] & family.inside[unit_of[node]][None, :] & open_
        most[runs_it] = figures.needs[index]
        open_ &= ~runs_it
    return most


def _makers(figures: GraphFigures, unit_of: Mapping[Node, int]) -> dict[int, set[int]]:
    """The units whose values lie in each storage."""
    makers: dict[int, set[int]] = {}
    for node in figures.nodes:
        for storage in figures.homes[node]:
            makers.setdefault(storage, set()).add(unit_of[node])
    return makers
