"""Split a graph into submodules: ``split`` for an Assignment, and the faces that users of torch.fx know.

The source is never touched; parameters are shared with it, not copied. Every part obeys one contract: placeholders
first, exactly one output, inputs in the order in which their producers stand in the source graph and none unused, only
used values cross and none of them a tuple, ``val`` on every call.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.collecting import collection_paused
from fxpasses.editing.attributes import find_attribute, install_attribute, state_of
from fxpasses.errors import CycleError, PartitionError, SplitError, also_as, came_from
from fxpasses.outlining import add_provenance, build_parts, call_meta, copy_node, output_meta, pick_leaves
from fxpasses.outlining.boundaries import put_together
from fxpasses.outlining.building import remake
from fxpasses.outlining.graph_writing import GraphWriter
from fxpasses.outlining.lazy_modules import LazyGraphModule, lazy_graph_module
from fxpasses.outlining.outline_plan import Constants, Part, Plan, make_plan
from fxpasses.outlining.part_names import PartNames, identifier, numbered_names, plain, unique_name, wished_names
from fxpasses.outlining.regions import RegionWriter
from fxpasses.partitioners.assignment import Assignment, Grouping
from fxpasses.partitioners.given import lists_of_nodes
from fxpasses.partitioners.placing.replication.replicas import with_replicas
from fxpasses.programs.program_modules import module_of_program

__all__ = ["SPLIT_NAMES", "Split", "split", "split_by_tags", "split_module"]

SPLIT_NAMES = "fxpasses.split"
"""Key in ``GraphModule.meta`` of a split module: the names of its parts, and the original names of their attributes."""


@attrs.frozen(eq=False)
class Split:
    """A graph cut into parts, and how to see it.

    Attributes:
        graph_module: The top level: calls of the parts, and the nodes that were in no part.
        assignment: What was asked for, over the source graph; replicas are nodes of it.
        part_names: The attribute of ``graph_module`` that holds each part, in execution order.
        original_names: For each attribute of a part, by its qualified name in ``graph_module``, the name that it has
            in the source. Tied parameters and what several parts share appear once for each holder.
        origins: For each node of the new graphs that is a copy, the node of the source.
        source: The module that was split; with replicas, a copy into which they are written.
    """

    graph_module: GraphModule
    assignment: Assignment
    part_names: Mapping[Hashable, str]
    original_names: Mapping[str, str]
    origins: Mapping[Node, Node] = attrs.field(repr=False)
    source: GraphModule = attrs.field(repr=False)

    @property
    def parts(self) -> dict[Hashable, GraphModule]:
        """The submodule of each partition, in execution order; changes of them are seen by ``graph_module``."""
        modules = self.graph_module._modules
        return {partition: modules[name] for partition, name in self.part_names.items()}  # type: ignore[misc]

    @property
    def calls(self) -> dict[Hashable, Node]:
        """The node of the top-level graph that calls each part."""
        by_name = {str(node.target): node for node in self.graph_module.graph.find_nodes(op="call_module")}
        return {partition: by_name[name] for partition, name in self.part_names.items()}

    @property
    def shared(self) -> tuple[tuple[str, ...], ...]:
        """Groups of qualified names in ``graph_module`` that are one and the same tensor.

        Whoever moves parts to different devices or processes has to keep each group in step.
        """
        groups: dict[int, list[str]] = {}
        for name, attribute in state_of(self.graph_module).items():
            groups.setdefault(id(attribute.value), []).append(name)
        return tuple(tuple(names) for names in groups.values() if len(names) > 1)

    def state_dict(self) -> dict[str, Any]:
        """The state of the split module under the names of the source, which can load it."""
        names = self.original_names
        found = {names.get(name, name): value for name, value in self.graph_module.state_dict().items()}
        return {name: found[name] for name in self.source.state_dict() if name in found}

    def exported_program(self, partition: Hashable, *, example_inputs: Sequence[Any] | None = None) -> ExportedProgram:
        """One part as an exported program of its own, with its state in the signature.

        Args:
            partition: Its name in the assignment.
            example_inputs: Inputs of the part, if its source was traced without recorded values.

        Raises:
            SplitError: There is no such part, or torch cannot export it.
        """
        from fxpasses.passes.part_programs import part_program  # it imports much of torch.export

        if partition not in self.part_names:
            known = ", ".join(map(repr, self.part_names))
            raise SplitError(f"there is no part {partition!r}; the parts are: {known}")
        return part_program(self.parts[partition], name=self.part_names[partition], example_inputs=example_inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the split module."""
        return self.graph_module(*args, **kwargs)


