"""What a device needs that runs from one ideal of a graph to another, whatever the other devices run.

Constants, inputs and what came from other devices are there from the beginning of the run to its end; what the run
makes is there from the operator that makes it to the last that uses it, or to the end if another device uses it, too.
What any device may compute again counts where a run makes it and uses all of it, else only while an operator reads it.
A run's operators go in the order of the graph, so this is what
:func:`~fxpasses.partitioners.costs.memory.predict_memory` follows for a placement, or a little less: the bytes of a
storage are those of its first value, and an operator has the device where it needs least for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

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
from fxpasses.partitioners.solvers.contiguous.ideals.lifetimes import Arrival, Lifetime, Lifetimes
from fxpasses.partitioners.solvers.contiguous.tight_memory.impossible import pair_bytes
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints
from fxpasses.partitioners.tensor_sizes import tensor_bytes

__all__ = ["RunBytes", "lifetimes_of"]

Bools = NDArray[np.bool_]
Ends = dict[int, list[tuple[int, list[int]]]]
AT_ONCE = 500
"""Values that are looked at together."""


@attrs.frozen(eq=False, slots=False)
class RunBytes:
    """The bytes of runs between ideals; not of a training step.

    Args:
        inside: The units of each ideal, ``(m, f)``.
        lives: What operators need, make and use.
        beside: Constants, inputs and what came from other devices, for each two ideals, ``(f, f)``; ``inf`` where the
            second does not hold the first.
        least: What a run needs by these, or by what one of its operators needs alone, ``(f, f)``.
    """

    inside: Bools
    lives: Lifetimes
    beside: Floats
    least: Floats

    @classmethod
    def of(cls, lives: Lifetimes, units: Units, family: CutFamily) -> RunBytes:
        """Measure what is there for whole runs; time O(operators × ideals²).

        Args:
            lives: What the operators of a graph need, make and use, see :func:`lifetimes_of`.
            units: Its reduced problem, with what operators need in any case as live bytes.
            family: The ideals.
        """
        constants = pair_bytes(attrs.evolve(units, live=np.zeros_like(units.live)), family)
        beside = constants + _received(lives, family)
        return cls(family.inside, lives, beside, np.maximum(pair_bytes(units, family), beside))

    def of_runs(self, first: Ints, last: Ints) -> Floats:
        """The bytes of some runs, each from an ideal to one that holds it; time O((operators + storages) × runs)."""
        needed: Floats = np.maximum(in_blocks(self._of_block, first, last), self.least[first, last])
        return needed

    def _of_block(self, first: Ints, last: Ints) -> Floats:
        after = self.inside[:, last]
        runs = after & ~self.inside[:, first]
        alive, most = np.zeros((2, len(first)))
        lives = self.lives
        begun, ended = self._remade
        for place, (unit, own, new, freed) in enumerate(
            zip(lives.unit.tolist(), lives.own.tolist(), lives.new.tolist(), lives.freed, strict=True)
        ):
            if new:
                alive += new * runs[unit]
            for size, units in begun.get(place, ()):
                alive += size * runs[units].all(axis=0)
            np.maximum(most, alive + own, out=most, where=runs[unit])
            for size, maker, users in freed:
                alive -= size * (runs[maker] & after[list(users)].all(axis=0))
            for size, units in ended.get(place, ()):
                alive -= size * runs[units].all(axis=0)
        return self.beside[first, last] + most

    @cached_property
    def _remade(self) -> tuple[Ends, Ends]:
        """Bytes that others may make again, and the units that make and use them, by their first and last operator."""
        begun, ended = Ends(), Ends()
        for each in self.lives.remade:
            units = sorted({int(self.lives.unit[at]) for at in each.touched})
            begun.setdefault(each.touched[0], []).append((each.size, units))
            ended.setdefault(each.touched[-1], []).append((each.size, units))
        return begun, ended


def lifetimes_of(figures: GraphFigures, unit_of: Mapping[Node, int]) -> Lifetimes:
    """What the operators of a measured graph need, make and use; ``unit_of`` is the unit of each compute node."""
    unit = np.array([unit_of[node] for node in figures.nodes], dtype=np.int64)
    own = figures.inside - np.array(figures.casts, dtype=np.int64)
    again = tuple(each for each in _made(figures, remade=True) if not each.is_kept) if figures.remade else ()
    return Lifetimes(unit, own, tuple(_made(figures)), tuple(_arrivals(figures, unit_of)), again)


def _received(lives: Lifetimes, family: CutFamily) -> Floats:
    """Bytes of inputs, and of what is made in the first ideal, that are used between the two, each copied once.

    A value is used between two nested ideals unless both hold as many of its users, which a product of matrices says.
    """
    received = np.zeros((family.count, family.count))
    for begin in range(0, len(lives.arrivals), AT_ONCE):
        there, unused, alike = np.zeros(family.count), list[Floats](), list[Bools]()
        for each in lives.arrivals[begin : begin + AT_ONCE]:
            used = family.inside[list(each.users)].sum(axis=0)
            is_made = np.True_ if each.maker is None else family.inside[each.maker]
            size = np.where(is_made, float(each.size), np.zeros(family.count))
            same = used[None, :] == np.unique(used)[:, None]
            there += size
            unused.append(size * same)
            alike.append(same)
        received += there[:, None] - np.concatenate(unused).T @ np.concatenate(alike).astype(np.float64)
    return received


def _arrivals(figures: GraphFigures, unit_of: Mapping[Node, int]) -> Iterator[Arrival]:
    """Inputs, and what one unit makes and others use."""
    for node in (*figures.graph_module.graph.find_nodes(op="placeholder"), *figures.nodes):
        value, maker = value_of(node), unit_of.get(node)
        users = sorted({unit_of[user] for user in node.users if user in unit_of} - {maker})
        is_constant = maker is not None and figures.is_constant(figures.position[node])
        if users and isinstance(value, torch.Tensor) and not is_constant and node not in figures.remade:
            yield Arrival(tensor_bytes(value), maker, tuple(users))


def _made(figures: GraphFigures, *, remade: bool = False) -> Iterator[Lifetime]:
    """The storages that operators make, with the operators that touch each: those that may be made again, or others."""
    position = figures.position
    held: dict[int, list[Node]] = {}
    for node in figures.nodes:
        for storage in dict.fromkeys(figures.homes[node]):
            if storage in figures.sizes and storage not in figures.inputs:
                held.setdefault(storage, []).append(node)
    for storage, values in held.items():
        maker, users = values[0], [user for value in values for user in value.users]
        if (maker in figures.remade) != remade:
            continue
        touched = {position[node] for node in (*values, *users) if node in position}
        is_kept = any(user not in position for user in users)
        size = result_bytes(maker, figures.homes[maker]).get(storage, 0)
        yield Lifetime(size, tuple(sorted(touched)), is_kept)
