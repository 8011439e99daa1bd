"""Prove that no pipeline of a graph keeps the budgets: by what is alive on a device in any case while an operator runs.

A problem for the solvers counts for an operator what it reads and makes. More is alive for certain where a value is
made before the operator and used after it: if the device also runs something that comes before the maker, it runs the
maker; if it runs something that comes after the later user, it runs that user. Either way the value is there. The
residual stream beside an attention block is such a value.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.kernels.kernel_results import result_bytes
from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.tight_memory.impossible import Fits, ancestors, only, pair_bytes
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

__all__ = ["least_missing"]

STEPS = 2e10
IDEALS = 400
MANY = 5000
"""Operators from which on nothing is proven."""


def least_missing(figures: GraphFigures, problem: PlacementProblem) -> int:
    """Bytes that are proven to be missing on some device of every pipeline; 0 if nothing is proven.

    Args:
        figures: The measured graph.
        problem: What was posed for it, with what operators need in any case as live bytes.

    Returns:
        The largest number that the proof reaches, by bisection.
    """
    if len(figures.nodes) > MANY:
        return 0
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    fits = Fits.of(units, device_classes(tables, units), IDEALS)
    if fits is None:
        return 0
    placed = zip(tables.nodes, units.unit_of.tolist(), strict=True)
    unit_of = {node: int(unit) for node, unit in placed if isinstance(node, Node)}
    fits = attrs.evolve(fits, size=_Alive.of(figures, units, fits, unit_of).size())
    steps, low, high = STEPS, 0, int(tables.kept.sum() + tables.shared.sum() + tables.live.sum()) + 1
    if fits.decide(0.0, steps)[0] is not False:
        return 0
    while low + 1 < high:
        middle = (low + high) // 2
        decided, spent = fits.decide(middle, steps)
        steps -= spent
        low, high = (middle, high) if decided is False else (low, middle)
    return low + 1


@attrs.frozen(eq=False)
class _Alive:
    """What is alive beside the units that count."""

    figures: GraphFigures
    units: Units
    fits: Fits
    members: dict[int, list[Node]]
    unit_of: dict[Node, int]
    above: list[int]
    node_above: dict[Node, int]

    @classmethod
    def of(cls, figures: GraphFigures, units: Units, fits: Fits, unit_of: dict[Node, int]) -> _Alive:
        members: dict[int, list[Node]] = {}
        for node in figures.nodes:
            members.setdefault(unit_of[node], []).append(node)
        return cls(figures, units, fits, members, unit_of, ancestors(units), _node_ancestors(figures))

    def size(self) -> NDArray[np.float64]:
        """Bytes between each two ideals, with what is alive in any case."""
        family, own = self.fits.family, self.fits.size.copy()
        still = pair_bytes(self._chosen_units(), family)
        inside = family.inside
        for place, unit in enumerate(self.fits.chosen.tolist()):
            if unit not in self.members:  # only a parameter that several operators use, which is held where they are
                continue
            holds = inside[place][None, :] & ~inside[place][:, None]
            node = max(self.members[unit], key=self._need)  # the hungriest of its nodes
            alive = np.full(own.shape, float(self._need(node)))
            for size, mask in self._passing(node):
                count = mask.astype(np.float64) @ inside
                alive += size * (count[None, :] > count[:, None])
            np.maximum(own, still + alive, out=own, where=holds)
        return own

    def _need(self, node: Node) -> int:
        return int(self.figures.needs[self.figures.position[node]])

    def _chosen_units(self) -> Units:
        """The units that count, with nothing alive."""
        idle = attrs.evolve(self.units, live=np.zeros_like(self.units.live))
        return idle if self.fits.is_whole else only(idle, self.fits.chosen)

    def _passing(self, node: Node) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        """Storages that are made before a node and used after it: bytes, and the units of which any forces them."""
        figures = self.figures
        touched = set(figures.living[figures.position[node]])
        own = self.node_above[node]
        forced: dict[int, tuple[int, NDArray[np.bool_]]] = {}
        for value in figures.nodes:
            if not own >> figures.position[value] & 1 or value is node:
                continue
            here = [q for q in figures.homes[value] if q in figures.sizes and q not in figures.inputs]
            later = [
                user
                for user in value.users
                if user in figures.position and user is not node and self.node_above[user] >> figures.position[node] & 1
            ]
            if not here or not later or not touched.isdisjoint(here):
                continue
            mask = self._near(self.unit_of[value], [self.unit_of[user] for user in later])
            size = result_bytes(value, figures.homes[value])[here[0]]
            known = forced.get(here[0])
            forced[here[0]] = (size, mask) if known is None else (min(size, known[0]), mask | known[1])
        yield from forced.values()

    def _near(self, maker: int, users: list[int]) -> NDArray[np.bool_]:
        chosen = self.fits.chosen.tolist()
        return np.array(
            [
                bool(self.above[maker] >> other & 1) or any(self.above[other] >> user & 1 for user in users)
                for other in chosen
            ],
            dtype=bool,
        )


def _node_ancestors(figures: GraphFigures) -> dict[Node, int]:
    """For each compute node the bits of those that it needs, itself included. Time O(edges × nodes / 64)."""
    above: dict[Node, int] = {}
    for index, node in enumerate(figures.nodes):
        mask = 1 << index
        for used in node.all_input_nodes:
            mask |= above.get(used, 0)
        above[node] = mask
    return above
