"""What the backward of a graph keeps and makes when parts run its operators in another order than its own.

Autograd runs the backward of what came last first. So it depends on the order which of two gradients of a value is
there first, and until when what it is a view of cannot go. Where all users of each value keep their order, so do its
gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.outlining.regions import switches_regions
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds, CutOff, Stay
from fxpasses.partitioners.costs.training.backward_traces import trace_backward

__all__ = ["Orders", "keeps_order", "needs_in_order"]

Value = TypeVar("Value")
Orders = dict[tuple[tuple[Node, ...], ...], BackwardNeeds]
"""What a backward does by the turns of the users of each value that has several."""


def needs_in_order(
    graph_module: GraphModule, assignment: Assignment, needs: BackwardNeeds, known: Orders | None = None
) -> BackwardNeeds:
    """What the backward of a placed graph keeps and makes: as it is known, where its parts run it in its own order.

    Args:
        graph_module: The graph.
        assignment: Which node is in which part.
        needs: What the backward does where the graph runs in its own order. It is taken also where markers switch
            regions of torch's state, which parts enter by themselves.
        known: Orders that were looked at before; this one is added. It is the same one where the users of each value
            come in the same turns.
    """
    turns = _turns_of_users(assignment, needs)
    if _are_own(turns, assignment):
        return needs
    known, key = {} if known is None else known, tuple(turns.values())
    if key not in known:
        is_marked = any(map(switches_regions, graph_module.graph.nodes))
        known[key] = needs if is_marked else _traced(graph_module, _schedule(assignment))
    return known[key]


def keeps_order(assignment: Assignment, needs: BackwardNeeds) -> bool:
    """Whether the backward of a placed graph does what it does where the graph runs in its own order; O(edges)."""
    return _are_own(_turns_of_users(assignment, needs), assignment)


def _schedule(assignment: Assignment) -> list[Node]:
    return [node for part in assignment.order for node in assignment.partitions[part]]


def _turns_of_users(assignment: Assignment, needs: BackwardNeeds) -> dict[Node, tuple[Node, ...]]:
    """The users of each value that has several gradients, in the order in which they run."""
    place = {node: index for index, node in enumerate(_schedule(assignment)) if node in needs.differentiable}
    users = {value: [user for user in value.users if user in place] for value in needs.differentiable}
    return {value: tuple(sorted(each, key=place.__getitem__)) for value, each in users.items() if len(each) > 1}


def _are_own(turns: Mapping[Node, Sequence[Node]], assignment: Assignment) -> bool:
    """Whether users of each value come in the graph's own order; gradients of parameters are summed at the end."""
    placed = assignment.partition_of
    return all(list(turn) == sorted(turn) for value, turn in turns.items() if value in placed)


def _traced(graph_module: GraphModule, schedule: Sequence[Node]) -> BackwardNeeds:
    graph, copies = Graph(), dict[Node, Node]()
    inputs = [node for node in graph_module.graph.nodes if node.op in ("placeholder", "get_attr")]
    waiting = [graph_module.graph.output_node(), *reversed(schedule), *reversed(inputs)]
    while waiting:  # what is in no part comes before its first user
        node = waiting[-1]
        if missing := [used for used in node.all_input_nodes if used not in copies]:
            waiting += missing
            continue
        waiting.pop()
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    needs = trace_backward(GraphModule(graph_module, graph))
    return _of(needs, {twin: node for node, twin in copies.items()})


def _of(needs: BackwardNeeds, node_of: Mapping[Node, Node]) -> BackwardNeeds:
    """The same, about the nodes that were copied."""

    def keyed(found: Mapping[Node, Value]) -> dict[Node, Value]:
        return {node_of[node]: value for node, value in found.items()}

    def moved(stay: Stay) -> Stay:
        last = None if stay.last is None else node_of[stay.last]
        made_by, readers, passed = node_of[stay.made_by], keyed(stay.readers), keyed(stay.passed)
        of = keyed(stay.gradient_of)
        return attrs.evolve(stay, made_by=made_by, last=last, readers=readers, passed=passed, gradient_of=of)

    def all_of(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(map(node_of.__getitem__, nodes))

    return BackwardNeeds(
        {node_of[node]: all_of(owners) for node, owners in needs.saved.items()},
        keyed(needs.extra),
        keyed(needs.differentiable),
        keyed(needs.inside),
        [moved(stay) for stay in needs.stays],
        keyed(needs.beside),
        {node_of[node]: node_of[maker] for node, maker in needs.trained.items()},
        keyed(needs.inside_on_cpu),
        keyed(needs.beside_on_cpu),
        keyed(needs.beside_sums),
        {node_of[node]: all_of(owners) for node, owners in needs.saved_tangents.items()},
        {node_of[node]: CutOff(all_of(cut.saved), all_of(cut.holders)) for node, cut in needs.cut_off.items()},
        {node_of[node]: all_of(owners) for node, owners in needs.held_to_end.items()},
    )
