"""What a device needs that runs from one ideal of a graph to another, whatever the other devices run.

Constants, inputs and what came from other devices are there from the beginning of the run to its end; what the run
makes is there from the operator that makes it to the last that uses it, or to the end if another device uses it, too.
A run's operators go in the order of the graph, so this is what
:func:`~fxpasses.partitioners.costs.memory.predict_memory` follows for a placement, or a little less: the bytes of a
storage are those of its first value, and an operator has the device where it needs least for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.kernels.kernel_results import result_bytes
from fxpasses.partitioners.placing.searches.run_blocks import in_blocks
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.contiguous.tight_memory.impossible import pair_bytes
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints
from fxpasses.partitioners.tensor_sizes import tensor_bytes

__all__ = ["RunBytes"]

Bools = NDArray[np.bool_]


@attrs.frozen
class _Storage:
    """A storage that an operator makes: its bytes, and the units of all that lies in it or uses that.

    It is never free if ``is_kept``.
    """

    size: int
    units: tuple[int, ...]
    is_kept: bool


@attrs.frozen(eq=False)
class RunBytes:
    """The bytes of runs between ideals; not of a training step.

    Args:
        inside: The units of each ideal, ``(m, f)``.
        steps: For each operator its unit, what it needs for itself, what it makes, and what is free after it with the
            unit that made it.
        beside: Constants, inputs and what came from other devices, for each two ideals, ``(f, f)``; ``inf`` where the
            second does not hold the first.
        least: What a run needs by these, or by what one of its operators needs alone, ``(f, f)``.
    """

    inside: Bools
    steps: tuple[tuple[int, int, tuple[_Storage, ...], tuple[tuple[int, _Storage], ...]], ...]
    beside: Floats
    least: Floats

    @classmethod
    def of(cls, figures: GraphFigures, units: Units, family: CutFamily, unit_of: Mapping[Node, int]) -> RunBytes:
        """Measure what is there for whole runs; time O(operators × ideals²).

        Args:
            figures: The measured graph.
            units: Its reduced problem, with what operators need in any case as live bytes.
            family: The ideals.
            unit_of: The unit of each compute node.
        """
        constants = pair_bytes(attrs.evolve(units, live=np.zeros_like(units.live)), family)
        beside = constants + _received(figures, family, unit_of)
        made: dict[int, list[_Storage]] = {}
        freed: dict[int, list[tuple[int, _Storage]]] = {}
        for first, last, storage in _storages(figures, unit_of):
            made.setdefault(first, []).append(storage)
            freed.setdefault(last, []).append((unit_of[figures.nodes[first]], storage))
        own = (figures.inside - np.array(figures.casts, dtype=np.int64)).tolist()
        steps = tuple(
            (unit_of[node], own[index], tuple(made.get(index, ())), tuple(freed.get(index, ())))
            for index, node in enumerate(figures.nodes)
        )
        return cls(family.inside, steps, beside, np.maximum(pair_bytes(units, family), beside))

    def of_runs(self, first: Ints, last: Ints) -> Floats:
        """The bytes of some runs, each from an ideal to one that holds it; time O((operators + storages) × runs)."""
        needed: Floats = np.maximum(in_blocks(self._of_block, first, last), self.least[first, last])
        return needed

    def _of_block(self, first: Ints, last: Ints) -> Floats:
        after = self.inside[:, last]
        runs = after & ~self.inside[:, first]
        alive, most = np.zeros((2, len(first)))
        for unit, own, made, freed in self.steps:
            if made:
                alive += sum(storage.size for storage in made) * runs[unit]
            np.maximum(most, alive + own, out=most, where=runs[unit])
            for maker, storage in freed:
                if not storage.is_kept:
                    alive -= storage.size * (runs[maker] & after[list(storage.units)].all(axis=0))
        return self.beside[first, last] + most


def _received(figures: GraphFigures, family: CutFamily, unit_of: Mapping[Node, int]) -> Floats:
    """Bytes of inputs, and of what is made in the first ideal, that are used between the two, each copied once."""
    received = np.zeros((family.count, family.count))
    for node in (*figures.graph_module.graph.find_nodes(op="placeholder"), *figures.nodes):
        value = value_of(node)
        users = sorted({unit_of[user] for user in node.users if user in unit_of} - {unit_of.get(node, -1)})
        if not users or not isinstance(value, torch.Tensor):
            continue
        used = family.inside[users].sum(axis=0)
        crosses = used[None, :] > used[:, None]
        if node in unit_of:
            if figures.is_constant(figures.position[node]):
                continue
            crosses &= family.inside[unit_of[node]][:, None]
        received += tensor_bytes(value) * crosses
    return received


def _storages(figures: GraphFigures, unit_of: Mapping[Node, int]) -> Iterator[tuple[int, int, _Storage]]:
    """The storages that operators make, with the first and the last operator that touches each."""
    position = figures.position
    held: dict[int, list[Node]] = {}
    for node in figures.nodes:
        for storage in dict.fromkeys(figures.homes[node]):
            if storage in figures.sizes and storage not in figures.inputs:
                held.setdefault(storage, []).append(node)
    for storage, values in held.items():
        maker, users = values[0], [user for value in values for user in value.users]
        touching = [*values, *(user for user in users if user in position)]
        units = tuple(dict.fromkeys(unit_of[node] for node in touching if unit_of[node] != unit_of[maker]))
        is_kept = any(user not in position for user in users)
        size = result_bytes(maker, figures.homes[maker]).get(storage, 0)
        yield position[maker], max(position[node] for node in touching), _Storage(size, units, is_kept)