def split(
    graph_module: GraphModule | ExportedProgram,
    assignment: Assignment | Grouping,
    *,
    constants: Constants = "share",
    names: PartNames | None = None,
    always_return_tuple: bool = False,
) -> Split:
    """Cut a graph into one submodule per partition.

    Args:
        graph_module: The source, which stays as it is. Of an ExportedProgram, its ``module()`` is split; the
            assignment may be over the graph of either.
        assignment: Which node goes where; nodes that it leaves out stay at the top level.
        constants: Where parameters, buffers and constants go: ``"share"`` (into every part that uses them, as one
            object), ``"own"`` (into the first part that uses them, the others get them as inputs), ``"duplicate"`` (the
            others get a copy), ``"pass_in"`` (they stay at the top level), or a function of name, value and the names
            of the parts that use it which gives one of these.
        names: The attribute name of each part; by default ``submod_0``, ``submod_1``, ... for numbered partitions, and
            in general ``submod_`` with the partition's name.
        always_return_tuple: Also parts with one output give a tuple.

    Returns:
        The Split; its modules generate their code when they first run.

    Raises:
        SplitError: The graph has no output, or a policy or name makes no sense.
        CycleError: Partitions wait for each other; ``path`` shows why.
        PartitionError: Partitions overlap or hold nodes of another graph.
    """
    if isinstance(graph_module, ExportedProgram):
        graph_module, assignment = _unlifted(graph_module, assignment)
    _check_source(graph_module)
    if isinstance(assignment, Assignment):
        graph_module, assignment = with_replicas(graph_module, assignment)
    with collection_paused():
        if isinstance(assignment, Assignment):
            groups: Mapping[Hashable, list[Node]] = assignment.partitions
            view = assignment._dependencies
        else:
            groups, view = _partitions(graph_module, assignment), None
        wished = wished_names(groups, names)
        pairs = [(wished[partition], nodes) for partition, nodes in groups.items()]
        is_ordered = isinstance(assignment, Assignment)
        plan = make_plan(graph_module, pairs, constants=constants, dependencies=view, keep_order=is_ordered)
        top = _finish(plan, always_return_tuple=always_return_tuple)
        return _as_split(plan, top, assignment, list(groups))


def _partitions(graph_module: GraphModule, grouping: Grouping) -> dict[Hashable, list[Node]]:
    """The nodes of each partition, in graph order; an Assignment would ask for more than a split needs to know."""
    partition_of: dict[Node, Hashable] = {}
    if isinstance(grouping, Mapping):
        partition_of.update(grouping)
    else:
        for number, members in enumerate(lists_of_nodes(grouping)):
            if not members:
                raise PartitionError(f"partition {number} is empty; leave it out")
            for node in members:
                if partition_of.setdefault(node, number) != number:
                    raise PartitionError(f"partitions {partition_of[node]} and {number} both hold {node}", node=node)
    place = {node: number for number, node in enumerate(graph_module.graph.nodes)}
    groups: dict[Hashable, list[Node]] = {}
    for node in sorted(partition_of, key=lambda node: place.get(node, -1)):
        groups.setdefault(partition_of[node], []).append(node)
    return groups


