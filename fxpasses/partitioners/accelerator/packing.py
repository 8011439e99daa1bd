"""When filling devices one after the other fails: one convex part for each device, found by ``solve_placement``."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import networkx as nx
from torch.fx import Node

from fxpasses.devices import Device
from fxpasses.errors import InfeasibleError
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution, solve_placement

from .bookkeeping import memory_of
from .workload import Group, Workload

__all__ = ["pack"]

ROUNDS = 5
"""How often budgets are tightened by what the problem does not know."""

MOST_ATOMS = 4000


def pack(workload: Workload, devices: Sequence[Device]) -> list[Group] | None:
    """Parts that fit the devices, at most one for each, with their devices; None if none were found.

    The problem counts a value once on each device that makes or reads it. The partitioner counts it for each node that
    reads it from outside, so budgets are tightened until the parts keep the real ones.
    """
    if len(workload.atoms) > MOST_ATOMS:
        return None
    graph = _problem_graph(workload)
    budgets = [memory_of(device) for device in devices]
    for _ in range(ROUNDS):
        named = tuple(_named(number, budget) for number, budget in enumerate(budgets))
        problem = PlacementProblem(graph, named, objective="memory", time_budget=0.3)
        try:
            solution = solve_placement(problem)
        except InfeasibleError:
            return None
        groups = [_part(workload, solution, name, devices) for name in solution.order]
        excess = [
            group.used - memory_of(devices[int(name)]) for group, name in zip(groups, solution.order, strict=True)
        ]
        if max(excess) <= 0:
            return groups
        for name, over in zip(solution.order, excess, strict=True):
            budgets[int(name)] = max(0, budgets[int(name)] - max(over, 0))
    return None


def _part(workload: Workload, solution: PlacementSolution, name: str, devices: Sequence[Device]) -> Group:
    group = workload.group(atom for atom in solution.nodes(name) if isinstance(atom, int))
    group.device_ids = [devices[int(name)].logical_id]
    return group


def _named(number: int, budget: float) -> Device:
    """A device by its place: the names of the caller's devices need not differ."""
    return Device(str(number), None if budget == float("inf") else int(budget), number)


def _problem_graph(workload: Workload) -> nx.DiGraph[Hashable]:
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    read: dict[Node, None] = {}
    for values in workload.values:
        read.update(dict.fromkeys(values))
    for atom, members in enumerate(workload.atoms):
        shared: dict[Hashable, int] = dict(workload.items[atom])
        kept = workload.own[atom]
        for value in (*workload.values[atom], *(node for node in members if node in read)):
            shared[value] = workload.sizes[value].output_size
        for node in members:
            if node in read:
                kept -= workload.sizes[node].total_size - sum(workload.items_of[node].values())
        graph.add_node(atom, kept_bytes=max(kept, 0), shared_bytes=shared)
    graph.add_edges_from((other, atom) for atom, before in enumerate(workload.before) for other in before)
    return graph
