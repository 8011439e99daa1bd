"""What goes where when groups of nodes become submodules, decided before anything is built.

Which part each node is in, in which order parts and left-over nodes run, which values cross, and where each parameter
lives. :mod:`fxpasses.outlining` builds what a :class:`Plan` says.

All of it is linear in nodes and edges, but for sorting and for the order of parts that are interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.editing.attributes import Attribute, find_attribute
from fxpasses.errors import CycleError, PartitionError, SplitError
from fxpasses.outlining.boundaries import Leaf, Value, adopt_getitems, elements_of, is_size_of_unknown_rank
from fxpasses.outlining.lazy_modules import LazyGraphModule
from fxpasses.outlining.regions import Regions, dependencies_of_parts, is_marker

__all__ = ["TOP", "Constants", "Part", "Plan", "Policy", "make_plan"]

TOP = -1
"""The home of nodes that are in no part."""

Policy = Literal["share", "own", "duplicate", "pass_in"]
Constants = Policy | Callable[[str, Any, tuple[str, ...]], Policy]
"""Where a parameter, buffer or constant lives that parts use; see :func:`fxpasses.outlining.outline`."""

_POLICIES = ("share", "own", "duplicate", "pass_in")


@attrs.define(eq=False)
class Part:
    """One group of nodes on its way to becoming a submodule.

    Attributes:
        name: The attribute of the top-level module that will hold it.
        nodes: Its nodes in the source graph, in the order in which they run.
        inputs: The values it takes, in graph order.
        outputs: The values it gives, in graph order.
        wholes: Tuple-valued nodes of other parts that it needs as a whole; it puts them together from elements.
        remade: Sizes of tensors that it asks for itself, because nobody knows how many numbers they are.
        constants: The ``get_attr`` nodes it has a copy of.
        owned: The qualified name in the source of each attribute it holds, by its name in the part.
        module: The submodule, once it is built.
        copies: For each value used inside, its node in the submodule's graph.
    """

    name: str
    nodes: list[Node] = attrs.field(factory=list)
    inputs: list[Value] = attrs.field(factory=list)
    outputs: list[Value] = attrs.field(factory=list)
    wholes: dict[Node, None] = attrs.field(factory=dict)
    remade: dict[Node, None] = attrs.field(factory=dict)
    constants: list[Node] = attrs.field(factory=list)
    clones: dict[Node, Attribute] = attrs.field(factory=dict)
    owned: dict[str, str] = attrs.field(factory=dict)
    module: LazyGraphModule | None = None
    copies: dict[Any, Any] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Plan:
    """What goes where.

    Attributes:
        graph_module: The source.
        nodes: Its nodes, in graph order.
        position: The place of each node in that order.
        parts: The groups.
        home: The part of each node, by number; nodes that stay outside are missing.
        regions: Its autocast, grad-mode and inference-mode regions.
        sequence: What the top level does, in order: numbers of parts, and left-over nodes.
        wholes: Tuple-valued nodes of parts that the top level needs as a whole.
        remade: Sizes of tensors that the top level asks for itself.
        leaves: Elements of a node that have to be picked, by node.
        routes: For ``get_attr`` nodes passed into parts, the name to read at the top level, if it changes.
    """

    graph_module: GraphModule
    nodes: list[Node]
    position: dict[Node, int]
    parts: list[Part]
    home: dict[Node, int]
    regions: Regions
    sequence: list[int | Node] = attrs.field(factory=list)
    wholes: dict[Node, None] = attrs.field(factory=dict)
    remade: dict[Node, None] = attrs.field(factory=dict)
    leaves: dict[Node, dict[Leaf, None]] = attrs.field(factory=dict)
    elements: dict[Node, Any] = attrs.field(factory=dict)
    constant_users: dict[Node, dict[int, None]] = attrs.field(factory=dict)
    routes: dict[Node, tuple[int, str]] = attrs.field(factory=dict)


def make_plan(
    graph_module: GraphModule,
    parts: Sequence[tuple[str, Iterable[Node]]],
    *,
    constants: Constants = "share",
    dependencies: Dependencies | None = None,
    keep_order: bool = False,
) -> Plan:
    """Decide what goes where; nothing is changed or built.

    Args:
        graph_module: The source.
        parts: A name and the nodes of each group.
        constants: See :func:`fxpasses.outlining.outline`.
        dependencies: The dense view of this graph, if the caller has it.
        keep_order: Parts run in the order in which they are given.
    """
    nodes = list(graph_module.graph.nodes)
    position = {node: place for place, node in enumerate(nodes)}
    home = _homes(parts, position)
    adopt_getitems(nodes, home, TOP)
    regions = Regions(nodes) if any(map(is_marker, nodes)) else Regions(())
    for node in [node for node in home if node in regions]:
        del home[node]
    plan = Plan(graph_module, nodes, position, [Part(name) for name, _ in parts], home, regions)
    plan.sequence = _contiguous_sequence(plan, keep_order) or _ordered_sequence(plan, keep_order, dependencies)
    _fill_parts(plan)
    _find_crossings(plan)
    _place_constants(plan, constants)
    for part in plan.parts:
        part.inputs.sort(key=lambda value: _place(plan, value))
        part.outputs.sort(key=lambda value: _place(plan, value))
    return plan


def _homes(parts: Sequence[tuple[str, Iterable[Node]]], position: Mapping[Node, int]) -> dict[Node, int]:
    home: dict[Node, int] = {}
    for number, (name, members) in enumerate(parts):
        for node in members:
            if node not in position:
                raise PartitionError(f"part {name!r} holds {node}, which is not a node of this graph", node=node)
            if node.op in ("placeholder", "output"):
                raise PartitionError(f"part {name!r} holds {node}, a node of kind {node.op}, which stays outside")
            if home.setdefault(node, number) != number:
                raise PartitionError(f"parts {parts[home[node]][0]!r} and {name!r} both hold {node}", node=node)
    return home


def _contiguous_sequence(plan: Plan, keep_order: bool) -> list[int | Node] | None:
    """The order of the graph itself, if each part is one uninterrupted run of it; then nothing else need be asked."""
    sequence: list[int | Node] = []
    seen: set[int] = set()
    last = TOP
    home = plan.home
    for node in plan.nodes:
        if node.op in ("placeholder", "output", "get_attr") or node in plan.regions:
            continue
        here = home.get(node, TOP)
        follows = _is_pick(node) and home.get(node.all_input_nodes[0], TOP) == here
        if here == TOP:
            if follows and last != TOP:
                sequence.insert(-1, node)  # its source stands before this run, or the run would have ended there
            else:
                sequence.append(node)
                last = TOP
        elif here != last and not follows:
            if here in seen or (keep_order and seen and here < max(seen)):
                return None
            seen.add(here)
            sequence.append(here)
            last = here
    return sequence


def _is_pick(node: Node) -> bool:
    """Whether a node picks an element or a view, which is the same before and after a write; a copy is not."""
    is_getitem = getattr(node.target, "__name__", None) == "getitem"
    return is_getitem and len(node._input_nodes) == 1 and isinstance(node.args[1], (int, str, slice))


def _ordered_sequence(plan: Plan, keep_order: bool, dependencies: Dependencies | None) -> list[int | Node]:
    """An order in which each part runs in one go, as close to the graph's own as data and effects allow."""
    view = dependencies if dependencies is not None and not plan.regions else dependencies_of_parts(plan.graph_module)
    labels = [plan.home.get(node, TOP) for node in view.nodes]
    extra: list[tuple[int, int]] = []
    if keep_order:
        anchor: dict[int, int] = {}
        for index, label in enumerate(labels):
            anchor.setdefault(label, index)
        present = [number for number in range(len(plan.parts)) if number in anchor]
        extra = [(anchor[a], anchor[b]) for a, b in pairwise(present)]
    try:
        order = view.stable_order(extra, labels)
    except CycleError as error:
        raise _cycle_of_parts(plan, view, error) from None
    sequence: list[int | Node] = []
    seen: set[int] = set()
    for index in order:
        node = view.nodes[index]
        label = labels[index]
        if label != TOP and label not in seen:
            seen.add(label)
            sequence.append(label)
        elif label == TOP and node.op not in ("placeholder", "output", "get_attr") and node not in plan.regions:
            sequence.append(node)
    return sequence