def _as_split(plan: Plan, top: _TopLevel, assignment: Assignment | Grouping, partitions: list[Hashable]) -> Split:
    order = [item for item in plan.sequence if isinstance(item, int) and plan.parts[item].module is not None]
    part_names = {partitions[number]: plan.parts[number].name for number in order}
    if not isinstance(assignment, Assignment):
        homes = {node: partitions[number] for node, number in plan.home.items()}
        assignment = Assignment(plan.graph_module.graph, homes, tuple(part_names))
    original = top.module.meta[SPLIT_NAMES][1]
    origins: dict[Node, Node] = {}
    for part in plan.parts:
        if part.module is not None:
            origins.update((part.copies[node], node) for node in (*part.nodes, *part.constants, *part.remade))
    written = [(node, copy) for node, copy in top.environment.items() if isinstance(node, Node)]
    for node, copy in written:
        is_own = node not in plan.home or node in plan.remade or node.op == "get_attr"
        if is_own and isinstance(copy, Node):
            origins[copy] = node
    return Split(top.module, assignment, part_names, original, origins, plan.graph_module)


def _check_source(graph_module: GraphModule) -> None:
    if not isinstance(graph_module, GraphModule):
        raise SplitError(
            f"cannot split a {type(graph_module).__name__}; pass a torch.fx.GraphModule or an ExportedProgram "
            "(torch.export.export, torch.fx.symbolic_trace and make_fx make them)"
        )
    if not graph_module.graph.find_nodes(op="output"):
        raise SplitError(
            "cannot split a graph without an output node: the split module could not give anything back; "
            "add one with graph.output(...), which may be None"
        )


def _unlifted(program: ExportedProgram, assignment: Assignment | Grouping) -> tuple[GraphModule, Assignment | Grouping]:
    """The module of a program, and the assignment moved over to its graph by the names of the nodes."""
    module = module_of_program(program, check_guards=True)
    by_name: dict[str, Node] = {node.name: node for node in module.graph.nodes}
    if isinstance(assignment, Assignment):
        homes = assignment.partition_of.items()
        moved: Grouping = {by_name[node.name]: home for node, home in homes if node.name in by_name}
        again = {part: [by_name[node.name] for node in nodes] for part, nodes in assignment.replicas.items()}
        return module, Assignment.of(module, moved, assignment.order, replicas=again)
    if isinstance(assignment, Mapping):
        renamed: Grouping = {by_name.get(node.name, node): home for node, home in assignment.items()}
        return module, renamed
    return module, [[by_name.get(node.name, node) for node in group] for group in assignment]


# ---------------------------------------------------------------------------------------------------------------------
# The top level
# ---------------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _TopLevel:
    """The new top-level graph while it is written."""

    plan: Plan
    writer: GraphWriter
    module: LazyGraphModule
    environment: dict[Any, Any] = attrs.field(factory=dict)
    attributes: dict[str, None] = attrs.field(factory=dict)
    always_return_tuple: bool = False
    value_names: bool = True


def _finish(
    plan: Plan,
    *,
    always_return_tuple: bool = False,
    fresh_names: bool = False,
    value_names: bool = True,
    input_names: Callable[[int, str], str] | None = None,
    flat_attributes: bool = False,
) -> _TopLevel:
    """Build the parts and the top level of a plan."""
    kept = _kept_names(plan)
    used = {name.partition(".")[0] for name in kept}
    for part in plan.parts:
        part.name = unique_name(part.name, used)
    build_parts(
        plan,
        always_return_tuple=always_return_tuple,
        fresh_names=fresh_names,
        input_names=input_names,
        flat_attributes=flat_attributes,
    )
    source = plan.graph_module
    writer = GraphWriter(like=source.graph, fresh_names=fresh_names)
    module = lazy_graph_module(writer.graph, class_name=_class_name(source), training=source.training)
    top = _TopLevel(plan, writer, module, {}, kept, always_return_tuple, value_names)
    _write_top_level(top)
    for name in top.attributes:
        install_attribute(module, name, find_attribute(source, name))
    for part in plan.parts:
        if part.module is not None:
            module.add_module(part.name, part.module)
    carry_over(source, module)
    part_names = tuple(part.name for part in plan.parts if part.module is not None)
    module.meta[SPLIT_NAMES] = (part_names, _original_names(plan))
    module.recompile()
    return top


def _original_names(plan: Plan) -> dict[str, str]:
    """The name in the source of all that parts hold, by its new name; modules with all that is in them."""
    original: dict[str, str] = {}
    for part in plan.parts:
        for inner, name in part.owned.items():
            new = f"{part.name}.{inner}"
            original[new] = name
            held = find_attribute(plan.graph_module, name)
            if held.kind == "module":
                original.update((f"{new}.{field}", f"{name}.{field}") for field in state_of(held.value))
    return original


