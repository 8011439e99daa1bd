"""Say in the solvers' words where the operators of a graph may go, and read their answer back as an ``Assignment``.

The nodes of the problem are the compute nodes of the graph. An order edge over which no data goes leads through a
marker that makes nothing, so that no solver charges a copy for it. A parameter that several operators use is a node
that takes no time and makes its bytes: where they are on several devices one sends it to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from torch.fx import Graph, GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.devices import Device, Link, Topology
from fxpasses.errors import InfeasibleError, InputError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.graph_figures import GraphFigures, Support, value_bytes
from fxpasses.partitioners.placing.colocation import backward_partners, kept_together, must_share, why_shared
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.names.module_origins import in_words
from fxpasses.partitioners.placing.names.selectors import Selector, check_device, pins_of, select
from fxpasses.partitioners.placing.state_nodes import StateNode, state_nodes, with_first_user
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution
from fxpasses.partitioners.solvers.problem import as_groups
from fxpasses.wording import listed

__all__ = ["assignment_of", "homes_of", "placement_problem"]


def placement_problem(
    graph_module: GraphModule,
    devices: Topology | Iterable[Device],
    links: Iterable[Link] = (),
    *,
    objective: str = "throughput",
    contiguity: str = "pipeline",
    supports: Support | None = None,
    colocate: Iterable[Iterable[Selector]] = (),
    pinned: Mapping[Selector, str] | None = None,
    forbidden: Mapping[Selector, Collection[str]] | None = None,
    time_budget: float = 2.0,
    effort: float | None = None,
    seed: int = 0,
    figures: GraphFigures | None = None,
    live: NDArray[np.int64] | None = None,
    replicable: Callable[[Node], bool] | None = None,
    state_with_first_user: bool = False,
    explain: str = "always",
) -> PlacementProblem:
    """Pose the placement of a graph as a problem for :func:`~fxpasses.partitioners.solve_placement`.

    Args:
        graph_module: Any graph whose nodes carry ``val`` (or costs that ``MeasureCosts`` wrote).
        devices: Where the operators may run.
        links: Connections; pairs without one use the default. In a training step what has a gradient counts there and
            back; where a link is faster one way, all else counts at the least of what it may take.
        objective: What counts, as :class:`~fxpasses.partitioners.PlacementProblem` takes it.
        contiguity: What a device may take.
        supports: Whether a device can run a node; by default each device answers for itself.
        colocate: Groups of nodes or module paths that share a device, beside those that the graph needs.
        pinned: The device of a node, or of all operators of a module; the longest path that covers one counts, and a
            node before any path.
        forbidden: The devices that a node or module must not be on.
        time_budget: About how many seconds of search.
        effort: The share of their seconds that integer programs get; by default as the time budget has it.
        seed: For what the search draws.
        figures: The measured graph, if it is there already.
        live: Bytes of inputs and activations to count while each compute node runs. By default activations count as
            long as they are alive in the whole graph, wherever, and inputs like constants.
        replicable: Whether a node may be computed again where its value is used; the answer says where
            (:attr:`~fxpasses.partitioners.PlacementSolution.replicas`), and ``fxpasses.passes.replicating`` does it.
        state_with_first_user: Whether a parameter that several operators use shares a device with the first of them. By
            default only where the others need this one, as any device may send it else; or, of convex parts, it is
            nowhere else.
        explain: Whether errors say what is missing, as :class:`~fxpasses.partitioners.PlacementProblem` takes it.

    Returns:
        The problem. Its nodes are the compute nodes, and tuples that end with one: ``("after", node)`` stands for the
        order behind it, a :class:`.StateNode` for a parameter that it is the first to use. Constants are shared bytes
        under their storage, so that tied ones count once a device.

    Raises:
        PlacementError: a selector that means nothing, an unknown device, objective or contiguity.
        InfeasibleError: an operator is pinned to a device that does not support it, or forbidden wherever it may run.
        MissingMetadataError: a node has neither a cost nor a value.
    """
    topology = Topology.of(devices, links)
    figures = figures or GraphFigures.of(graph_module, devices=topology.devices)
    one_way = topology.least_one_way() if figures.trained else 1.0
    topology = topology.there_and_back() if figures.trained else topology
    users = state_nodes(figures)
    homes = [(key, key.first_user) for key in users] if state_with_first_user else list(with_first_user(figures, users))
    if contiguity == "convex":  # parts may wait for each other: of another one, each home may tear a part
        users = {key: users[key] for key, _ in homes}
    graph, markers = _problem_graph(figures, topology.devices, supports, live, users, one_way)
    anywhere = {} if replicable is None else dict.fromkeys(filter(replicable, figures.nodes), True)
    nx.set_node_attributes(graph, anywhere, "replicable")
    pinned = pinned or {}
    for name in pinned.values():
        check_device(topology, name, "pinned")
    together = [[node for key in group for node in select(figures, key, "colocate")] for group in as_groups(colocate)]
    hard = must_share(figures)
    pins = pins_of(figures, pinned, [*hard, *together])
    _check_support(graph, pins)
    _check_not_torn(figures, hard, pins)
    kept = kept_together(figures, hard, anywhere.keys(), pins)
    bans: dict[Node, dict[str, None]] = {}
    for key, names in (forbidden or {}).items():
        for node in select(figures, key, "forbidden"):
            bans.setdefault(node, {}).update(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in dict.fromkeys(name for names in bans.values() for name in names):
        check_device(topology, name, "forbidden")
    _check_bans(graph, [device.name for device in topology.devices], pins, bans)
    return PlacementProblem(
        graph,
        topology.devices,
        topology.links,
        objective,
        contiguity=contiguity,
        colocate=[*kept, *markers, *homes, *together],
        pinned=pins,  # type: ignore[arg-type]  # nodes are hashable
        forbidden={node: tuple(names) for node, names in bans.items()},
        time_budget=time_budget,
        seed=seed,
        effort=effort,
        explain=explain,
    )


def _problem_graph(
    figures: GraphFigures,
    devices: Sequence[Device],
    supports: Support | None,
    live: NDArray[np.int64] | None,
    users: Mapping[StateNode, tuple[Node, ...]],
    one_way: float,
) -> tuple[nx.DiGraph[Any], list[tuple[Hashable, Hashable]]]:
    """The graph with its costs, and each marker with the node it stands behind."""
    graph: nx.DiGraph[Any] = nx.DiGraph()
    partners, used_first = backward_partners(figures), _by_first_user(users)
    alike = len({(device.flops, device.bandwidth, device.overhead) for device in devices}) == 1
    times = figures.seconds(devices, supports)
    for index, (node, seconds) in enumerate(zip(figures.nodes, times, strict=True)):
        for state in used_first.get(node, ()):
            graph.add_node(state, seconds=0.0, output_bytes=_counted_bytes(figures, state.state, one_way))
            if state.state in figures.trained and figures.beside_state:
                graph.nodes[state]["kept_bytes"] = int(value_bytes(state.state) * figures.beside_state)
        facts: dict[str, Any] = {"seconds": seconds}
        if alike and len(seconds) == len(devices) and len(set(seconds.values())) == 1:
            facts["seconds"] = next(iter(seconds.values()))
        if size := _counted_bytes(figures, node, one_way):
            facts["output_bytes"] = size
        if shared := figures.held(index) if live is None else figures.constants[index]:
            facts["shared_bytes"] = shared
        if alive := int((figures.live if live is None else live)[index]):
            facts["live_bytes"] = alive
        if node in partners:
            facts["backward_of"] = partners[node]
        graph.add_node(node, **facts)
    position = figures.position
    graph.add_edges_from((used, node) for node in figures.nodes for used in node.all_input_nodes if used in position)
    graph.add_edges_from((state, user) for state, using in users.items() for user in using)
    return graph, _order_edges(graph, figures)


def _counted_bytes(figures: GraphFigures, node: Node, one_way: float) -> float:
    """Bytes that are charged where a value crosses: with its gradient, or what of it counts that goes one way only."""
    return figures.crossing(node) if figures.returned(node) else figures.sent(node) * one_way


def _check_support(graph: nx.DiGraph[Any], pins: Mapping[Node, str]) -> None:
    """Refuse a pin to a device that cannot run the operator; those are left out of its seconds."""
    for node, device in pins.items():
        seconds = graph.nodes[node]["seconds"]
        if isinstance(seconds, Mapping) and device not in seconds:
            raise InfeasibleError(
                f"{in_words(node)} is pinned to {device}, which does not support it; pin it to another device, or have "
                f"{device} support it.",
                node=node,
            )


def _check_not_torn(figures: GraphFigures, hard: Iterable[tuple[Node, ...]], pins: Mapping[Node, str]) -> None:
    """Refuse pins that take apart what no placement may; a solver would not know why these are together."""
    for group in hard:
        held = sorted((node for node in group if node in pins), key=figures.position.__getitem__)
        torn = next((node for node in held if pins[node] != pins[held[0]]), None)
        if torn is None:
            continue
        raise InfeasibleError(
            f"{in_words(held[0])} is pinned to {pins[held[0]]} and {torn.name} to {pins[torn]}, but they share a "
            f"device: {why_shared(group, held[0], torn, figures)}. Pin both to one device, or only one of them.",
            node=torn,
        )


def _check_bans(
    graph: nx.DiGraph[Any], names: Sequence[str], pins: Mapping[Node, str], bans: Mapping[Node, Collection[str]]
) -> None:
    """Refuse operators that are forbidden wherever they may run; a solver would not know where they come from."""
    for node, banned in bans.items():
        seconds = graph.nodes[node]["seconds"]
        unable = [name for name in names if isinstance(seconds, Mapping) and name not in seconds]
        wanted = [pins[node]] if node in pins else names
        if any(name not in banned and name not in unable for name in wanted):
            continue
        reasons = [f"pinned to {pins[node]}"] if node in pins else []
        reasons.append(f"forbidden on {', '.join(sorted(banned))}")
        if node not in pins and (others := [name for name in unable if name not in banned]):
            reasons.append(f"{listed(others)} cannot run it")
        raise InfeasibleError(f"{in_words(node)} may run nowhere ({'; '.join(reasons)}): give it a device.", node=node)


def _by_first_user(users: Iterable[StateNode]) -> dict[Node, list[StateNode]]:
    """Which parameters stand before each operator: so the order of the problem's nodes stays a topological one."""
    found: dict[Node, list[StateNode]] = {}
    for state in users:
        found.setdefault(state.first_user, []).append(state)
    return found


