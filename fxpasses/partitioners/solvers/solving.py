"""Solve a placement problem: check it, reduce it, hand it to the solver of its objective, put the answer into words."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import networkx as nx
import numpy as np

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.contiguous.fewest import solve_fewest
from fxpasses.partitioners.solvers.contiguous.searching import BETTER
from fxpasses.partitioners.solvers.contiguous.solving import solve_pipeline
from fxpasses.partitioners.solvers.contiguous.tight_memory.explaining import first_over
from fxpasses.partitioners.solvers.convex.latency import solve_convex_latency
from fxpasses.partitioners.solvers.convex.loads import solve_convex
from fxpasses.partitioners.solvers.free.solving import solve_free
from fxpasses.partitioners.solvers.latency.cycles import in_turns, without_cycles
from fxpasses.partitioners.solvers.latency.solving import in_turn, solve_latency, units_of_pipelines
from fxpasses.partitioners.solvers.latency.turns import bound_of_turns
from fxpasses.partitioners.solvers.one_thread import one_thread
from fxpasses.partitioners.solvers.problem import Node, PlacementProblem, PlacementSolution
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Figures, evaluate, tables_of
from fxpasses.partitioners.solvers.reduced.tiny_times import readable_times
from fxpasses.partitioners.solvers.replication.solving import Copies, add_replicas
from fxpasses.partitioners.solvers.solved import Solved
from fxpasses.partitioners.solvers.whole_parts.annealing import anneal_parts
from fxpasses.wording import listed

__all__ = ["bound_in_turn", "solve_in_turn", "solve_placement", "solve_whole_parts", "told_bound"]

ALMOST = 1e-3
"""What a bound on whole bytes may lack of the next one."""
MOST_ANNEALED = 4_000
"""Units up to which pipelines of whole parts are annealed."""
MOST_TOLD = 4
"""Nodes of which an error tells where they may run."""


@one_thread()
def solve_placement(problem: PlacementProblem) -> PlacementSolution:
    """Place each node on a device, and say how far from the best that can be.

    The graph is reduced first. A dynamic program over the prefixes of several linear orders gives a first answer; one
    over all ideals then finds the best pipeline, when ``time_budget`` reaches for them. When all links are alike that
    is the optimum; else links count at their best in the search and as they are in the figures, and the bound says
    what is open. Free placements and latencies are annealed, and proven by an integer program where they are small.

    Args:
        problem: What to place, where, and what counts.

    Returns:
        A placement that keeps every budget, the same each time for the same problem.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and the budget was too small to prove that none exists.
    """
    if not isinstance(problem, PlacementProblem):
        raise PlacementError(
            f"solve_placement takes a PlacementProblem, not {type(problem).__name__}; write "
            "solve_placement(PlacementProblem(graph, devices))."
        )
    tables = tables_of(problem)
    if not tables.nodes:
        return _solution(problem, tables, Solved(np.zeros(0, dtype=np.int64), (), 0.0))
    readable, scale = readable_times(tables)
    answer = _answer(problem, readable)
    return _solution(problem, tables, answer if scale == 1.0 else answer.scaled(1 / scale, problem.objective))


def _answer(problem: PlacementProblem, tables: CostTables) -> Solved:
    """The answer for some costs, unless none can be for a reason that needs no search."""
    if problem.objective == "latency":
        return _as_one(problem, tables)
    units = reduce_problem(problem, tables)
    _check_each(problem, tables, units)
    return _solved(problem, tables, units)


def _as_one(problem: PlacementProblem, tables: CostTables) -> Solved:
    """The answer of a latency, where the nodes of a cycle run as one."""
    opened, single, cycles = without_cycles(problem, tables)
    units = reduce_problem(opened, single)
    _check_each(opened, single, units)
    solved = _solved(opened, single, units)
    if solved.start is None or not cycles:
        return solved
    return attrs.evolve(solved, start=in_turns(tables, cycles, solved.device_of, solved.start))


@one_thread()
def solve_in_turn(problem: PlacementProblem) -> PlacementSolution:
    """Find the pipeline for which compute and transfers of one sample add up to the least.

    That is what counts where the parts run one after the other. Only cuts of some linear orders are looked at, so it is
    a candidate beside the answer of :func:`solve_placement` for ``latency``; :func:`bound_in_turn` says how good it is.

    Raises:
        InfeasibleError: a node fits nowhere, or all devices together are too small.
        PlacementError: no such cut keeps every budget, or there are too many nodes or devices.
    """
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    _check_each(problem, tables, units)
    device_of = in_turn(problem, tables, units_of_pipelines(problem, tables, units))
    if device_of is None:
        raise PlacementError("No cut of a linear order into one run a device keeps every budget.")
    used = tuple(dict.fromkeys(device_of.tolist()))
    return _solution(attrs.evolve(problem, objective="throughput"), tables, Solved(device_of, used, 0.0))


def solve_whole_parts(
    problem: PlacementProblem, starts: Sequence[Mapping[Node, str]], parameters: Collection[Node] = ()
) -> PlacementSolution:
    """Find a pipeline that takes one sample little time if each of its parts runs as a whole.

    Parts that no path connects run side by side, which :func:`solve_in_turn` does not see; and operators wait for all
    that their part takes, which :func:`solve_placement` does not see.

    Args:
        problem: What to place, where.
        starts: Pipelines, by the names of devices; one or more.
        parameters: Nodes of the problem that take no time: the first part that uses one has it from the beginning.

    Raises:
        InfeasibleError: a node fits nowhere, or all devices together are too small.
        PlacementError: there are too many nodes, or some are of a backward pass.
    """
    similar, sent = _without(problem, parameters)
    tables = tables_of(similar)
    units = reduce_problem(similar, tables)
    if units.size > MOST_ANNEALED or (tables.forward >= 0).any():
        raise PlacementError("Pipelines of whole parts are annealed for the forward pass of some thousand nodes only.")
    _check_each(similar, tables, units)
    names = {device.name: index for index, device in enumerate(problem.devices)}
    homes = [units.seconds.argmin(axis=1) for _ in starts]
    for home, start in zip(homes, starts, strict=True):
        for node, unit in zip(tables.nodes, units.unit_of.tolist(), strict=True):
            if node in start and np.isfinite(units.seconds[unit, names[start[node]]]):  # by what it was joined with
                home[unit] = names[start[node]]
    unit_of = dict(zip(tables.nodes, units.unit_of.tolist(), strict=True))
    home = anneal_parts(
        units,
        tables,
        homes,
        parameters=[([unit_of[user] for user in users], size) for users, size in sent],
        time_budget=problem.time_budget,
        seed=problem.seed,
    )
    device_of = home[units.unit_of]
    return _solution(similar, tables, Solved(device_of, tuple(dict.fromkeys(device_of.tolist())), 0.0))


def _without(
    problem: PlacementProblem, parameters: Collection[Node]
) -> tuple[PlacementProblem, list[tuple[list[Node], float]]]:
    """The problem of its other nodes, as one of loads; and the users of each parameter, with its bytes."""
    sent = [(list(problem.graph.successors(node)), problem.graph.nodes[node]["output_bytes"]) for node in parameters]
    graph = problem.graph.copy()
    graph.remove_nodes_from(parameters)
    groups = [[node for node in group if node in graph] for group in problem.colocate]
    return attrs.evolve(problem, graph=graph, colocate=groups, objective="throughput", contiguity="pipeline"), sent


def bound_in_turn(problem: PlacementProblem, value: float) -> float:
    """What no pipeline is quicker than if each of its parts runs as a whole, once its inputs are there.

    Args:
        problem: What to place, where.
        value: What a known pipeline takes; the bound is that if only rounding is between the two.
    """
    similar = attrs.evolve(problem, objective="throughput", contiguity="pipeline")
    tables = tables_of(similar)
    bound = bound_of_turns(tables, reduce_problem(similar, tables))
    return value if value <= bound * (1 + 3 * ROUNDING) else bound


def _solved(problem: PlacementProblem, tables: CostTables, units: Units) -> Solved:
    """The answer of the solver for an objective and a contiguity."""
    if problem.objective == "latency":
        in_sets = problem.contiguity == "convex"
        return solve_convex_latency(problem, tables, units) if in_sets else solve_latency(problem, tables, units)
    pipelines = solve_fewest if problem.objective == "devices" else solve_pipeline
    solve = {"pipeline": pipelines, "convex": solve_convex, "free": solve_free}[problem.contiguity]
    solved = Solved(*solve(problem, tables, units))
    return add_replicas(problem, tables, solved) if problem.objective == "throughput" else solved


def _check_each(problem: PlacementProblem, tables: CostTables, units: Units) -> None:
    """Refuse what no search is needed for: a unit that fits nowhere, more bytes than all devices have."""
    allowed = np.isfinite(units.seconds)
    room = np.where(allowed, tables.memory[None, :], -np.inf).max(axis=1)
    for unit in np.flatnonzero(~allowed.any(axis=1)).tolist():
        raise InfeasibleError(_why_nowhere(problem, tables, units.members[unit]))
    need = units.kept + units.live
    np.add.at(need, units.shares[:, 1], units.shared[units.shares[:, 0]])
    for unit in np.flatnonzero(need > room).tolist():
        members, missing = units.members[unit], int(need[unit] - room[unit])
        need_them, run_them = ("needs", "it") if len(members) == 1 else ("together need", "them")
        raise InfeasibleError(
            f"{_names(tables, members)} {need_them} {need[unit]} bytes, and no device that may run {run_them} has more "
            f"than {room[unit]:.0f}: {missing} bytes are missing.",
            missing_bytes=missing,
        )
    total, has = int(units.kept.sum() + units.shared.sum() + units.live.max()), float(tables.memory.sum())
    if total > has:
        first = (
            f"{tables.nodes[first_over(tables, range(len(tables.nodes)), has)]!r} is the first node that does not fit."
        )
        raise InfeasibleError(
            f"The nodes need {total} bytes, and the devices have {has:.0f} together: {total - int(has)} bytes are "
            f"missing. {first}",
            missing_bytes=total - int(has),
            first=first,
        )


def _why_nowhere(problem: PlacementProblem, tables: CostTables, members: tuple[int, ...]) -> str:
    """Why no device may run a node, or some that have to share one; those that may run anywhere are left out."""
    nowhere = [index for index in members if not np.isfinite(tables.seconds[index]).any()]
    members = tuple(nowhere[:1]) or members
    limits = [(tables.nodes[index], _limit(problem, tables, index)) for index in members]
    told = [f"{node!r} {limit}" for node, limit in limits if limit]
    why = listed(told, MOST_TOLD)
    if len(members) == 1:
        bound = tables.nodes[members[0]] in problem.pinned or problem.forbidden.get(tables.nodes[members[0]])
        return f"{why}: give it {'a device' if bound else 'seconds on a device that can run it'}."
    names = _names(tables, members)
    if problem.contiguity == "free":
        return (
            f"{names} have to share a device, by groups, and none may run all: {why}. Let go of a pin, of a forbidden "
            "device or of a group."
        )
    return (
        f"{names} have to share a device, by groups or because values may not flow back, and none may run all: {why}. "
        'Let go of a pin, of a forbidden device or of a group, or let values flow back: contiguity="free".'
    )


def _limit(problem: PlacementProblem, tables: CostTables, index: int) -> str:
    """Where a node may run, and why only there; empty if that is anywhere."""
    node, names = tables.nodes[index], [device.name for device in problem.devices]
    allowed = [name for name, fine in zip(names, np.isfinite(tables.seconds[index]).tolist(), strict=True) if fine]
    if len(allowed) == len(names):
        return ""
    able = dict(zip(names, _can_run(problem, node, names), strict=True))
    pin, forbidden = problem.pinned.get(node), sorted(problem.forbidden.get(node, ()))
    reasons = [] if pin is None else [f"pinned to {pin}" + ("" if able[pin] else ", which cannot run it")]
    reasons += [f"forbidden on {', '.join(forbidden)}"] if forbidden else []
    unable = [name for name in names if not able[name] and name not in forbidden]
    if pin is None and forbidden and unable:
        reasons.append(f"{listed(unable, MOST_TOLD)} cannot run it")
    where = f"may run on {', '.join(allowed)} only" if allowed else "may run nowhere"
    otherwise = "no other device can run it" if allowed else _says(problem.graph.nodes[node].get("seconds", 0.0))
    return f"{where} ({'; '.join(reasons) or otherwise})"


def _can_run(problem: PlacementProblem, node: Node, names: Sequence[str]) -> list[bool]:
    """Whether its own seconds let each device run a node."""
    given = problem.graph.nodes[node].get("seconds", 0.0)
    each = [given.get(name) for name in names] if isinstance(given, Mapping) else [given] * len(names)
    return [seconds is not None and seconds != math.inf for seconds in each]


def _says(given: Any) -> str:
    """What seconds say by which no device can run a node."""
    if isinstance(given, Mapping) and not given:
        return "its seconds name no device"
    if isinstance(given, Mapping) and len(given) > MOST_TOLD:
        return "its seconds are inf or left out for every device"
    return f"its seconds are {dict(given) if isinstance(given, Mapping) else given}"


def _names(tables: CostTables, members: tuple[int, ...]) -> str:
    return listed(repr(tables.nodes[index]) for index in members)


def _solution(problem: PlacementProblem, tables: CostTables, solved: Solved) -> PlacementSolution:
    names = [device.name for device in problem.devices]
    copies = None if solved.present is None else Copies(solved.device_of, solved.present)
    figures = evaluate(tables, solved.device_of) if copies is None else copies.figures(tables)
    _check_answer(names, tables, figures)
    value = figures.value(problem.objective) if solved.value is None else solved.value
    start = {} if solved.start is None else dict(zip(tables.nodes, solved.start.tolist(), strict=True))
    return PlacementSolution(
        {node: names[device] for node, device in zip(tables.nodes, solved.device_of.tolist(), strict=True)},
        tuple(names[device] for device in _as_values_flow(tables, solved)),
        value,
        told_bound(min(solved.bound, value), value, problem.objective),
        dict(zip(names, figures.load.tolist(), strict=True)),
        dict(zip(names, figures.compute.tolist(), strict=True)),
        dict(zip(names, figures.kept.tolist(), strict=True)),
        replicas={} if copies is None else _replicas(tables, copies, names),
        schedule=start,
    )


def _as_values_flow(tables: CostTables, solved: Solved) -> Sequence[int]:
    """The devices that are used, none before one that it needs a value of; as they come where that cannot be."""
    place = {device: index for index, device in enumerate(solved.order)}
    between = solved.device_of[tables.precedence]
    between = np.unique(between[between[:, 0] != between[:, 1]], axis=0)
    flow: nx.DiGraph[int] = nx.DiGraph(between.tolist())
    flow.add_nodes_from(solved.order)
    if not nx.is_directed_acyclic_graph(flow):
        return solved.order
    return list(nx.lexicographical_topological_sort(flow, place.__getitem__))


def told_bound(bound: float, value: float, objective: str) -> float:
    """A bound as it is told. Bytes are whole, so one below the answer is, too, without what rounding added to it."""
    if objective != "memory":
        return float(bound)
    return float(value if bound >= value * BETTER else math.floor(bound * BETTER + ALMOST))


def _check_answer(names: list[str], tables: CostTables, figures: Figures) -> None:
    """Whatever a search went wrong in, no answer breaks a budget, and no device has what it cannot run."""
    more = np.where(np.isfinite(figures.load), figures.kept - tables.memory, np.inf)
    worst = int(np.argmax(more))
    if more[worst] <= 0:
        return
    wrong = "has nodes that it cannot run" if np.isinf(more[worst]) else f"needs {int(more[worst])} bytes more"
    raise PlacementError(
        f"The search ended with a placement that breaks what was asked: {names[worst]!r} {wrong}. That is an error of "
        "fxpasses: report it with the problem; another seed or time_budget may find a placement."
    )


def _replicas(tables: CostTables, copies: Copies, names: list[str]) -> dict[Node, tuple[str, ...]]:
    """The further devices of the nodes that have some."""
    present = copies.present.copy()
    present[np.arange(len(present)), copies.home] = False
    return {
        tables.nodes[node]: tuple(names[device] for device in np.flatnonzero(present[node]).tolist())
        for node in np.flatnonzero(np.any(present, axis=1)).tolist()
    }
