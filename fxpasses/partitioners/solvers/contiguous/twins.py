"""Units that nothing tells apart: a pipeline may as well run them in the order of their numbers.

Queries, keys and values of one attention are such units, and the products of a router's experts: as large as each
other, made of the same values, used by the same units. Two of them can change places in any pipeline, so ideals that
hold the second without the first are not needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import attrs
import numpy as np

from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables

__all__ = ["twins_in_order"]


def twins_in_order(units: Units, tables: CostTables) -> Units:
    """The units with one pair more in ``before`` for each unit and its next twin. Time O(units × devices + uses)."""
    twins: dict[Hashable, list[int]] = {}
    for unit, facts in enumerate(_facts(units, tables)):
        twins.setdefault(facts, []).append(unit)
    pairs = [pair for group in twins.values() for pair in itertools.pairwise(group)]
    if not pairs:
        return units
    return attrs.evolve(units, before=np.concatenate([units.before, np.array(pairs, dtype=np.int64)]))


def _facts(units: Units, tables: CostTables) -> list[Hashable]:
    """All that a pipeline's loads depend on, for each unit; and its bytes, where some device has not room for all."""
    is_tight = units.kept.sum() + units.shared.sum() + units.live.max(initial=0) > tables.memory.min(initial=np.inf)
    sizes = [
        sorted((float(tables.output[node]), float(tables.fixed[node])) for node in nodes) for nodes in units.makers
    ]
    return [
        (
            units.seconds[unit].tobytes(),
            (int(units.kept[unit]), int(units.live[unit]), *units.keys[unit]) if is_tight else (),
            *map(frozenset, (units.predecessors[unit], units.successors[unit], units.used[unit])),
            frozenset((tuple(sorted(units.users[value])), *sizes[value]) for value in units.made[unit]),
        )
        for unit in range(units.size)
    ]
