"""Predict how long a placed graph takes: part after part, or each as soon as its device and its inputs are there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.backward_tasks import add_backward
from fxpasses.partitioners.costs.graph_figures import FORWARD_AND_BACKWARD, GraphFigures, no_bytes, value_bytes
from fxpasses.partitioners.costs.list_scheduling import run_as_soon_as_possible
from fxpasses.partitioners.costs.node_costs import seconds_of
from fxpasses.partitioners.costs.shared_state import SharedState, sent_state, shared_state
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.partitioners.costs.task_lists import tasks_of

__all__ = ["critical_path", "makespan_of", "predict_makespan", "predict_times", "times_of"]

Seconds = Callable[[Node, Device], float]
Bytes = Callable[[Node], int]


def predict_times(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    *,
    seconds: Seconds = seconds_of,
    sent: Bytes = value_bytes,
    returned: Bytes = no_bytes,
    loads: Sequence[ParameterLoad] = (),
    shared: Sequence[SharedState] | None = None,
) -> tuple[float, dict[str, float]]:
    """Predict seconds of one run, parts one after the other, and the busy seconds of each device.

    Args:
        graph_module: The unsplit graph.
        assignment: Which node is in which part.
        device_of: The device of each part.
        topology: Devices and links.
        seconds: Seconds of a node on a device; measured or counted by default.
        sent: Bytes of a node's value that go to another device.
        returned: Bytes of its gradient that come back.
        loads: The parameters that offloaded parts load from main memory.
        shared: State that several operators use, which crosses where they are on several devices; by default that of
            the graph.

    Returns:
        Seconds of one run with all transfers, and seconds by device: its nodes, each value that enters it, and each
        value that leaves it, once, over the slowest link that it takes. Sums do not depend on the order of parts.
    """
    load: dict[str, list[float]] = {device.name: [] for device in topology.devices}
    total: list[float] = []
    home: dict[Node, str] = {node: device_of[str(part)].name for node, part in assignment.partition_of.items()}

    def send(value: Node, source: str, targets: Iterable[str]) -> None:
        size, back = sent(value), returned(value)
        taken = {target: topology.seconds(source, target, size, back) for target in targets} if size else {}
        load[source].append(max(taken.values(), default=0.0))
        for target, sending in taken.items():
            load[target].append(sending)
        total.extend(taken.values())

    for node, part in assignment.partition_of.items():
        busy = seconds(node, device_of[str(part)])
        load[home[node]].append(busy)
        total.append(busy)
        targets = dict.fromkeys(home[user] for user in node.users if user in home and home[user] != home[node])
        if targets:
            send(node, home[node], targets)
    for state in sent_state(shared_state(graph_module) if shared is None else shared, assignment, device_of, loads):
        send(state.names[0], state.source, state.users)
    for each in loads:
        taken = each.times * each.seconds
        load[device_of[each.part].name].append(taken)
        total.append(taken)
    return math.fsum(total), {name: math.fsum(busy) for name, busy in load.items()}


def predict_makespan(
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    *,
    seconds: Seconds = seconds_of,
    sent: Bytes = value_bytes,
    returned: Bytes = no_bytes,
    shared: Sequence[SharedState],
    loads: Sequence[ParameterLoad] = (),
    share: Callable[[Node], float] | None = None,
) -> float:
    """Predict seconds until the last part ends, where each starts once its device is free and its inputs are there.

    Copies and loads run beside the work of both ends, one at a time on each link and direction: the run that
    ``simulate(overlap="copies")`` shows. A training step counts as a run that takes longer and sends more; where it
    loads something its backward comes after its forward, since only there nothing is loaded ahead.

    Args:
        assignment: Which node is in which part.
        device_of: The device of each part.
        topology: Devices and links.
        seconds: Seconds of a node on a device, in a training step of its forward and its backward.
        sent: Bytes of a node's value that go to another device.
        returned: Bytes of its gradient that come back.
        shared: State that several operators use.
        loads: The parameters that offloaded parts load from main memory.
        share: For a training step: how often the work of its forward the backward of a node is.
    """
    if share is None or not loads:
        todo = tasks_of(
            assignment,
            device_of,
            topology,
            seconds,
            1,
            "copies",
            sent=sent,
            returned=returned,
            loads=loads,
            shared=shared,
        )
    else:
        home = {node: device_of[str(part)] for node, part in assignment.partition_of.items()}
        taken = {node: seconds(node, device) / (1 + share(node)) for node, device in home.items()}
        todo = tasks_of(assignment, device_of, topology, lambda n, _: taken[n], 1, "copies", loads=loads, shared=shared)
        add_backward(todo, assignment.partitions, topology, taken, share, loads)
    run_as_soon_as_possible(todo.tasks)
    return max((task.end for task in todo.tasks), default=0.0)


def times_of(
    figures: GraphFigures,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    loads: Sequence[ParameterLoad] = (),
) -> tuple[float, dict[str, float]]:
    """What :func:`predict_times` says of a measured graph."""
    return predict_times(
        figures.graph_module,
        assignment,
        device_of,
        topology,
        seconds=figures.measured,
        sent=figures.sent,
        returned=figures.returned,
        loads=loads,
        shared=figures.shared_state,
    )


def makespan_of(
    figures: GraphFigures,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    loads: Sequence[ParameterLoad] = (),
) -> float:
    """What :func:`predict_makespan` says of a measured graph."""
    return predict_makespan(
        assignment,
        device_of,
        topology,
        seconds=figures.measured,
        sent=figures.sent,
        returned=figures.returned,
        loads=loads,
        shared=figures.shared_state,
        share=(lambda node: FORWARD_AND_BACKWARD - 1 if node in figures.trained else 0) if figures.trained else None,
    )


def critical_path(figures: GraphFigures, topology: Topology) -> float:
    """Seconds that no placement is below: the longest way through the graph, each node on its fastest device."""
    done: dict[Node, float] = {}
    for node in figures.nodes:
        least = min(figures.measured(node, device) for device in topology.devices)
        done[node] = least + max((done[used] for used in node.all_input_nodes if used in done), default=0.0)
    return max(done.values(), default=0.0)
