"""Several backends in one graph: who runs which node, in which parts, and what crosses between them.

Backends take their parts one after the other. What an earlier one has is opaque to a later one, so every node has one
owner; what nobody supports goes to the fallback.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.errors import PartitionError
from fxpasses.partitioners.assignment import Assignment, group_order
from fxpasses.partitioners.given import module_of
from fxpasses.partitioners.grouping.fewer_transfers import reduce_transfers
from fxpasses.partitioners.grouping.keep_together import element_homes
from fxpasses.partitioners.grouping.proposing import CapabilityOptions, draft_around
from fxpasses.partitioners.grouping.small_parts import value_bytes
from fxpasses.partitioners.grouping.viewing import view_of
from fxpasses.partitioners.support import CALLS, Verdicts, ask_support, check_support
from fxpasses.wording import did_you_mean

__all__ = ["BackendAssignment", "Transfer", "partition_for_backends"]


@attrs.frozen
class Transfer:
    """One value that goes from one backend to another; however many nodes use it there, it goes once.

    Args:
        value: The node that makes it.
        source: The backend that has it.
        target: The backend that wants it.
        bytes: Its size, after ``meta["val"]``; 0 where that is not known.
    """

    value: Node
    source: str
    target: str
    bytes: int


@attrs.frozen
class BackendAssignment:
    """An Assignment whose partitions belong to backends.

    Args:
        assignment: The partitions, called after their backend and their number (``"npu_0"``).
        backend_of_partition: The backend of each partition.
        fallback: Who runs what is in no partition; None if nobody does.
        declined: For each backend, why it does not run a node.
    """

    assignment: Assignment
    backend_of_partition: Mapping[Hashable, str]
    fallback: str | None
    declined: Mapping[str, Mapping[Node, str]]

    def backend_of(self, node: Node) -> str | None:
        """The backend that runs a node."""
        if node in self.assignment.partition_of:
            return self.backend_of_partition[self.assignment.partition_of[node]]
        return self.fallback if node.op in CALLS else None

    def partitions_of(self, backend: str) -> list[Hashable]:
        """The partitions of one backend in execution order."""
        return [name for name in self.assignment.order if self.backend_of_partition[name] == backend]

    @property
    def transfers(self) -> list[Transfer]:
        """The values that cross from one backend to another, in graph order; inputs and parameters are not counted."""
        return _transfers(self.assignment.dependencies, self.backend_of)

    @property
    def transfer_bytes(self) -> int:
        """The bytes of all transfers."""
        return sum(transfer.bytes for transfer in self.transfers)

    def why(self, node: Node) -> str:
        """Say in one sentence which backend runs a node, and why none before it does."""
        owner = self.backend_of(node)
        refusals = [
            f"{name}: {reasons[node]}" for name, reasons in self.declined.items() if node in reasons and name != owner
        ]
        placed = self.assignment.why(node) if owner is None or node in self.assignment.partition_of else f"on {owner}"
        return f"{placed} ({'; '.join(refusals)})" if refusals else placed


def partition_for_backends(
    graph_module: GraphModule,
    supports: Mapping[str, Any],
    *,
    priority: Sequence[str] | None = None,
    fallback: str | None = "cpu",
    objective: Literal["priority", "cost"] = "priority",
    options: CapabilityOptions | Mapping[str, CapabilityOptions] | None = None,
) -> BackendAssignment:
    """Give every call of a graph to one backend.

    Args:
        graph_module: The graph; it is not changed.
        supports: For each backend what it supports; each is asked once about each call.
        priority: The backends, the preferred one first; by default in the order of ``supports``.
        fallback: Who runs what no backend supports; None leaves it in no partition.
        objective: ``"priority"`` gives a node to the first backend that supports it. ``"cost"`` gives it to the one of
            those that support it that makes the fewest bytes cross, the first of several.
        options: What else to mind, for all backends or for each.

    Returns:
        The partitions with their backends.

    Raises:
        PartitionError: ``priority`` does not list the backends, ``options`` name another, or a support object cannot be
            asked.

    Complexity:
        O(backends * (V + E)); ``"cost"`` sweeps a few times more.
    """
    root = module_of(graph_module)
    names = _checked_priority(supports, priority, fallback)
    _check_options(options, names)
    verdicts = {name: ask_support(root, check_support(supports[name])) for name in names}
    dependencies = view_of(root)
    owners = _owners_by_priority(dependencies, verdicts)
    if objective == "cost":
        reduce_transfers(dependencies, owners, verdicts)
    elif objective != "priority":
        raise PartitionError(f'objective must be "priority" or "cost", not {objective!r}')
    declined = {name: dict(verdict.reasons) for name, verdict in verdicts.items()}
    parts: list[tuple[str, list[int]]] = []
    owned: set[int] = set()
    for name in names:
        wanted = [
            number not in owned
            and (owners[number] == name or (objective == "priority" and node in verdicts[name].supported))
            for number, node in enumerate(dependencies.nodes)
        ]
        draft = draft_around(dependencies, wanted, [part for _, part in parts], _options_for(options, name))
        declined[name].update({dependencies.nodes[number]: reason for number, reason in draft.reasons.items()})
        parts.extend((name, part) for part in draft.parts)
        owned.update(number for part in draft.parts for number in part)
    if fallback is not None:
        rest = [node.op in CALLS and number not in owned for number, node in enumerate(dependencies.nodes)]
        draft = draft_around(dependencies, rest, [part for _, part in parts], CapabilityOptions(keep_regions=False))
        parts.extend((fallback, part) for part in draft.parts)
    return _named(root.graph, dependencies, parts, fallback, declined)


def _checked_priority(supports: Mapping[str, Any], priority: Sequence[str] | None, fallback: str | None) -> list[str]:
    if not supports:
        raise PartitionError("partition_for_backends got no backends; give at least one {name: support}")
    if fallback in supports:
        raise PartitionError(f"the fallback {fallback!r} is also one of the backends; give it another name")
    names = list(supports) if priority is None else list(priority)
    if sorted(names) != sorted(supports):
        raise PartitionError(
            f"priority must list every backend once: it is {names!r}, and the backends are {list(supports)!r}"
        )
    return names


def _check_options(options: CapabilityOptions | Mapping[str, CapabilityOptions] | None, names: Sequence[str]) -> None:
    for name in () if options is None or isinstance(options, CapabilityOptions) else options:
        if name not in names:
            raise PartitionError(
                f"options are given for {name!r}, which is no backend; there are {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )


def _options_for(options: CapabilityOptions | Mapping[str, CapabilityOptions] | None, name: str) -> CapabilityOptions:
    if isinstance(options, CapabilityOptions):
        return options
    return (options or {}).get(name) or CapabilityOptions()


def _owners_by_priority(dependencies: Dependencies, verdicts: Mapping[str, Verdicts]) -> list[str | None]:
    """For each node the first backend that supports it; elements of tuples go with the tuple."""
    owners = [
        next((name for name, verdict in verdicts.items() if node in verdict.supported), None)
        for node in dependencies.nodes
    ]
    for follower, producer in element_homes(dependencies).items():
        owners[follower] = owners[producer]
    return owners


def _named(
    graph: Graph,
    dependencies: Dependencies,
    parts: Sequence[tuple[str, list[int]]],
    fallback: str | None,
    declined: Mapping[str, Mapping[Node, str]],
) -> BackendAssignment:
    """The parts in execution order, with a name each."""
    labels = [-1] * len(dependencies)
    for place, (_, part) in enumerate(sorted(parts, key=lambda each: each[1][0])):
        for number in part:
            labels[number] = place
    order = group_order(dependencies, labels, len(parts))
    if order is None:
        raise AssertionError("parts that were drawn around each other make no cycle")
    by_place = sorted(parts, key=lambda each: each[1][0])
    counts: dict[str, int] = {}
    backends: dict[Hashable, str] = {}
    partition_of: dict[Node, Hashable] = {}
    for backend, part in (by_place[place] for place in order):
        name = f"{backend}_{counts.setdefault(backend, 0)}"
        counts[backend] += 1
        backends[name] = backend
        partition_of.update({dependencies.nodes[number]: name for number in part})
    reasons = {
        node: "; ".join(f"{name}: {why[node]}" for name, why in declined.items() if node in why)
        for node in dependencies.nodes
        if node.op in CALLS and node not in partition_of
    }
    assignment = Assignment(graph, partition_of, tuple(backends), reasons, dependencies=dependencies)
    return BackendAssignment(assignment, backends, fallback, declined)


def _transfers(dependencies: Dependencies, backend_of: Any) -> list[Transfer]:
    found: list[Transfer] = []
    for node in dependencies.nodes:
        if node.op not in CALLS:
            continue
        source = backend_of(node)
        targets = dict.fromkeys(backend_of(user) for user in node.users if user.op in CALLS)
        found.extend(
            Transfer(node, source, target, value_bytes(node))
            for target in targets
            if target != source and target and source
        )
    return found
