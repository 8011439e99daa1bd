"""Write the graphs of the parts, and put calls where their nodes were."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.collecting import collection_paused
from fxpasses.dependencies import Dependencies
from fxpasses.editing.attributes import find_attribute, install_attribute
from fxpasses.effects import is_impure
from fxpasses.metadata import merge_provenance, value_of
from fxpasses.outlining.boundaries import Leaf, Value, put_together, value_in
from fxpasses.outlining.graph_writing import GraphWriter
from fxpasses.outlining.lazy_modules import LazyGraphModule, lazy_graph_module
from fxpasses.outlining.outline_plan import Constants, Part, Plan, make_plan
from fxpasses.outlining.part_names import unique_name
from fxpasses.outlining.regions import RegionWriter

__all__ = [
    "PICKED",
    "add_provenance",
    "build_parts",
    "call_meta",
    "copy_node",
    "outline",
    "output_meta",
    "pick_leaves",
]

_MANY = 64

PICKED = "fxpasses.picked_for_border"
"""Key in ``node.meta`` of nodes that were written so that a tuple can cross element by element."""


def outline(
    graph_module: GraphModule,
    parts: Sequence[tuple[str, Iterable[Node]]],
    *,
    constants: Constants = "share",
    always_return_tuple: bool = False,
    move_state: bool = True,
    dependencies: Dependencies | None = None,
) -> list[Part]:
    """Replace groups of nodes by calls of new submodules, in place.

    The submodules obey one contract: placeholders first, exactly one output, inputs in the order in which their
    producers stand in the graph and none unused, only values that are used come out. Nodes outside keep their identity
    and, unless the groups force it, their order.

    Args:
        graph_module: Changed in place; not recompiled.
        parts: A name and the nodes of each group; where the module has something of that name, a number is put behind
            it. Groups must be disjoint and must not wait for each other.
        constants: Where a parameter, buffer or constant lives that a part uses through a ``get_attr`` node outside of
            all groups. ``"share"``: in every part that uses it, as the same object. ``"own"``: in the first part
            that uses it; the others get it as an input. ``"duplicate"``: the first part has the original, the others
            a copy. ``"pass_in"``: it stays at the top level and is an input. Or a function of its name, its value and
            the names of the parts that use it, which gives one of these.
        always_return_tuple: Also parts with one output give a tuple.
        move_state: Remove from ``graph_module`` what parts have taken over and nothing else uses.
        dependencies: The dense view of this graph, if the caller has it.

    Returns:
        The parts, with their modules, in the order given; empty ones are left out.

    Raises:
        PartitionError: Groups overlap or hold nodes that are not part of this graph.
        CycleError: Groups wait for each other; ``path`` shows why.
        GraphError: A node asks for an attribute that does not exist.
    """
    with collection_paused():
        plan = make_plan(graph_module, parts, constants=constants, dependencies=dependencies)
        used = set(dir(graph_module))  # children, parameters and buffers, and what every module has
        for part in plan.parts:
            part.name = unique_name(part.name, used)
        build_parts(plan, always_return_tuple=always_return_tuple)
        _replace_by_calls(plan, always_return_tuple)
    if move_state:
        _forget_moved_state(plan)
    return [part for part in plan.parts if part.module is not None]


# ---------------------------------------------------------------------------------------------------------------------
# Building
# ---------------------------------------------------------------------------------------------------------------------


def build_parts(
    plan: Plan,
    *,
    always_return_tuple: bool = False,
    fresh_names: bool = False,
    input_names: Callable[[int, str], str] | None = None,
    flat_attributes: bool = False,
) -> None:
    """Write the graph of each part and make its module.

    Args:
        plan: Its parts get their ``module``, ``copies`` and ``owned``.
        always_return_tuple: Also parts with one output give a tuple.
        fresh_names: Name nodes by what they call instead of as in the source.
        input_names: Gives the name of a placeholder from its place and the name of the value; None keeps the latter.
        flat_attributes: Name attributes of parts without dots, as torch's ``split_module`` does.
    """
    known: dict[Any, bool] = {}
    for part in plan.parts:
        if not part.nodes:
            continue
        writer = GraphWriter(like=None, fresh_names=fresh_names)
        _write_inputs(plan, part, writer, input_names)
        names = _write_constants(plan, part, writer, flat_attributes)
        _write_nodes(plan, part, writer, names, flat_attributes)
        results = tuple(part.copies[value] for value in part.outputs)
        writer.append("output", "output", (results[0] if len(results) == 1 and not always_return_tuple else results,))
        training = plan.graph_module.training
        module = lazy_graph_module(writer.graph, class_name=part.name, training=training, is_part=True)
        _install(plan, part, module, names)
        if has_effects(part.nodes, known):
            module.__dict__["_is_impure"] = True  # so that torch's own dead-code elimination keeps the call
        part.module = module


def _write_inputs(plan: Plan, part: Part, writer: GraphWriter, input_names: Callable[[int, str], str] | None) -> None:
    for place, value in enumerate(part.inputs):
        name = value.name if input_names is None else input_names(place, value.name)
        node = writer.append("placeholder", name, name=name, type_expr=getattr(value, "type", None))
        node.target = node.name
        node.meta = _meta_of(value)
        part.copies[value] = node
    for whole in part.wholes:
        part.copies[whole] = put_together(plan.elements[whole], part.copies)


def _write_constants(plan: Plan, part: Part, writer: GraphWriter, flat: bool) -> dict[str, str]:
    """Write the ``get_attr`` nodes; returns the name in the part of each attribute by its name in the source."""
    names: dict[str, str] = {}
    for node in part.constants:
        target = _inner_name(names, str(node.target), flat and not _is_body(plan, node))
        part.copies[node] = writer.append("get_attr", target, name=node.name, type_expr=node.type, meta=node.meta)
    return names


def _is_body(plan: Plan, node: Node) -> bool:
    return find_attribute(plan.graph_module, str(node.target)).kind == "module"


def _inner_name(names: dict[str, str], name: str, flat: bool) -> str:
    if name not in names:
        inner = name.replace(".", "_") if flat else name
        taken = set(names.values()) if flat else ()
        while inner in taken:
            inner += "_"
        names[name] = inner
    return names[name]


def _write_nodes(plan: Plan, part: Part, writer: GraphWriter, names: dict[str, str], flat: bool) -> None:
    regions = RegionWriter(writer, plan.regions.open_at) if plan.regions else None
    copies = part.copies
    leaves = plan.leaves
    for node in part.remade:
        copies[node] = remake(writer, node, copies)
    for node in part.nodes:
        if regions is not None:
            regions.move_to(node)
        target = _inner_name(names, str(node.target), flat) if node.op == "call_module" else None
        copies[node] = copy_node(writer, node, copies, target)
        if leaves and node in leaves:
            pick_leaves(writer, leaves[node], copies)
    if regions is not None:
        regions.close()


def copy_node(writer: GraphWriter, node: Node, copies: dict[Any, Any], target: str | None = None) -> Node:
    """Copy a node; where a method is called on a ``torch.Size`` put together from elements, make it a real one."""
    if node.op == "call_method" and node.args and isinstance(node.args[0], Node):
        source = node.args[0]
        if isinstance(copies[source], tuple) and isinstance(value_of(source), torch.Size):
            meta = {**source.meta, PICKED: True}
            size = writer.append("call_function", torch.Size, (copies[source],), name=f"{source.name}_whole", meta=meta)
            copies = {**copies, source: size}
    return writer.copy(node, copies, target=target)


def remake(writer: GraphWriter, node: Node, copies: Mapping[Node, Any]) -> Node:
    """Copy a node into a graph that is not its own; merging takes all copies for one again."""
    copy = writer.copy(node, copies)
    copy.meta[PICKED] = True
    return copy


def has_effects(nodes: Iterable[Node], known: dict[Any, bool]) -> bool:
    """Whether one of the nodes does more than compute; ``known`` caches the answer for operators."""
    for node in nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            if is_impure(node):
                return True
            continue
        if (answer := known.get(node.target)) is None:
            answer = known[node.target] = is_impure(node)
        if answer:
            return True
    return False


def pick_leaves(writer: GraphWriter, leaves: Iterable[Leaf], copies: dict[Any, Any]) -> None:
    """Write the ``getitem`` nodes for elements that nothing has picked so far."""
    for leaf in leaves:
        source = copies[leaf.source]
        for depth, index in enumerate(leaf.path, 1):
            known = Leaf(leaf.source, leaf.path[:depth])
            if known not in copies:
                meta = {**leaf.source.meta, "val": value_in(leaf.source, known.path)}
                copies[known] = writer.append(
                    "call_function", operator.getitem, (source, index), name=known.name, meta={**meta, PICKED: True}
                )
            source = copies[known]


def _install(plan: Plan, part: Part, module: LazyGraphModule, names: Mapping[str, str]) -> None:
    clones = {str(node.target): attribute for node, attribute in part.clones.items()}
    for name, inner in sorted(names.items(), key=lambda item: item[0].count(".")):  # outer modules first
        attribute = clones.get(name) or find_attribute(plan.graph_module, name)
        install_attribute(module, inner, attribute)
        part.owned[inner] = name


def _meta_of(value: Value) -> dict[str, Any]:
    if isinstance(value, Node):
        return dict(value.meta)
    meta = dict(value.source.meta)
    key = "example_value" if "val" not in meta and "example_value" in meta else "val"
    meta.pop("tensor_meta", None)
    meta[key] = value_in(value.source, value.path)
    return meta


# ---------------------------------------------------------------------------------------------------------------------
# Finishing in place
# ---------------------------------------------------------------------------------------------------------------------


def output_meta(value: Value) -> dict[str, Any]:
    """What is known about a value that comes out of a part."""
    return _meta_of(value)


def call_meta(part: Part, as_tuple: bool) -> dict[str, Any]:
    """The recorded value of a call of a part."""
    metas = [_meta_of(value) for value in part.outputs]
    for key in ("val", "example_value"):
        if all(key in meta for meta in metas) and (metas or key == "val"):
            values = tuple(meta[key] for meta in metas)
            return {key: values if as_tuple or len(values) != 1 else values[0]}
    return {}


def add_provenance(call: Node, part: Part, pass_name: str) -> None:
    """Give the call of a part the origin of its nodes; of a large part, of those whose values come out.

    The others are in the part's own graph, each with its own history.
    """
    nodes = part.nodes
    if len(nodes) > _MANY:
        sources = [value if isinstance(value, Node) else value.source for value in part.outputs[-_MANY:]]
        nodes = list(dict.fromkeys(sources)) or nodes[-1:]
    merge_provenance(call, nodes, pass_name)


def _replace_by_calls(plan: Plan, always_return_tuple: bool) -> None:
    graph = plan.graph_module.graph
    environment: dict[Any, Any] = {}
    order: list[Node] = []
    for item in plan.sequence:
        if isinstance(item, Node):
            order.append(item)
        elif plan.parts[item].nodes:
            order.extend(_insert_call(plan, plan.parts[item], environment, always_return_tuple))
    _redirect_users(plan, environment)
    _restore_order(order)
    if plan.regions and order:
        _rewrite_markers(plan, order)
    for node in reversed(plan.nodes):
        if node.op == "get_attr":
            if node in plan.constant_users and not node.users:
                graph.erase_node(node)
        elif node in plan.home:
            graph.erase_node(node)


def _insert_call(plan: Plan, part: Part, environment: dict[Any, Any], always_return_tuple: bool) -> list[Node]:
    graph, module = plan.graph_module.graph, part.module
    plan.graph_module.add_module(part.name, module)
    with graph.inserting_before(part.nodes[0]):
        arguments = tuple(_argument(plan, value, environment) for value in part.inputs)
        call = graph.create_node("call_module", part.name, arguments, name=part.name)
        call.meta.update(call_meta(part, always_return_tuple))
        add_provenance(call, part, "outline")
        made = [call]
        if len(part.outputs) == 1 and not always_return_tuple:
            environment[part.outputs[0]] = call
            return made
        for place, value in enumerate(part.outputs):
            picked = graph.create_node("call_function", operator.getitem, (call, place))
            picked.meta = _meta_of(value)
            environment[value] = picked
            made.append(picked)
    return made


def _argument(plan: Plan, value: Value, environment: dict[Any, Any]) -> Node:
    """The node at the top level that stands for an input of a part."""
    graph = plan.graph_module.graph
    if (known := environment.get(value)) is not None:
        return cast("Node", known)
    if isinstance(value, Leaf):
        node: Node = value.source
        for depth, index in enumerate(value.path, 1):
            element = Leaf(value.source, value.path[:depth])
            if element not in environment:
                with graph.inserting_after(node):
                    environment[element] = graph.call_function(operator.getitem, (node, index))
                environment[element].meta = {**_meta_of(element), PICKED: True}
            node = environment[element]
        return node
    if value in plan.routes:
        number, target = plan.routes[value]
        owner = plan.parts[number]
        inner = next(inner for inner, name in owner.owned.items() if name == target)
        read = environment[value] = graph.get_attr(f"{owner.name}.{inner}")
        read.meta = dict(value.meta)
        return read
    return value


def _redirect_users(plan: Plan, environment: dict[Any, Any]) -> None:
    """Make left-over nodes use what comes out of the calls."""
    for whole in plan.wholes:
        environment[whole] = put_together(plan.elements[whole], environment)
    for size in plan.remade:
        tensor = size.all_input_nodes[0]
        graph = plan.graph_module.graph
        with graph.inserting_after(environment.get(tensor, tensor)):
            environment[size] = graph.node_copy(size, lambda node: environment.get(node, node))
    changed: dict[Node, None] = {}
    for source in environment:
        if isinstance(source, Node) and source in plan.home:
            changed.update((user, None) for user in source.users if user not in plan.home)

    def outer(node: Node) -> Any:
        return environment.get(node, node) if node in plan.home else node

    for user in changed:
        if user in plan.position:  # not the calls, which have their arguments already
            user.args, user.kwargs = map_arg(user.args, outer), map_arg(user.kwargs, outer)


def _restore_order(order: Sequence[Node]) -> None:
    """Move each node behind the one before it unless it stands there already; and constants before who uses them."""
    previous: Node | None = None
    for node in order:
        if previous is not None and not previous < node:
            previous.append(node)
        for source in node._input_nodes:
            if source.op == "get_attr" and node < source:
                node.prepend(source)
        previous = node


def _rewrite_markers(plan: Plan, order: Sequence[Node]) -> None:
    """Open regions around left-over nodes only: a part enters its own."""
    graph = plan.graph_module.graph
    writer = RegionWriter(_InsertingWriter(plan.graph_module), plan.regions.open_at)
    for node in order:
        graph.inserting_before(node)
        if node in plan.position:
            writer.move_to(node)
        else:
            writer.close()
    graph.inserting_before(graph.output_node())
    writer.close()
    graph.inserting_before(graph._root)
    for node in reversed(plan.nodes):
        if node in plan.regions:
            graph.erase_node(node)


class _InsertingWriter(GraphWriter):
    """A writer that inserts into a graph that exists, at its insert point."""

    def __init__(self, graph_module: GraphModule) -> None:
        self.graph = graph_module.graph

    def append(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        type_expr: Any = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Node:
        node = self.graph.create_node(op, target, args, dict(kwargs or {}), name, type_expr)
        node.meta = dict(meta or {})
        return node


def _forget_moved_state(plan: Plan) -> None:
    """Remove what parts have taken over from the top level, unless something there still uses it."""
    root = plan.graph_module
    used = [str(node.target) for node in root.graph.nodes if node.op in ("get_attr", "call_module")]
    whole = set(used)
    prefixes = {".".join(name.split(".")[:depth]) for name in used for depth in range(1, name.count(".") + 2)}
    for name in dict.fromkeys(name for part in plan.parts for name in part.owned.values()):
        steps = name.split(".")
        inside_used = any(".".join(steps[:depth]) in whole for depth in range(1, len(steps)))
        if name not in prefixes and not inside_used:
            _forget(root, name)


def _forget(root: torch.nn.Module, name: str) -> None:
    """Delete an attribute and the empty modules around it; modules of the user's own are left as they are."""
    *path, field = name.split(".")
    chain = [root]
    for step in path:
        chain.append(chain[-1]._modules[step])  # type: ignore[arg-type]
    if any(type(module) is not torch.nn.Module for module in chain[1:]) or not hasattr(chain[-1], field):
        return
    delattr(chain[-1], field)
    for depth in range(len(path), 0, -1):
        module = chain[depth]
        if module._modules or module._parameters or module._buffers:
            break
        delattr(chain[depth - 1], path[depth - 1])