def _cycle_of_parts(plan: Plan, view: Dependencies, error: CycleError) -> CycleError:
    path = [view.nodes[step] if isinstance(step, int) else step for step in error.path]
    names = list(dict.fromkeys(plan.parts[plan.home[node]].name for node in path if node in plan.home))
    waits = "would wait for itself" if len(names) == 1 else "would wait for each other"
    described = view.describe([view.position[node] for node in path])
    return CycleError(
        f"part{'s' if len(names) > 1 else ''} {', '.join(map(repr, names))} {waits}: {described}; "
        "put all nodes of this path into one part, or take one of them out",
        path=path,
        node=path[0] if path else None,
    )


def _fill_parts(plan: Plan) -> None:
    home = plan.home
    for node in plan.nodes:
        if node in home and node.op != "get_attr":
            plan.parts[home[node]].nodes.append(node)


def _find_crossings(plan: Plan) -> None:
    """Note each value that is used elsewhere than where it is made."""
    crossings = _Crossings(plan)
    for node in plan.nodes:
        if node not in plan.regions and node.op != "placeholder":
            here = plan.home.get(node, TOP)
            for source in node._input_nodes:
                if source.op == "get_attr" or plan.home.get(source, TOP) != here:
                    crossings.note(source, here)
    for number, part in enumerate(plan.parts):
        part.inputs, part.outputs = list(crossings.taken[number]), list(crossings.given[number])


