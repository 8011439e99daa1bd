"""Make an execution order of a placement: runs of operators on one device each, as few as a greedy walk finds."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.devices import Device, Topology
from fxpasses.outlining.regions import dependencies_of_parts
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.grouping.keep_together import is_getitem
from fxpasses.partitioners.placing.names.part_names import PartNames

__all__ = ["Runs", "runs_by_schedule", "runs_in_turns", "runs_of"]


@attrs.frozen
class Runs:
    """Parts in execution order, and the name of the device of each."""

    assignment: Assignment
    device_of: Mapping[str, str]

    def devices(self, topology: Topology) -> dict[str, Device]:
        """The device of each part."""
        return {part: topology[name] for part, name in self.device_of.items()}


def runs_of(
    graph_module: GraphModule | Graph,
    device_of: Mapping[Node, str],
    dependencies: Dependencies | None = None,
    start: Mapping[Any, float] | None = None,  # by node, among other things that a solver placed
) -> Runs:
    """Cut a placement into parts that can run one after the other.

    Each device gets one part where that makes no cycle. Else a walk over the graph stays on a device as long as
    something can run there, and goes on where the first waiting operator is: no part needs a later one.

    Args:
        graph_module: The graph.
        device_of: The name of the device of each compute node.
        dependencies: The data and order edges, if the caller has them already.
        start: When each node shall start, where that is known; else the order of the graph counts.

    Returns:
        Parts named ``left``, ``left_1`` (the second run of ``left``), ...; O((n + m) log n).
    """
    dependencies = dependencies or dependencies_of_parts(graph_module)
    whole = Assignment.if_acyclic(graph_module, device_of, dependencies=dependencies)
    if whole is None:  # values flow back to a device: it takes several turns
        return runs_in_turns(graph_module, device_of, dependencies, start)
    return Runs(whole, {str(part): str(part) for part in whole.order})


def runs_in_turns(
    graph_module: GraphModule | Graph,
    device_of: Mapping[Node, str],
    dependencies: Dependencies | None = None,
    start: Mapping[Any, float] | None = None,
) -> Runs:
    """Cut a placement into parts wherever a device has to wait for another one, so that branches run side by side.

    The arguments are those of :func:`runs_of`.
    """
    dependencies = dependencies or dependencies_of_parts(graph_module)
    fresh = PartNames(device_of.values()).fresh
    names: dict[int, str] = {}
    homes: dict[str, str] = {}
    partition_of: dict[Node, str] = {}
    for number, turn, device in _turns(dependencies, device_of, start or {}):
        if turn not in names:
            names[turn] = fresh(device)
            homes[names[turn]] = device
        partition_of[dependencies.nodes[number]] = names[turn]
    return Runs(Assignment.of(graph_module, partition_of, order=homes, dependencies=dependencies), homes)


def runs_by_schedule(
    graph_module: GraphModule | Graph,
    device_of: Mapping[Node, str],
    dependencies: Dependencies | None = None,
    start: Mapping[Any, float] | None = None,
) -> Runs:
    """Cut a schedule into parts that wait for their first operator only, and that end with what others wait for.

    On each device operators keep the order in which they start. One that uses a value of another device begins a part,
    one whose value another device uses ends it: so each part can start when its first operator is scheduled to.

    The arguments are those of :func:`runs_of`. O((n + m) log n).
    """
    dependencies = dependencies or dependencies_of_parts(graph_module)
    nodes, homes = dependencies.nodes, [device_of.get(node) for node in dependencies.nodes]
    begin = _starts(dependencies, start or {})
    fresh = PartNames(device_of.values()).fresh
    part_at: dict[str, str] = {}  # the part that each device is at, while it is open
    names: dict[str, str] = {}
    partition_of: dict[Node, str] = {}
    placed = (number for number, home in enumerate(homes) if home is not None and not is_getitem(nodes[number]))
    for number in sorted(placed, key=lambda at: (begin[at], at)):
        home = str(homes[number])
        if home not in part_at or _is_elsewhere(homes, dependencies.predecessor_lists[number], home):
            part_at[home] = fresh(home)
            names[part_at[home]] = home
        whole = [number, *_elements(dependencies, number)]
        partition_of |= {nodes[each]: part_at[home] for each in whole}
        if any(_is_elsewhere(homes, dependencies.successor_lists[each], home) for each in whole):
            del part_at[home]
    return Runs(Assignment.of(graph_module, partition_of, order=names, dependencies=dependencies), names)


def _elements(dependencies: Dependencies, number: int) -> Iterator[int]:
    """The elements that are taken out of a tuple, and out of tuples in it: they stay with it."""
    waiting = [number]
    while waiting:
        for user in dependencies.successor_lists[waiting.pop()]:
            if is_getitem(dependencies.nodes[user]):
                waiting.append(user)
                yield user


def _starts(dependencies: Dependencies, start: Mapping[Any, float]) -> list[float]:
    """When each node starts; never before what it needs."""
    begin: list[float] = []
    for number, node in enumerate(dependencies.nodes):
        needed = (begin[each] for each in dependencies.predecessor_lists[number])
        begin.append(max(start.get(node, 0.0), max(needed, default=0.0)))
    return begin


def _is_elsewhere(homes: list[str | None], numbers: Iterable[int], home: str) -> bool:
    return any(homes[each] not in (None, home) for each in numbers)


def _turns(
    dependencies: Dependencies, device_of: Mapping[Node, str], start: Mapping[Any, float]
) -> Iterator[tuple[int, int, str]]:
    """Each placed node by its number, in an order in which they can run, with the turn it runs in and its device."""
    missing = [len(row) for row in dependencies.predecessor_lists]
    homes = [device_of.get(node) for node in dependencies.nodes]
    keys = [(start.get(node, 0.0), number) for number, node in enumerate(dependencies.nodes)]
    ready: dict[str, list[tuple[float, int]]] = {name: [] for name in dict.fromkeys(device_of.values())}
    done: list[int] = []

    def became_ready(number: int) -> None:
        home = homes[number]
        if home is None:  # inputs, attributes and the output are on no device: there at once
            done.append(number)
        else:
            heapq.heappush(ready[home], keys[number])

    for number, count in enumerate(missing):
        if not count:
            became_ready(number)
    turn, device = -1, None
    while True:
        while done:
            for user in dependencies.successor_lists[done.pop()]:
                missing[user] -= 1
                if not missing[user]:
                    became_ready(user)
        if device is None or not ready[device]:
            waiting = [(queue[0], name) for name, queue in ready.items() if queue]
            if not waiting:
                return
            turn, device = turn + 1, min(waiting)[1]
        number = heapq.heappop(ready[device])[1]
        yield number, turn, device
        done.append(number)