def _class_name(module: torch.nn.Module) -> str:
    return str(module._get_name())  # type: ignore[no-untyped-call]  # torch's


def _kept_names(plan: Plan) -> dict[str, None]:
    """What stays at the top level: attributes of left-over nodes, and state that no node uses."""
    kept: dict[str, None] = {}
    used: set[str] = set()
    passed_in = {value for part in plan.parts for value in part.inputs}
    for node in plan.nodes:
        if node.op not in ("get_attr", "call_module"):
            continue
        name = str(node.target)
        used.add(name)
        if node.op == "call_module":
            stays = node not in plan.home
        else:
            holders = plan.constant_users.get(node, {})
            stays = not holders or -1 in holders or node in passed_in
        if stays and node not in plan.routes:
            kept[name] = None
    for name in state_of(plan.graph_module):
        steps = name.split(".")
        if not any(".".join(steps[:depth]) in used for depth in range(1, len(steps) + 1)):
            kept[name] = None
    return kept


def _write_top_level(top: _TopLevel) -> None:
    plan, writer, environment = top.plan, top.writer, top.environment
    regions = RegionWriter(writer, plan.regions.open_at) if plan.regions else None
    for node in plan.nodes:
        if node.op == "placeholder":
            environment[node] = writer.copy(node, environment)
            pick_leaves(writer, plan.leaves.get(node, ()), environment)
    for item in _with_constants(plan):
        if isinstance(item, int):
            if regions is not None:
                regions.close()
            _write_call(top, plan.parts[item])
        else:
            if regions is not None:
                regions.move_to(item)
            _write_left_over(top, item)
    if regions is not None:
        regions.close()
    output = plan.graph_module.graph.output_node()
    for source in output._input_nodes:
        _provide(top, source)
    environment[output] = writer.copy(output, environment)


def _with_constants(plan: Plan) -> list[int | Node]:
    """The sequence, with the ``get_attr`` nodes that nothing uses at the front."""
    unused: list[int | Node] = [
        node for node in plan.nodes if node.op == "get_attr" and node not in plan.constant_users
    ]
    return [*unused, *plan.sequence]


def _write_left_over(top: _TopLevel, node: Node) -> None:
    for source in node._input_nodes:
        _provide(top, source)
    top.environment[node] = copy_node(top.writer, node, top.environment)
    pick_leaves(top.writer, top.plan.leaves.get(node, ()), top.environment)


def _provide(top: _TopLevel, source: Node) -> None:
    """See that ``source`` can be looked up: constants are read, and tuples of parts put together, when asked for."""
    if source in top.environment:
        return
    plan = top.plan
    if source.op == "get_attr":
        target = None
        if source in plan.routes and -1 not in plan.constant_users[source]:
            number, name = plan.routes[source]
            owner = plan.parts[number]
            target = f"{owner.name}.{next(inner for inner, outer in owner.owned.items() if outer == name)}"
        top.environment[source] = top.writer.copy(source, {}, target=target)
        if target is None:
            top.attributes.setdefault(str(source.target))
    elif source in plan.remade:
        _provide(top, source.all_input_nodes[0])
        top.environment[source] = remake(top.writer, source, top.environment)
    else:
        top.environment[source] = put_together(plan.elements[source], top.environment)


def _write_call(top: _TopLevel, part: Part) -> None:
    if part.module is None:
        return
    environment, writer = top.environment, top.writer
    for value in part.inputs:
        if isinstance(value, Node):
            _provide(top, value)
    arguments = tuple(environment[value] for value in part.inputs)
    meta = call_meta(part, top.always_return_tuple)
    call = writer.append("call_module", part.name, arguments, name=plain(part.name), meta=meta)
    add_provenance(call, part, "split")
    if len(part.outputs) == 1 and not top.always_return_tuple:
        environment[part.outputs[0]] = call
        return
    for place, value in enumerate(part.outputs):
        name = value.name if top.value_names else None
        environment[value] = writer.append(
            "call_function", operator.getitem, (call, place), name=name, meta=output_meta(value)
        )


