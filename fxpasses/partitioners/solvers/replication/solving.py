"""Compute cheap nodes again where their value is needed, instead of sending it.

A node with ``replicable=True`` has a home, from which its value is sent, and may be computed on further devices; each
of them then needs the node's own inputs, the node's seconds and its bytes. A mask that every layer reads is the usual
case. Nodes that are pinned, in a colocation group, or tied to a backward node are never computed twice; nor are those
of convex placements, whose parts would no longer be convex.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

import attrs
import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.assigning import FAR, ROUNDING
from fxpasses.partitioners.solvers.proofs.bounds import load_bound
from fxpasses.partitioners.solvers.reduced.reducing import cycle_of, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Figures, Ints
from fxpasses.partitioners.solvers.replication.changing import Change, CopiesInUse, added_rows, ranked
from fxpasses.partitioners.solvers.replication.proving import ReplicaProgram
from fxpasses.partitioners.solvers.solved import Solved

__all__ = ["Copies", "add_replicas"]

SMALL = (300, 300, 1500)
"""Variables up to which the program is asked: at least, more for each second of the budget, at most."""
TRIALS_A_SECOND, LOOKED_AT = 4000, 20_000
"""Changes that are tried; and of how many nodes, each device for itself, it is looked at in the time of one whether
there is anything to try."""


@attrs.frozen(eq=False)
class Copies:
    """Where each node is computed, ``present`` ``(n, k)``, and from where its value is sent, ``home`` ``(n,)``."""

    home: Ints
    present: NDArray[np.bool_]

    @classmethod
    def of(cls, home: Ints, devices: int) -> Copies:
        """Each node at home only."""
        return cls(home, home[:, None] == np.arange(devices))

    def lacking(self, edges: Ints) -> NDArray[np.bool_]:
        """Which devices need the value of a node that they do not compute, ``(n, k)``."""
        lacking: NDArray[np.bool_] = (added_rows(self.present, edges, len(self.home)) > 0) & ~self.present
        return lacking

    def figures(self, tables: CostTables) -> Figures:
        """Seconds and bytes of each device."""
        rows = np.arange(len(self.home))
        compute = np.where(self.present, tables.seconds, 0.0).sum(axis=0)
        taken = tables.fixed[:, None] + np.where(
            tables.output[:, None] > 0,
            tables.latency[self.home] + tables.output[:, None] * tables.per_byte[self.home],
            0.0,
        )
        entering = np.where(self.lacking(tables.edges), taken, 0.0)
        load = compute + entering.sum(axis=0)
        np.add.at(load, self.home[rows], entering.max(axis=1, initial=0.0))
        return Figures(load, compute, self._bytes(tables), int(self.present.any(axis=0).sum()))

    def _bytes(self, tables: CostTables) -> Ints:
        held = added_rows(self.present, tables.shares, len(tables.shared)) > 0
        live = np.where(self.present, tables.live[:, None], 0).max(axis=0, initial=0)
        need: Ints = np.where(self.present, tables.kept[:, None], 0).sum(axis=0) + tables.shared @ held + live
        return need

    def quotient(self, tables: CostTables) -> nx.DiGraph[int]:
        """Which devices must not stand before which."""
        pairs = tables.precedence
        target = self.present[pairs[:, 1]] & ~self.present[pairs[:, 0]]
        edge, device = np.nonzero(target)
        flow: nx.DiGraph[int] = nx.DiGraph()
        flow.add_nodes_from(np.flatnonzero(self.present.any(axis=0)).tolist())
        ends = np.unique(np.stack([self.home[pairs[edge, 0]], device], axis=1), axis=0)
        flow.add_edges_from((first, second) for first, second in ends.tolist())
        return flow


def _may_replicate(problem: PlacementProblem, tables: CostTables) -> NDArray[np.bool_]:
    """Which nodes may be computed more than once, ``(n,)``."""
    position = {node: index for index, node in enumerate(tables.nodes)}
    may = tables.replicable.copy()
    may[[position[node] for node in problem.pinned]] = False
    may[[position[node] for group in problem.colocate if len(group) > 1 for node in group]] = False
    backward = tables.forward >= 0
    may[backward] = False
    may[tables.forward[backward]] = False
    return may


def add_replicas(problem: PlacementProblem, tables: CostTables, solved: Solved) -> Solved:
    """Improve a placement by computing nodes again; what comes out keeps every rule and is never worse."""
    if problem.contiguity == "convex" or not tables.replicable.any():
        return solved
    problem = _with_cycles_together(problem, tables)
    may = _may_replicate(problem, tables)
    if not may.any():
        return solved
    search = _Search(problem, tables, may)
    copies = search.climbed(Copies.of(solved.device_of, len(tables.memory)))
    free = reduce_problem(attrs.evolve(problem, contiguity="free"), tables)
    bound = load_bound(free, tables.memory, "throughput")
    value = float(copies.figures(tables).load.max())
    program = ReplicaProgram(problem, tables, may)
    least, more, most = SMALL
    is_small = program.size <= min(least + more * problem.time_budget, most)
    below = math.inf
    while program.is_known and is_small and below > FAR * value and value > bound * (1 + 1e-9):
        below = value
        home, present, proven = program.solve(below, seconds=problem.program_seconds)
        if home is not None and present is not None:
            copies = min(copies, Copies(home, present), key=search.rank)
            value = float(copies.figures(tables).load.max())
        if below <= FAR * value:
            bound = value if proven >= value * (1 - ROUNDING) else max(bound, proven * (1 - ROUNDING))
    return Solved(copies.home, search.order(copies), bound, value=value, present=copies.present)


def _with_cycles_together(problem: PlacementProblem, tables: CostTables) -> PlacementProblem:
    """The problem in which the nodes of each cycle are a colocation group, so that none of them has copies."""
    cycle = cycle_of(len(tables.nodes), tables.edges)
    sizes = np.bincount(cycle)
    if (sizes == 1).all():
        return problem
    groups: dict[int, list[Hashable]] = {}
    for index in np.flatnonzero(sizes[cycle] > 1).tolist():
        groups.setdefault(int(cycle[index]), []).append(tables.nodes[index])
    return attrs.evolve(problem, colocate=[*problem.colocate, *groups.values()])


@attrs.frozen(eq=False)
class _Search:
    """First improvement over copies added, dropped and moved."""

    problem: PlacementProblem
    tables: CostTables
    may: NDArray[np.bool_]

    def rank(self, copies: Copies) -> tuple[float, float]:
        """The largest load, then a norm of the loads; ``inf`` where a rule is broken."""
        tables = self.tables
        if not np.isfinite(tables.seconds[copies.present]).all():
            return math.inf, math.inf
        figures = copies.figures(tables)
        if (figures.kept > tables.memory).any():
            return math.inf, math.inf
        if self.problem.contiguity != "free" and not nx.is_directed_acyclic_graph(copies.quotient(tables)):
            return math.inf, math.inf
        return ranked(figures.load)

    def order(self, copies: Copies) -> tuple[int, ...]:
        """The devices that are used; of a pipeline in the order in which values flow."""
        flow = copies.quotient(self.tables)
        if self.problem.contiguity == "free":
            return tuple(sorted(flow))
        return tuple(nx.lexicographical_topological_sort(flow))

    def climbed(self, copies: Copies) -> Copies:
        """Take each change that makes the norm of the loads smaller and the largest no larger, until none does.

        All changes are tried in turn, and then again as long as one was taken. A change costs what the node has inputs,
        times the devices, however large the graph is; but where the node goes that has the most bytes alive on a
        device, all that run there are asked.
        """
        trials = TRIALS_A_SECOND * (0.25 + self.problem.time_budget)
        used = CopiesInUse.of(self.tables, copies.home, copies.present, is_free=self.problem.contiguity == "free")
        improved, has_changed = True, False
        while improved and trials > 0:
            improved = False
            trials -= self.may.sum() * len(self.tables.memory) / LOOKED_AT
            for change in self._changes(used):
                trials -= 1
                if used.take(change):
                    improved = has_changed = True
                if trials <= 0:
                    break
        return min(copies, Copies(used.home, used.present), key=self.rank) if has_changed else copies

    def _changes(self, used: CopiesInUse) -> Iterator[Change]:
        """Copies where a value is needed; then fewer, or values that are sent from elsewhere; then nodes elsewhere.

        Where each node is computed is looked up when its turn comes, for changes may have been made since.
        """
        nodes = np.flatnonzero(self.may)
        each = np.eye(len(self.tables.memory), dtype=bool)
        for place, device in np.argwhere(used.lacking(nodes)).tolist():
            node = int(nodes[place])
            yield Change(node, int(used.home[node]), used.present[node] | each[device])
        present = used.present[nodes]
        several = present & (present.sum(axis=1) > 1)[:, None]
        for place, device in np.argwhere(several).tolist():
            node = int(nodes[place])
            left, home = used.present[node] & ~each[device], int(used.home[node])
            if left.any():
                yield Change(node, int(np.argmax(left)) if home == device else home, left)
            if used.present[node, device] and home != device:
                yield Change(node, device, used.present[node])
        for node in nodes[~used.present[nodes].all(axis=1)].tolist():
            for device in np.flatnonzero(~used.present[node]).tolist():
                yield Change(node, device, each[device])