class _Crossings:
    """What each part takes and gives, while it is found out."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.taken: list[dict[Value, None]] = [{} for _ in plan.parts]
        self.given: list[dict[Value, None]] = [{} for _ in plan.parts]

    def note(self, source: Node, here: int) -> None:
        """The value of ``source`` is used in ``here``, and made elsewhere."""
        plan = self.plan
        if source.op == "get_attr":
            plan.constant_users.setdefault(source, {})[here] = None
            return
        values = _elements(plan, source)
        if plan.elements[source] is not source:
            (plan.wholes if here == TOP else plan.parts[here].wholes)[source] = None
        elif is_size_of_unknown_rank(source):
            (plan.remade if here == TOP else plan.parts[here].remade)[source] = None
            tensor = source.all_input_nodes[0]
            if tensor.op == "get_attr" or plan.home.get(tensor, TOP) != here:
                self.note(tensor, here)
            return
        there = plan.home.get(source, TOP)
        if here != TOP:
            self.taken[here].update(dict.fromkeys(values))
        if there != TOP:
            self.given[there].update(dict.fromkeys(values))


def _elements(plan: Plan, source: Node) -> list[Value]:
    """The values that cross where ``source`` is used elsewhere: itself, or its elements if it is a tuple."""
    if source not in plan.elements:
        plan.elements[source] = elements_of(source)
    nested = plan.elements[source]
    if nested is source:
        return [source]
    flat: list[Value] = []
    waiting = [nested]
    while waiting:
        element = waiting.pop()
        if isinstance(element, (tuple, list)):
            waiting.extend(reversed(element))
        elif element is not None:
            flat.append(element)
    plan.leaves.setdefault(source, {}).update((value, None) for value in flat if isinstance(value, Leaf))
    return flat


def _place(plan: Plan, value: Value) -> tuple[Any, ...]:
    if isinstance(value, Node):
        return (plan.position[value],)
    return (plan.position[value.source], *value.path)


def _place_constants(plan: Plan, constants: Constants) -> None:
    """Give each ``get_attr`` node to the parts that hold its value, or make it an input of those that do not.

    What has several names, or is read by several nodes, is one constant: tied weights are decided about together.
    """
    rank = {item: place for place, item in enumerate(plan.sequence) if isinstance(item, int)}
    groups: dict[int, list[Node]] = {}
    found: dict[Node, Attribute] = {}
    for node in (node for node in plan.nodes if node.op == "get_attr"):
        if any(number != TOP for number in plan.constant_users.get(node, ())):
            found[node] = find_attribute(plan.graph_module, str(node.target), user=node.name)
            groups.setdefault(id(found[node].value), []).append(node)
    for nodes in groups.values():
        homes = dict.fromkeys(number for node in nodes for number in plan.constant_users[node] if number != TOP)
        ordered = sorted(homes, key=rank.__getitem__)
        attribute = found[nodes[0]]
        policy = _policy(plan, constants, nodes[0], attribute, ordered)
        holders = {"pass_in": [], "own": ordered[:1]}.get(policy, ordered)
        clones = {number: _clone(attribute) for number in ordered[1:]} if policy == "duplicate" else {}
        for node in nodes:
            if policy == "own":
                plan.routes[node] = (ordered[0], _owned_name(plan, nodes, ordered[0]))
            for number in sorted((home for home in plan.constant_users[node] if home != TOP), key=rank.__getitem__):
                part = plan.parts[number]
                (part.constants if number in holders else part.inputs).append(node)
                if number in clones:
                    part.clones[node] = clones[number]


def _owned_name(plan: Plan, nodes: Sequence[Node], owner: int) -> str:
    """The name under which the owner of a constant reads it."""
    return next(str(node.target) for node in nodes if owner in plan.constant_users[node])


def _policy(plan: Plan, constants: Constants, node: Node, attribute: Attribute, homes: Sequence[int]) -> Policy:
    if attribute.kind == "module" or node in plan.home:
        return "share"  # the body of a higher-order operator cannot be passed; a node that was assigned goes along
    names = tuple(plan.parts[number].name for number in homes)
    policy = constants(str(node.target), attribute.value, names) if callable(constants) else constants
    if policy not in _POLICIES:
        raise SplitError(
            f"the policy for constant {node.target!r} is {policy!r}; "
            f"it must be one of {', '.join(map(repr, _POLICIES))}",
            node=node,
        )
    return policy


def _clone(attribute: Attribute) -> Attribute:
    value = attribute.value
    if isinstance(value, torch.nn.Parameter):
        value = torch.nn.Parameter(value.detach().clone(), requires_grad=value.requires_grad)
    elif isinstance(value, torch.Tensor):
        value = value.detach().clone()
    return attrs.evolve(attribute, value=value)