def carry_over(source: GraphModule, module: LazyGraphModule) -> None:
    """Keep what belongs to the module and not to its graph: hooks, ``meta``, checks of an exported module's inputs.

    That ``train`` and ``eval`` are refused by what torch.export makes is not kept, as other tools that split do not.
    """
    module.meta = dict(source.meta)
    own = {*module.__dict__, "_code", "_lineno_map", "_prologue_start", "_graphmodule_cls_name"}
    for name, entry in source.__dict__.items():
        if name.startswith(("_forward_", "_state_dict_", "_load_state_dict_")) and entry:
            module.__dict__[name] = entry.copy()
        elif name not in own and not isinstance(entry, torch.Tensor):
            bound = isinstance(entry, types.MethodType) and entry.__self__ is source
            if bound and name in ("train", "eval") and entry.__func__.__module__ == "torch.export.exported_program":
                continue
            module.__dict__[name] = types.MethodType(entry.__func__, module) if bound else entry


# ---------------------------------------------------------------------------------------------------------------------
# The faces that users of torch.fx know
# ---------------------------------------------------------------------------------------------------------------------


def split_module(
    m: GraphModule | ExportedProgram,
    root_m: torch.nn.Module | None,
    split_callback: Callable[[Node], Any],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,
    keep_original_node_name: bool | None = False,
    keep_original_input_name: bool = True,
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
    constants: Constants = "pass_in",
) -> GraphModule:
    """Split a graph by a function of its nodes, as ``torch.fx.passes.split_module.split_module`` does.

    Parts run in an order that respects data and effects and otherwise follows the graph, so nodes that change their
    inputs in place are never overtaken.

    Args:
        m: The graph module, which stays as it is. Of an ExportedProgram, its ``module()`` is split.
        root_m: Not used; there because torch's function has it.
        split_callback: Gives the partition of a node, anything hashable but None. Asked once for each node that is
            not a placeholder, a ``get_attr`` or the output; of a program, about the nodes of its own graph. What only
            its module has (the check of its inputs, writes to its buffers) stays at the top level.
        qualname_map: Filled with the original name of each attribute of a part, by its new name.
        keep_original_order: Run partitions in the order in which the graph mentions them first, or fail.
        keep_original_node_name: Nodes keep their names; by default they are named anew by what they call.
        keep_original_input_name: Inputs of parts are named like the values; False names them ``arg_0``, ``arg_1``, ...
        partition_affix: Names parts ``submod_<affix>_<partition>`` instead of ``submod_<partition>``.
        tuple_return: Also parts with one output give a tuple.
        constants: Where parameters, buffers and constants go that ``get_attr`` nodes read; see :func:`split`. As in
            torch they stay at the top level and are passed in.

    Returns:
        The new top-level module. ``meta["partition_names"]`` tells which children are partitions.

    Raises:
        SplitError: The callback raises, or gives None or something unhashable; or the graph has no output.
        CycleError: Partitions wait for each other (also a ``RuntimeError``, as torch raises).
    """
    m, asked = _source_of(m)
    prefix = f"submod_{partition_affix}_" if partition_affix is not None else "submod_"
    with collection_paused():
        groups = _groups_by(split_callback, asked)
        wished = numbered_names(groups, prefix)
        pairs = [(wished[partition], nodes) for partition, nodes in groups.items()]
        try:
            plan = make_plan(m, pairs, constants=constants, keep_order=bool(keep_original_order))
        except CycleError as error:
            known_to_torch = also_as(CycleError, RuntimeError())
            raise known_to_torch(str(error), path=error.path, node=error.node) from None
        top = _finish(
            plan,
            always_return_tuple=tuple_return,
            fresh_names=not keep_original_node_name,
            value_names=False,
            input_names=None if keep_original_input_name else lambda place, _: f"arg_{place}",
            flat_attributes=True,
        )
    names = [part.name for part in plan.parts if part.module is not None]
    top.module.meta["partition_names"] = set(names)
    if qualname_map is not None:
        qualname_map.update((f"{part.name}.{inner}", name) for part in plan.parts for inner, name in part.owned.items())
    return top.module


