"""When filling devices one after the other fails: cuts of an order, all ways in a small graph, ``solve_placement``."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import networkx as nx
from torch.fx import Node

from fxpasses.devices import Device
from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution, solve_placement

from .bookkeeping import memory_of
from .exhausting import try_all
from .order_cuts import cut_order, orders
from .workload import Group, Workload

__all__ = ["pack"]

ROUNDS = 5
"""How often the solvers are asked: budgets are lowered by what the problem does not know."""

MOST_ATOMS = 4000


def pack(workload: Workload, devices: Sequence[Device]) -> list[Group] | None:
    """Groups that fit the devices, with their devices; None if none were found, which proves nothing.

    Raises:
        InfeasibleError: There are none.
    """
    if len(workload.atoms) > MOST_ATOMS:
        return None
    for order in orders(workload):
        if found := cut_order(workload, order, devices):
            return found
    return try_all(workload, devices) or _solved(workload, devices)


def _solved(workload: Workload, devices: Sequence[Device]) -> list[Group] | None:
    """One convex group for each device, from the solvers.

    Their problem counts a value once on each device that makes or reads it. The partitioner counts it for each node
    that reads it from outside, so an answer may be too large for a device. Then the order in which it runs may have
    another cut; if not, the budgets of these devices are lowered, half as much once where that was too much: to find
    that nothing is left takes the solvers longest.
    """
    graph = _problem_graph(workload)
    memory = [memory_of(device) for device in devices]
    budgets = list(memory)
    was_too_much = False
    for _ in range(ROUNDS):
        named = tuple(_named(number, budget) for number, budget in enumerate(budgets))
        try:
            solution = solve_placement(PlacementProblem(graph, named, objective="memory", time_budget=0.3))
        except PlacementError:
            if budgets == memory or was_too_much:
                return None
            was_too_much = True
            budgets = [(budget + whole) / 2 for budget, whole in zip(budgets, memory, strict=True)]
            continue
        groups = [_part(workload, solution, name, devices) for name in solution.order]
        excess = {int(name): group.used - memory[int(name)] for name, group in zip(solution.order, groups, strict=True)}
        if max(excess.values()) <= 0:
            return groups
        if cut := cut_order(workload, [atom for group in groups for atom in group.atoms], devices):
            return cut
        for number, over in excess.items():
            budgets[number] = max(0, budgets[number] - max(over, 0))
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
