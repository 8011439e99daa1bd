"""Find the nodes that came from one call of a module or a function, though they are operators by now.

The names and results are those of ``torch.fx.passes.utils.source_matcher_utils``. What is found does not depend on how
the model was captured, decomposed or spelled: see :mod:`fxpasses.partitioners.sources`. Linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpasses.errors import PartitionError, also_as
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.given import graph_of, list_of
from fxpasses.partitioners.grouping.keep_together import form_units, given_groups
from fxpasses.partitioners.grouping.viewing import view_of
from fxpasses.partitioners.sources import MODULE_EQUIVALENTS, Origin, canonical_name, origin_of
from fxpasses.partitioners.support import CALLS, plain_path

__all__ = [
    "SourcePartition",
    "check_subgraphs_connected",
    "get_module_partitions",
    "get_source_partitions",
    "partition_by_source",
]


@attrs.define
class SourcePartition:
    """The nodes of one call of a source.

    Args:
        nodes: The nodes, in graph order.
        source: The source, as it was asked for.
        input_nodes: The values that they take from outside, in graph order, without parameters.
        output_nodes: Those of ``nodes`` that are used outside.
        params: The parameters, buffers and constants that they use, as nodes, in the order of use: ``get_attr`` nodes,
            or the placeholders that ``torch.export`` makes of them.
    """

    nodes: list[Node]
    source: Any
    input_nodes: list[Node] = attrs.field(factory=list)
    output_nodes: list[Node] = attrs.field(factory=list)
    params: list[Node] = attrs.field(factory=list)


def get_source_partitions(
    graph: Graph | GraphModule | ExportedProgram,
    wanted_sources: Sequence[Any],
    filter_fn: Callable[[Node], bool] | None = None,
) -> dict[Any, list[SourcePartition]]:
    """Find the calls of modules and functions.

    A node belongs to the wanted source that fits best: the very source that its tracks name; then the class of the
    module it is in, the innermost first; then an equivalent (``F.linear`` for ``nn.Linear``). It is listed once. Only
    calls are listed as nodes, however the tracks of parameters look.

    Args:
        graph: The graph.
        wanted_sources: Module classes, functions, operators, or names of functions.
        filter_fn: Only calls of whose nodes all pass this are given.

    Returns:
        For each source that occurs its calls in graph order; a source that does not occur has no entry.

    Raises:
        PartitionError: The graph is none, or the sources are no list (also a TypeError).
    """
    graph = graph_of(graph)
    wanted = _Wanted(list_of(wanted_sources, "wanted sources"))
    root = graph.owning_module
    found: dict[Any, dict[Hashable, list[Node]]] = {}
    for node in graph.nodes:
        if node.op not in CALLS:
            continue
        if (match := wanted.exact_source_of(node) or wanted.source_of(origin_of(node, root))) is not None:
            found.setdefault(match[0], {}).setdefault(match[1], []).append(node)
    lifted = _lifted_placeholders(graph)
    return {
        source: [
            _source_partition(nodes, source, lifted)
            for nodes in calls.values()
            if filter_fn is None or all(filter_fn(node) for node in nodes)
        ]
        for source, calls in found.items()
    }


def get_module_partitions(
    graph: Graph | GraphModule | ExportedProgram, modules: Sequence[str | nn.Module], *, root: nn.Module | None = None
) -> dict[Any, list[SourcePartition]]:
    """Find the calls of single modules, by path or by instance.

    Args:
        graph: The graph.
        modules: Paths such as ``"layers.0.mlp"``, or submodules of ``root``.
        root: The model that was captured; by default the module that owns the graph.

    Returns:
        For each module that was called its calls in graph order, with all that its submodules do.

    Raises:
        PartitionError: An instance is not a submodule of the root; or the graph is none, or the modules are no list of
            paths and instances (also a TypeError).
    """
    graph = graph_of(graph)
    owner = graph.owning_module
    names = {id(module): path for path, module in (root or owner or nn.Module()).named_modules()}
    by_path: dict[str, str | nn.Module] = {}
    for module in list_of(modules, "modules"):
        if not isinstance(module, str | nn.Module):
            raise also_as(PartitionError, TypeError())(f"a module is given by its path or itself, not by {module!r}")
        path = names.get(id(module)) if isinstance(module, nn.Module) else module.strip(".")
        if path is None:
            raise PartitionError(
                f"a module of type {type(module).__name__} is not part of the root; give its path, or root=the model"
            )
        by_path[path] = module
    found: dict[Any, dict[Hashable, list[Node]]] = {}
    for node in graph.nodes:
        if node.op in CALLS:
            for path, _, call in reversed(origin_of(node, owner).modules):  # outermost first
                if (plain := plain_path(path)) in by_path:
                    found.setdefault(by_path[plain], {}).setdefault(call, []).append(node)
                    break
    lifted = _lifted_placeholders(graph)
    return {
        module: [_source_partition(nodes, module, lifted) for nodes in calls.values()]
        for module, calls in found.items()
    }


def partition_by_source(
    graph_module: GraphModule, wanted_sources: Sequence[Any], filter_fn: Callable[[Node], bool] | None = None
) -> Assignment:
    """Propose each call of a source as a partition, called after the source and its number (``"Linear_0"``).

    A call around nodes of another kind cannot be a partition; its nodes stay outside and say why.
    """
    found = get_source_partitions(graph_module, wanted_sources, filter_fn)
    names = {
        f"{getattr(source, '__name__', source)}_{number}": partition.nodes
        for source, partitions in found.items()
        for number, partition in enumerate(partitions)
    }
    dependencies = view_of(graph_module)
    home = {node: name for name, nodes in names.items() for node in nodes if node.op in CALLS}
    groups = given_groups(
        dependencies, [[node for node in nodes if node.op in CALLS] for nodes in names.values()], "call"
    )
    units = form_units(dependencies, [node in home for node in dependencies.nodes], groups)
    shared: dict[int, str] = {}
    for number, node in enumerate(dependencies.nodes):
        if node in home and units.supported[number]:
            home[node] = shared.setdefault(units.unit_of[number], home[node])
        else:
            home.pop(node, None)
    reasons = {
        node: units.reasons.get(number, "it comes from none of the wanted sources")
        for number, node in enumerate(dependencies.nodes)
        if node.op in CALLS and node not in home
    }
    return Assignment.of(graph_module, home, reasons=reasons, dependencies=dependencies)


def check_subgraphs_connected(subgraph1: SourcePartition, subgraph2: SourcePartition) -> bool:
    """Whether a node of the second uses a node of the first (not the other way round)."""
    for subgraph in (subgraph1, subgraph2):
        if not isinstance(getattr(subgraph, "nodes", None), list):
            raise also_as(PartitionError, TypeError())(
                f"check_subgraphs_connected takes two SourcePartitions, not {type(subgraph).__name__}"
            )
    users = set(subgraph2.nodes)
    return any(user in users for node in subgraph1.nodes for user in node.users)


class _Wanted:
    """The wanted sources, indexed by what a node can show."""

    def __init__(self, sources: Sequence[Any]) -> None:
        if unhashable := [source for source in sources if not isinstance(source, Hashable)]:
            raise also_as(PartitionError, TypeError())(
                f"a wanted source is a class, a function, an operator or a name, not {unhashable[0]!r}"
            )
        self.exact: Mapping[Any, None] = dict.fromkeys(sources)
        self.classes = [source for source in self.exact if isinstance(source, type)]
        self.names: dict[str, Any] = {}
        for source in sorted(self.exact, key=lambda each: isinstance(each, type)):  # functions before classes
            if (name := canonical_name(source)) is not None:
                self.names.setdefault(name, source)
        self._class_hits: dict[type, Any] = {}

    def exact_source_of(self, node: Node) -> tuple[Any, Hashable] | None:
        """The wanted source that the node's own tracks name; the answer for most nodes, and a quick one."""
        if node.op == "call_module" or not (stack := node.meta.get("source_fn_stack")):
            return None
        call, source = stack[-1]
        return (source, ("source", call)) if isinstance(source, Hashable) and source in self.exact else None

    def source_of(self, origin: Origin) -> tuple[Any, Hashable] | None:
        """The wanted source that fits best, and which call of it."""
        if self._is_exact(origin):
            return origin.exact, origin.call
        for _, kind, call in origin.modules:
            if kind is not None and (hit := self._class_hit(kind)) is not None:
                return hit, call
        if origin.name is None or (source := self.names.get(origin.name)) is None:
            return None
        module = self._module_of(origin)
        if module is None:
            return source, origin.call
        return None if isinstance(source, type) else (source, module)

    def _is_exact(self, origin: Origin) -> bool:
        try:
            return origin.exact is not None and origin.exact in self.exact
        except TypeError:  # not hashable
            return False

    def _class_hit(self, kind: type) -> Any:
        if kind not in self._class_hits:
            self._class_hits[kind] = next((wanted for wanted in self.classes if issubclass(kind, wanted)), None)
        return self._class_hits[kind]

    def _module_of(self, origin: Origin) -> Hashable | None:
        """The call of the module that this function is the work of: ``nn.Linear`` for ``F.linear`` in its forward."""
        if isinstance(origin.exact, type):
            return origin.call
        if not origin.modules:
            return None
        _, kind, call = origin.modules[0]
        return call if kind is not None and MODULE_EQUIVALENTS.get(kind) == origin.name else None


def _source_partition(nodes: list[Node], source: Any, lifted: Mapping[Node, None]) -> SourcePartition:
    inside = set(nodes)
    inputs: dict[Node, None] = {}
    params: dict[Node, None] = {}
    for node in nodes:
        for used in node.all_input_nodes:
            if used not in inside:
                (params if used.op == "get_attr" or used in lifted else inputs)[used] = None
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    return SourcePartition(nodes, source, sorted(inputs), outputs, list(params))


def _lifted_placeholders(graph: Graph) -> dict[Node, None]:
    """The placeholders that ``torch.export`` made of parameters, buffers and constants.

    They stand before the inputs of the user, and their names start with ``p_``, ``b_``, ``c_`` or ``obj_``.
    """
    lifted: dict[Node, None] = {}
    for node in graph.find_nodes(op="placeholder"):
        if not str(node.target).startswith(("p_", "b_", "c_", "obj_")):
            break
        lifted[node] = None
    return lifted
