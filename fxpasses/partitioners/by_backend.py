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
from fxpasses.partitioners.grouping.keep_together import element_homes
from fxpasses.partitioners.grouping.proposing import CapabilityOptions, draft_around
from fxpasses.partitioners.grouping.small_parts import value_bytes
from fxpasses.partitioners.grouping.viewing import view_of
from fxpasses.partitioners.support import CALLS, Verdicts, ask_support, check_support

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
        PartitionError: ``priority`` does not list the backends, or a support object cannot be asked.

    Complexity:
        O(backends * (V + E)); ``"cost"`` sweeps a few times more.
    """
    root = module_of(graph_module)
    names = _checked_priority(supports, priority, fallback)
    verdicts = {name: ask_support(root, check_support(supports[name])) for name in names}
    dependencies = view_of(root)
    owners = _owners_by_priority(dependencies, verdicts)
    if objective == "cost":
        _reduce_transfers(dependencies, owners, verdicts)
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


def _reduce_transfers(
    dependencies: Dependencies, owners: list[str | None], verdicts: Mapping[str, Verdicts], sweeps: int = 8
) -> None:
    """Change owners, in place, while that makes fewer bytes cross.

    Iterated conditional modes (J. Besag, "On the statistical analysis of dirty pictures", 1986): each node in turn
    takes the backend for which the fewest bytes cross at it, its neighbours being where they are; a local optimum.
    """
    followers = element_homes(dependencies)
    choices: dict[int, list[str]] = {}
    for number, node in enumerate(dependencies.nodes):
        able = [name for name, verdict in verdicts.items() if node in verdict.supported]
        if len(able) > 1 and number not in followers:
            choices[number] = able
    members: dict[int, list[int]] = {number: [number] for number in choices}
    for follower, producer in followers.items():
        members.get(producer, []).append(follower)
    for _ in range(sweeps):
        changed = False
        for sequence in (choices, dict(reversed(choices.items()))):
            for number, able in sequence.items():
                best = min(able, key=lambda name: _bytes_at(dependencies, owners, members[number], name))
                if _bytes_at(dependencies, owners, members[number], best) < _bytes_at(
                    dependencies, owners, members[number], owners[number]
                ):
                    for member in members[number]:
                        owners[member] = best
                    changed = True
        if not changed:
            break


def _bytes_at(
    dependencies: Dependencies, owners: Sequence[str | None], members: Sequence[int], name: str | None
) -> int:
    """The bytes that cross at a unit if its owner were ``name``; a value of unknown size counts as one byte."""
    inside = set(members)
    total = 0
    for member in members:
        node = dependencies.nodes[member]
        for used in node.all_input_nodes:
            source = dependencies.position[used]
            if source not in inside and used.op in CALLS and owners[source] != name:
                others = {
                    owners[dependencies.position[user]]
                    for user in used.users
                    if dependencies.position[user] not in inside
                }
                total += 0 if name in others else _weight(used)
        targets = {
            owners[dependencies.position[user]]
            for user in node.users
            if user.op in CALLS and dependencies.position[user] not in inside
        }
        total += _weight(node) * len(targets - {name})
    return total


def _weight(node: Node) -> int:
    return max(value_bytes(node), 1)


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