def _source_of(given: GraphModule | ExportedProgram) -> tuple[GraphModule, dict[Node, Node]]:
    """The module to split, and for each node that computes the one to ask about: of a program, the program's own."""
    module = module_of_program(given, check_guards=True) if isinstance(given, ExportedProgram) else given
    _check_source(module)
    computing = [node for node in module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    if not isinstance(given, ExportedProgram):
        return module, {node: node for node in computing}
    by_name = {node.name: node for node in given.graph.nodes}
    return module, {node: by_name[node.name] for node in computing if node.name in by_name}


def _groups_by(split_callback: Callable[[Node], Any], asked: Mapping[Node, Node]) -> dict[Hashable, list[Node]]:
    """Ask the callback once for each node that computes."""
    groups: dict[Hashable, list[Node]] = {}
    for node, known in asked.items():
        try:
            partition = split_callback(known)
        except Exception as error:  # the user's code may raise anything
            raise also_as(SplitError, error)(
                f"split_callback failed for {_described(node)}: {type(error).__name__}: {error}",
                node=node,
                reason=str(error),
            ) from error
        if partition is None:
            raise SplitError(
                f"split_callback gave None for {_described(node)}; every node needs a partition "
                "(split() with an Assignment can leave nodes at the top level)",
                node=node,
            )
        try:
            groups.setdefault(partition, []).append(node)
        except TypeError:
            raise SplitError(
                f"split_callback gave {partition!r} for {_described(node)}, which is not hashable; "
                "use a number, a string or a tuple as partition",
                node=node,
            ) from None
    return groups


def _described(node: Node) -> str:
    where = came_from(node)
    return f"node {node.name!r}{where}"


def split_by_tags(
    gm: GraphModule | ExportedProgram,
    tags: Sequence[str],
    return_fqn_mapping: bool = False,
    return_tuple: bool = False,
    GraphModuleCls: type[GraphModule] = GraphModule,  # noqa: N803  # torch's name
) -> GraphModule | tuple[GraphModule, dict[str, str]]:
    """Split a graph by the ``tag`` attribute of its nodes, as ``torch.fx.passes.split_utils.split_by_tags`` does.

    Args:
        gm: The graph module, which stays as it is; every node that computes has a ``tag``. Of an ExportedProgram, its
            ``module()`` is split by the tags of the program's own nodes; what only the module has stays at the top.
        tags: The tags, in the order in which their parts run; parts are named by them. Tags of no node are left out.
        return_fqn_mapping: Also give the new name of each attribute by its original name.
        return_tuple: Also parts with one output give a tuple.
        GraphModuleCls: The class of the result.

    Raises:
        SplitError: A node has no tag, or one that ``tags`` does not list; or ``tags`` is no list (also a TypeError).
        CycleError: The parts cannot run in this order; ``path`` shows why.
    """
    gm, asked = _source_of(gm)
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise also_as(SplitError, TypeError())(
            f"tags is {tags!r}; give a list of the tags in the order in which their parts run"
        )
    groups: dict[str, list[Node]] = {tag: [] for tag in tags}
    for node, known in asked.items():
        tag = getattr(known, "tag", None)
        if tag not in groups:
            fact = "has no tag" if tag is None else f"has the tag {tag!r}, which is not in tags={list(tags)!r}"
            raise SplitError(f"node {node.name!r} {fact}; set node.tag to one of the tags", node=node)
        groups[tag].append(node)
    plan = make_plan(gm, [(identifier(tag), nodes) for tag, nodes in groups.items()], keep_order=True)
    top = _finish(plan, always_return_tuple=return_tuple)
    for part in plan.parts:
        for node in part.nodes:
            part.copies[node].tag = asked[node].tag  # type: ignore[attr-defined]
    result: GraphModule = top.module
    if GraphModuleCls is not GraphModule:
        result = GraphModuleCls(top.module, top.module.graph)
    if not return_fqn_mapping:
        return result
    return result, {name: f"{part.name}.{inner}" for part in plan.parts for inner, name in part.owned.items()}