def _order_edges(graph: nx.DiGraph[Any], figures: GraphFigures) -> list[tuple[Hashable, Hashable]]:
    markers: list[tuple[Hashable, Hashable]] = []
    for earlier, later in (*figures.effects.order_edges, *figures.late_views):
        if earlier not in figures.position or later not in figures.position or graph.has_edge(earlier, later):
            continue
        if not graph.nodes[earlier].get("output_bytes"):
            graph.add_edge(earlier, later)
            continue
        marker = ("after", earlier)
        if marker not in graph:
            graph.add_node(marker, seconds=0.0)
            graph.add_edge(earlier, marker)
            markers.append((earlier, marker))
        graph.add_edge(marker, later)
    return markers


def assignment_of(
    graph_module: GraphModule | Graph, solution: PlacementSolution, dependencies: Dependencies | None = None
) -> Assignment:
    """The answer of a solver as parts: each a run of operators on one device, in an order in which they can run.

    Args:
        graph_module: The graph that :func:`placement_problem` was asked about.
        solution: What :func:`~fxpasses.partitioners.solve_placement` answered.
        dependencies: The view of this graph, if the caller has one already.

    Returns:
        Parts named after their device: ``left``, and ``left_1`` for its second run. Together they are acyclic; a device
        whose operators need values back from another one has several.

    Raises:
        InputError: the answer is something else.
    """
    if not isinstance(solution, PlacementSolution):
        raise InputError(f"The answer of a solver is a PlacementSolution, not {type(solution).__name__}.")
    return runs_of(graph_module, homes_of(solution), dependencies).assignment


def homes_of(solution: PlacementSolution) -> dict[Node, str]:
    """The device of each compute node, without the markers."""
    return {node: name for node, name in solution.device_of.items() if isinstance(node, Node)}
