"""Compute a value again where it is used, instead of sending it there.

Where parts of a graph run on different devices or in different processes, every value that crosses costs a copy. What
is pure and cheap (a mask, a rotary table, a view) may rather be computed in each part that uses it. Which values those
are is the caller's decision; here they are copied, and what must not be computed twice is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.editing import erase_nodes, insert_before
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import PartitionError
from fxpasses.metadata import MetaKey, running_pass
from fxpasses.outlining.copying import copy_graph_module
from fxpasses.outlining.regions import body_of_region, is_region
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.node_costs import COST, SECONDS, STEP_WORKSPACE, WORKSPACE
from fxpasses.partitioners.costs.shared_state import SharedState, sent_state
from fxpasses.partitioners.costs.single_loads import ParameterLoad

__all__ = [
    "REPLICA_OF",
    "ReplicaOf",
    "bytes_saved",
    "crossing_bytes",
    "replicate",
    "why_not_replicable",
    "with_replicas",
]


@attrs.frozen
class ReplicaOf:
    """Which node a replica stands for, by name, and the part that computes it again."""

    node: str
    part: str


REPLICA_OF = MetaKey[ReplicaOf](
    "fxpasses.replica_of",
    made_by="replicate()",
    depends_on_value=False,
    to_json=attrs.asdict,
    from_json=lambda facts: ReplicaOf(**facts),
)


def why_not_replicable(node: Node, effects: EffectAnalysis) -> str:
    """Why a node must not be computed a second time elsewhere, in a few words; "" if it may.

    Args:
        node: Any node of the graph.
        effects: The effects of that graph.

    >>> from torch.fx import symbolic_trace
    >>> import torch
    >>> graph_module = symbolic_trace(lambda x: torch.rand_like(x))
    >>> node = next(iter(graph_module.graph.find_nodes(op="call_function", target=torch.rand_like)))
    >>> why_not_replicable(node, analyze_effects(graph_module))
    'it draws random numbers'
    """
    if node.op not in ("call_function", "call_method"):
        return f"it is a node of kind {node.op}"
    does = effects.of(node)
    if does.random:
        return "it draws random numbers"
    if not does.is_pure and not (is_region(node) and _only_asserts(node)):
        return f"it has an effect: {does.reason}" if does.reason else "it has an effect"
    touched = {*does.reads, *effects.storages(node)}
    if not touched.isdisjoint(effects.written_storages):
        return "what it reads or gives is written in place"
    inside = effects.region_stack(node)  # a replica stands before its first user, in the regions that are open there
    if any(effects.region_stack(user) != inside for user in node.users if user.op != "output"):
        return "it is used outside of the region that it is in"
    return ""


def _only_asserts(region: Node) -> bool:
    """Whether the body of a region is pure but for assertions, which may be checked twice."""
    waiting = [body_of_region(region)]
    while waiting:
        body = waiting.pop()
        if body is None:
            return False
        effects = analyze_effects(body)
        for node in body.graph.nodes:
            if is_region(node):
                waiting.append(body_of_region(node))
            elif not effects.of(node).is_pure and not _is_assert(node):
                return False
    return True


def _is_assert(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.startswith("aten::_assert")


def replicate(
    graph_module: GraphModule, assignment: Assignment | Mapping[Node, Hashable], into: Mapping[Hashable, Iterable[Node]]
) -> dict[Node, Hashable]:
    """Copy nodes into parts that use them, so that these parts compute them themselves.

    Each part gets one copy of each node that is listed for it. The copy reads the copies of its own inputs where those
    are listed too. A pure original that nothing uses any more is erased, unless its part would be left empty.

    Args:
        graph_module: The graph, which is changed in place.
        assignment: The part of each node.
        into: The nodes to copy, for each part.

    Returns:
        The part of each node, copies included.

    Raises:
        PartitionError: A node draws random numbers, has an effect, or reads what is written; the graph is left as it
            was.

    Linear in the copied nodes and their users, after one analysis of the graph's effects.
    """
    homes = dict(assignment.partition_of if isinstance(assignment, Assignment) else assignment)
    wanted = {part: sorted(dict.fromkeys(nodes)) for part, nodes in into.items()}
    effects = analyze_effects(graph_module)
    _refuse_effects(wanted, effects)
    result = dict(homes)
    with running_pass("replicate"):
        for part, nodes in wanted.items():
            copied = [node for node in nodes if homes.get(node) != part]
            _copy_into(part, copied, result, {part})
        _erase_unused([node for nodes in wanted.values() for node in nodes if effects.is_removable(node)], result)
    return result


def with_replicas(
    graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Hashable] | None = None
) -> tuple[GraphModule, Assignment]:
    """Write the replicas of an assignment into a copy of its graph.

    Args:
        graph_module: The graph, which stays as it is; the copy shares its tensors.
        assignment: Which node is in which part, and which parts compute nodes of others again.
        device_of: The device of each part: later parts on a device use what an earlier one there has computed again.
            Without it, a replica is for its own part.

    Returns:
        The copy and the same assignment of its nodes, in which replicas are nodes like others, with
        :data:`REPLICA_OF`. The graph and the assignment themselves where there are no replicas.

    Raises:
        PartitionError: A node must not be computed twice.
        CycleError: A part would need for a replica what is only made after it.

    Linear in the graph.
    """
    if not assignment.replicas:
        return graph_module, assignment
    _refuse_effects(assignment.replicas, analyze_effects(graph_module))
    twin, nodes = copy_graph_module(graph_module)
    homes: dict[Node, Hashable] = {nodes[node]: part for node, part in assignment.partition_of.items()}
    lane = {part: part if device_of is None else device_of[str(part)] for part in assignment.order}
    reached: dict[Hashable, set[Hashable]] = {}
    with running_pass("replicate"):
        for part in reversed(assignment.order):  # a part's replicas serve those that come later on its device
            there = reached.setdefault(lane[part], set())
            there.add(part)
            _copy_into(part, [nodes[node] for node in sorted(assignment.replicas.get(part, ()))], homes, there)
    reasons = {nodes[node]: reason for node, reason in assignment.reasons.items()}
    return twin, Assignment.of(twin, homes, order=assignment.order, reasons=reasons)


def crossing_bytes(
    assignment: Assignment, device_of: Mapping[str, str], sent: Callable[[Node], int], *, again: bool = True
) -> dict[str, int]:
    """Bytes that enter each device in one run, each value once.

    Args:
        assignment: Which node is in which part, replicas being nodes like others.
        device_of: The name of the device of each part.
        sent: The bytes of a node's value.
        again: False counts as if nothing were computed again: replicas get their values sent.
    """
    entering: dict[str, int] = dict.fromkeys(device_of.values(), 0)
    home = {node: device_of[str(part)] for node, part in assignment.partition_of.items()}
    by_name = {} if again else {node.name: node for node in assignment.graph.nodes}
    wanted: dict[Node, dict[str, None]] = {}
    for node in home:
        origin = node if again else _origin(node, by_name)
        users = (user for user in node.users if user in home and (again or not REPLICA_OF.has(user)))
        wanted.setdefault(origin, {}).update(dict.fromkeys(home[user] for user in users))
    for origin, targets in wanted.items():
        for target in targets:
            if target != home[origin]:
                entering[target] += sent(origin)
    return entering


def _origin(node: Node, by_name: Mapping[str, Node]) -> Node:
    return by_name.get(REPLICA_OF.read(node).node, node) if REPLICA_OF.has(node) else node


def bytes_saved(
    assignment: Assignment,
    device_of: Mapping[str, Device],
    sent: Callable[[Node], int],
    shared: Sequence[SharedState] = (),
    loads: Sequence[ParameterLoad] = (),
) -> dict[str, int]:
    """Bytes that cross less in one run because of replicas, by the first part of a device that has some.

    Args:
        assignment: Which node is in which part, replicas being nodes like others.
        device_of: The device of each part.
        sent: The bytes of a node's value.
        shared: The shared state of the graph: what replicas read may have to be sent for them.
        loads: What offloaded parts load.
    """
    names = {part: device.name for part, device in device_of.items()}
    first: dict[str, str] = {}
    for part in map(str, assignment.order):
        if any(REPLICA_OF.has(node) for node in assignment.partitions[part]):
            first.setdefault(names[part], part)
    if not first:
        return {}
    plain = [
        attrs.evolve(state, users=tuple(user for user in state.users if not REPLICA_OF.has(user))) for state in shared
    ]
    without, now = (Counter(crossing_bytes(assignment, names, sent, again=again)) for again in (False, True))
    for entering, states in ((without, plain), (now, shared)):
        for state in sent_state(states, assignment, device_of, loads):
            entering.update(dict.fromkeys(state.users, sent(state.names[0])))
    return {part: without[name] - now[name] for name, part in first.items()}


def _refuse_effects(wanted: Mapping[Hashable, Iterable[Node]], effects: EffectAnalysis) -> None:
    for part, nodes in wanted.items():
        for node in nodes:
            if reason := why_not_replicable(node, effects):
                raise PartitionError(f"{node.name} cannot be computed again in part {part!r}: {reason}", node=node)


def _copy_into(part: Hashable, nodes: Sequence[Node], homes: dict[Node, Hashable], used_in: set[Hashable]) -> None:
    """Users first: each copy stands right before the first of its users, and so behind everything that it reads."""
    for node in reversed(nodes):
        users = [user for user in node.users if homes.get(user) in used_in]
        if not users:
            continue
        made = insert_before(min(users), node.target, node.args, node.kwargs, op=node.op, replaces=[node])
        for key in (COST, SECONDS, WORKSPACE, STEP_WORKSPACE):
            if key.has(node):
                made.meta[key.name] = node.meta[key.name]
        REPLICA_OF.write(made, ReplicaOf(node.name, str(part)))
        homes[made] = part
        for user in users:
            user.replace_input_with(node, made)


def _erase_unused(nodes: Iterable[Node], homes: dict[Node, Hashable]) -> None:
    left: dict[Hashable, int] = {}
    for part in homes.values():
        left[part] = left.get(part, 0) + 1
    for node in sorted(dict.fromkeys(nodes), reverse=True):
        part = homes.get(node)
        if node.users or (part is not None and left[part] == 1):
            continue
        if part is not None:
            left[part] -= 1
            del homes[node]
        erase_nodes([node])
