"""Hand the bodies of operators their tensors as operands, as ``torch.export`` does.

A pass that folds or adds a constant inside of a branch, a loop or a region hangs a tensor on that body. Such a graph
runs, but torch cannot trace it: ``torch.cond`` with gradients, ``run_decompositions()`` and ``torch.export.save``
refuse it. So the tensor goes one graph further out: the body takes one input more, and whoever calls it gives the
tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen

from fxpasses.editing.attributes import Attribute, find_attribute, install_attribute
from fxpasses.editing.submodules import get_attribute, remove_attribute
from fxpasses.effects.analysis import analyze_effects
from fxpasses.metadata import copy_metadata
from fxpasses.outlining.owning import own_bodies
from fxpasses.values.fake_modes import nested_graph_modules

__all__ = ["hand_in_constants"]

_AT_THE_END = -1
_OPERANDS = {
    "cond": 3,
    "while_loop": 3,
    "map_impl": 2,
    "scan": 3,
    "associative_scan": 2,
    "wrap_with_autocast": _AT_THE_END,
    "wrap_with_set_grad_enabled": _AT_THE_END,
    "tag_activation_checkpoint": _AT_THE_END,
    "invoke_subgraph": _AT_THE_END,
}
"""Which argument lists the operands that each body gets last; of some operators they are the last arguments."""


@attrs.frozen(eq=False)
class _Call:
    """An operator that runs bodies, and the graph module that it stands in."""

    holder: GraphModule
    node: Node
    bodies: tuple[GraphModule, ...]


@attrs.frozen(eq=False)
class _Family:
    """Bodies that take the same operands because a call has both, and all their calls."""

    bodies: dict[GraphModule, None] = attrs.field(factory=dict)
    calls: list[_Call] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class _Constant:
    """A tensor that a body holds, under its first name there."""

    name: str
    attribute: Attribute
    node: Node


def hand_in_constants(root: GraphModule) -> list[GraphModule]:
    """Move tensors that bodies hold to where the outermost of their operators stands, there and further inside.

    Bodies that somebody calls in a way that is not known, and tensors that a body writes, stay as they are. Each round
    moves them one graph outwards, in time linear in the nodes that name attributes.

    Returns:
        The graph modules that were edited; none of them is recompiled.
    """
    if not any(map(_held, _bodies(root))):
        return []
    own_bodies(root)
    edited: dict[GraphModule, None] = {}
    while families := [(family, found) for family in _families(root) if (found := _constants(family))]:
        for family, constants in families:
            _hand_in(family, constants)
            edited.update(family.bodies)
            edited.update(dict.fromkeys(call.holder for call in family.calls))
    return list(edited)


def _bodies(root: GraphModule) -> Iterator[GraphModule]:
    for holder in nested_graph_modules(root):
        for node in holder.graph.find_nodes(op="get_attr"):
            body = get_attribute(holder, str(node.target), None)
            if isinstance(body, GraphModule):
                yield body


def _held(body: GraphModule) -> list[Node]:
    """The nodes of a body that read tensors from it."""
    reads = body.graph.find_nodes(op="get_attr")
    return [node for node in reads if isinstance(get_attribute(body, str(node.target), None), torch.Tensor)]


# --- who calls what ---------------------------------------------------------------------------------------------------


def _families(root: GraphModule) -> list[_Family]:
    """Bodies of known operators, each with those that take the same operands."""
    family_of: dict[GraphModule, _Family] = {}
    barred: set[torch.nn.Module | None] = set()
    for holder in nested_graph_modules(root):
        barred.update(get_attribute(holder, str(node.target)) for node in holder.graph.find_nodes(op="call_module"))
        for node, bodies in _users_of_bodies(holder).items():
            if _takes_more(node) and all(type(body.graph._codegen) is CodeGen for body in bodies):
                _join(family_of, _Call(holder, node, tuple(bodies)))
            else:
                barred.update(bodies)
    families = list(dict.fromkeys(family_of.values()))
    return [family for family in families if barred.isdisjoint(family.bodies)]


def _users_of_bodies(holder: GraphModule) -> dict[Node, dict[GraphModule, None]]:
    users: dict[Node, dict[GraphModule, None]] = {}
    for node in holder.graph.find_nodes(op="get_attr"):
        body = get_attribute(holder, str(node.target), None)
        if isinstance(body, GraphModule):
            for user in node.users:
                users.setdefault(user, {})[body] = None
    return users


def _takes_more(node: Node) -> bool:
    """Whether operands can be added to a call: it is of a known operator, and written as torch writes it."""
    if not isinstance(node.target, HigherOrderOperator):
        return False
    place = _OPERANDS.get(node.target.name())  # type: ignore[no-untyped-call]  # torch's
    if place is None or place == _AT_THE_END:
        return place is not None
    return len(node.args) == place + 1 and isinstance(node.args[place], (list, tuple)) and not node.kwargs


def _join(family_of: dict[GraphModule, _Family], call: _Call) -> None:
    family = _Family()
    for known in dict.fromkeys(family_of[body] for body in call.bodies if body in family_of):
        family.bodies.update(known.bodies)
        family.calls.extend(known.calls)
    family.bodies.update(dict.fromkeys(call.bodies))
    family.calls.append(call)
    family_of.update(dict.fromkeys(family.bodies, family))


# --- what moves -------------------------------------------------------------------------------------------------------


def _constants(family: _Family) -> dict[int, _Constant]:
    """The tensors that bodies hold and none of them writes, by identity."""
    found: dict[int, _Constant] = {}
    written: set[int] = set()
    for body in family.bodies:
        held = _held(body)
        effects = analyze_effects(body) if held else None
        for node in held:
            attribute = find_attribute(body, str(node.target))
            found.setdefault(id(attribute.value), _Constant(str(node.target), attribute, node))
            if effects is not None and not effects.written_storages.isdisjoint(effects.storages(node)):
                written.add(id(attribute.value))
    return {each: constant for each, constant in found.items() if each not in written}


def _hand_in(family: _Family, constants: dict[int, _Constant]) -> None:
    for call in family.calls:  # before the nodes go that tell where the constants are from
        _give(call, constants)
    for body in family.bodies:
        _take(body, constants)


def _give(call: _Call, constants: dict[int, _Constant]) -> None:
    """Give a call one operand more for each constant."""
    graph = call.node.graph
    operands: list[Node] = []
    for constant in constants.values():
        name = _name_on(call.holder, constant)
        with graph.inserting_before(call.node):
            operands.append(graph.get_attr(name))
        copy_metadata(constant.node, operands[-1], provenance=True)
    args = list(call.node.args)
    place = _OPERANDS[call.node.target.name()]  # type: ignore[union-attr]  # a HigherOrderOperator, see _takes_more
    if place == _AT_THE_END:
        args.extend(operands)
    else:
        listed = args[place]
        assert isinstance(listed, (list, tuple))  # see _takes_more
        args[place] = (*listed, *operands) if isinstance(listed, tuple) else [*listed, *operands]
    call.node.args = tuple(args)


def _name_on(holder: GraphModule, constant: _Constant) -> str:
    """The name under which a module holds a constant, from now on if it did not before."""
    value = constant.attribute.value
    for name, tensor in (*holder._parameters.items(), *holder._buffers.items()):
        if tensor is value:
            return name
    stem = constant.name.replace(".", "_")
    name, number = stem, 0
    while hasattr(holder, name):
        name, number = f"{stem}_{number}", number + 1
    install_attribute(holder, name, constant.attribute)
    return name


def _take(body: GraphModule, constants: dict[int, _Constant]) -> None:
    """Let a body take each constant as an input, whether it needs it or not."""
    placeholders = {each: _add_placeholder(body.graph, constant) for each, constant in constants.items()}
    gone: dict[str, None] = {}
    for node in _held(body):
        placeholder = placeholders.get(id(get_attribute(body, str(node.target))))
        if placeholder is not None:
            node.replace_all_uses_with(placeholder)
            body.graph.erase_node(node)
            gone[str(node.target)] = None
    called = {str(node.target) for node in body.graph.find_nodes(op="call_module")}
    for name in gone:
        if not any(name.startswith(f"{path}.") for path in called):
            remove_attribute(body, name)


def _add_placeholder(graph: Graph, constant: _Constant) -> Node:
    known = graph.find_nodes(op="placeholder")
    with graph.inserting_after(known[-1]) if known else graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder(constant.name.replace(".", "_"))
    node.target = node.name
    copy_metadata(constant.node, node, provenance=True)
    return node
