"""Passes that tidy a graph and change nothing that anybody could see: dead code, common subexpressions, no-ops, order.

Each asks :mod:`fxpasses.effects` before it removes, merges or moves anything.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MethodType
from typing import Any, ClassVar

import attrs
import torch
from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fxpasses.dependencies import Dependencies
from fxpasses.editing import erase_nodes, remove_unused_attributes, replace_nodes
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.effects.calls import PLAIN, CallEffects
from fxpasses.effects.storages import executable_order, resolve
from fxpasses.errors import GraphError, also_as
from fxpasses.guards import is_guard
from fxpasses.metadata import merge_provenance
from fxpasses.outlining.graph_writing import GraphWriter
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.passes.assertions import is_proven_assertion

__all__ = [
    "CSEPass",
    "EliminateDeadCode",
    "RemoveDetach",
    "RemoveNoOps",
    "SortTopologically",
    "StripGuards",
    "dead_nodes",
    "find_common_subexpressions",
    "find_no_ops",
    "get_CSE_banned_ops",
    "legalize_graph",
]

aten = torch.ops.aten

# --- dead code ------------------------------------------------------------------------------------------------------


def dead_nodes(graph_module: GraphModule, effects: EffectAnalysis | None = None) -> list[Node]:
    """The nodes that nobody would miss, in graph order.

    A write counts as seen if somebody reads its storage behind it, or could after the run; random draws, asserts,
    prints, collectives and region markers always do.
    """
    effects = effects or analyze_effects(graph_module)
    needed = set(effects.needed_nodes())
    return [node for node in graph_module.graph.nodes if node not in needed]


@attrs.frozen
class EliminateDeadCode(PassBase):
    """Erase what nobody would miss, in nested graphs too.

    Unlike ``Graph.eliminate_dead_code`` it keeps in-place methods, running statistics, and effects inside the bodies of
    control flow, and it removes writes to values that nobody reads.

    Args:
        attributes: Also remove parameters, buffers and submodules that no node refers to any more.
    """

    attributes: bool = attrs.field(default=True, kw_only=True)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Erase dead nodes in place."""
        dead = dead_nodes(graph_module)
        erase_nodes(dead)
        removed = remove_unused_attributes(graph_module) if self.attributes else []
        if dead:
            graph_module.recompile()
        return PassResult(graph_module, bool(dead or removed))


# --- common subexpressions ------------------------------------------------------------------------------------------


def get_CSE_banned_ops() -> set[OpOverloadPacket]:  # noqa: N802 - the upstream name
    """The random and in-place operators that a pass without effect analysis must not merge.

    :class:`CSEPass` never merges those, banned or not; the set is for code that asks for it.
    """
    random = """dropout _fused_dropout _standard_gamma bernoulli multinomial native_dropout normal poisson binomial
        rrelu rand_like rand randint randn randperm"""
    in_place = "add_ sub_ mul_ div_ pow_ lerp_ relu_ sigmoid_ tanh_"
    return {getattr(aten, name) for name in (random + " " + in_place).split()}


def find_common_subexpressions(
    graph_module: GraphModule,
    effects: EffectAnalysis | None = None,
    *,
    is_banned: Callable[[Node], bool] = lambda node: False,
) -> dict[Node, Node]:
    """Which nodes compute what an earlier node has computed.

    Value numbering (J. Cocke and J. T. Schwartz, "Programming Languages and Their Compilers", 1970) with one number
    more: a read is a read of a *version* of its storages, and every write makes a new version. One walk, linear in
    nodes and operands.

    Args:
        graph_module: The graph.
        effects: Its effects, if they are known already.
        is_banned: Tells nodes that must not be merged.

    Returns:
        For each node that can go, the node that stands for it, in graph order.
    """
    return _Numbering(effects or analyze_effects(graph_module), is_banned).run()


class _Numbering:
    def __init__(self, effects: EffectAnalysis, is_banned: Callable[[Node], bool]) -> None:
        self.effects = effects
        self.is_banned = is_banned
        self.written = effects.written_storages
        self.version: dict[int, int] = {}
        self.region = 0
        self.known: dict[Hashable, Node] = {}
        self.same_as: dict[Node, Node] = {}

    def run(self) -> dict[Node, Node]:
        for node in self.effects.nodes:
            call = self.effects.call(node)
            if not (call is PLAIN or call.is_pure):
                self._pass_effect(node)
            elif self._may_merge(node, call) and (key := self._key(node)) is not None:
                first = self.known.setdefault(key, node)
                if first is not node:
                    self.same_as[node] = first
        return self.same_as

    def _pass_effect(self, node: Node) -> None:
        effects = self.effects.of(node)
        if effects.region is not None and effects.region.is_barrier:
            self.region += 1
        for storage in effects.writes:
            self.version[storage] = self.version.get(storage, 0) + 1

    def _may_merge(self, node: Node, call: CallEffects) -> bool:
        if node.op in ("placeholder", "output") or "unbacked_bindings" in node.meta or self.is_banned(node):
            return False
        if node.op == "get_attr" or not self.written:
            return True
        storages = self.effects.storages(node)
        if not self.effects.reshaped_storages.isdisjoint(storages):
            return False
        return call.looks_only or self.written.isdisjoint(storages)

    def _key(self, node: Node) -> Hashable | None:
        reads = self.effects.of(node).reads if self.written else ()
        versions = tuple([self.version.get(storage, 0) for storage in reads if storage in self.written])
        region = self.region if node.op != "get_attr" else 0
        try:
            key = (node.op, node.target, self._frozen(node.args), self._frozen(node.kwargs), versions, region)
            hash(key)
        except TypeError:  # an argument that nobody can compare
            return None
        return key

    def _frozen(self, value: Any) -> Hashable:
        """An argument as something that compares equal exactly if it means the same: 1, 1.0 and True do not."""
        if isinstance(value, Node):
            return self.same_as.get(value, value)
        if isinstance(value, (list, tuple)):
            return (isinstance(value, list), *map(self._frozen, value))
        if isinstance(value, dict):
            return ("dict", *((key, self._frozen(item)) for key, item in value.items()))
        if isinstance(value, slice):
            return ("slice", self._frozen(value.start), self._frozen(value.stop), self._frozen(value.step))
        return (type(value), value.hex()) if isinstance(value, float) else (type(value), value)


def _as_set(given: Iterable[Any] | None) -> frozenset[Any]:
    return frozenset(given or ())


@attrs.frozen
class CSEPass(PassBase):
    """Compute equal subexpressions once, in a new module; the one that is given stays as it is.

    Two nodes are equal if target and arguments are, nothing in between wrote what they read, no region marker lies
    between them, and nobody writes to either result. Random operators and side effects are never merged.

    Args:
        banned_ops: Operators, packets, functions or method names never to merge, beside those.
    """

    banned_ops: frozenset[Any] = attrs.field(default=None, converter=_as_set)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Give a new module without doubles; the same one if there are none."""
        same_as = find_common_subexpressions(graph_module, is_banned=self._is_banned)
        if not same_as:
            return PassResult(graph_module, False)
        return PassResult(_copy_merging(graph_module, same_as), True)

    def _is_banned(self, node: Node) -> bool:
        packet = node.target.overloadpacket if isinstance(node.target, OpOverload) else node.target
        return bool(self.banned_ops) and (node.target in self.banned_ops or packet in self.banned_ops)


def _copy_merging(graph_module: GraphModule, same_as: dict[Node, Node]) -> GraphModule:
    """A copy that shares all tensors and modules; merged nodes are left out, their provenance goes to what stays."""
    writer = GraphWriter(like=graph_module.graph)
    copies: dict[Node, Node] = {}
    for node in executable_order(graph_module.graph):
        if (first := same_as.get(node)) is not None:
            copies[node] = copies[first]
            merge_provenance(copies[first], [node])
            continue
        args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = writer.append(
            node.op, node.target, args, kwargs, name=node.name, type_expr=node.type, meta=node.meta
        )
    copy = GraphModule(graph_module, writer.graph, class_name=type(graph_module).__name__)
    copy.meta.update(graph_module.meta)
    _take_over(graph_module, copy)
    return copy


def _take_over(source: GraphModule, copy: GraphModule) -> None:
    """Give a copy the hooks and other marks of its source, such as the input checks of ``ep.module()``."""
    for name, value in vars(source).items():
        if "_hooks" in name and isinstance(value, dict):
            getattr(copy, name).update(value)
        elif name not in vars(copy):
            is_own = isinstance(value, MethodType) and value.__self__ is source
            vars(copy)[name] = MethodType(value.__func__, copy) if is_own else value


# --- order ----------------------------------------------------------------------------------------------------------


def legalize_graph(gm: GraphModule) -> GraphModule:
    """Put every node behind what it needs, in place; nothing else moves.

    Nodes keep their identity. Effects count: a read does not cross a write. A graph in order stays as it is.

    Args:
        gm: The module whose graph is sorted.

    Returns:
        The same module.

    Raises:
        CycleError: Nodes need each other (also a ``RuntimeError``); the message and ``path`` name them.
        GraphError: It is no GraphModule (also a ``TypeError``).
    """
    if not isinstance(gm, GraphModule):
        raise also_as(GraphError, TypeError())(
            f"legalize_graph sorts the graph of a GraphModule in place, not of {type(gm).__name__}; "
            "give the graph_module of a program, and trace or export a model first"
        )
    if _sort(gm):
        gm.recompile()
    return gm


def _sort(gm: GraphModule) -> bool:
    """Sort the graph; tell whether a node moved."""
    effects = analyze_effects(gm)
    before = list(gm.graph.nodes)
    dependencies = Dependencies.of(gm, effects)
    order = [dependencies.nodes[index] for index in dependencies.stable_order()]
    inputs = [node for node in order if node.op == "placeholder"]
    order = [*inputs, *(node for node in order if node.op != "placeholder")]
    if order == before:
        return False
    _arrange(gm.graph, order)
    return True


def _arrange(graph: Graph, order: Sequence[Node]) -> None:
    """Put the nodes into the given order; only those move that do not stand right already."""
    previous = graph._root
    for node in order:
        if previous.next is not node:
            previous.append(node)
        previous = node


@attrs.frozen
class SortTopologically(PassBase):
    """Put every node behind what it needs; nothing else moves. :func:`legalize_graph` as a pass."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """Sort in place."""
        moved = _sort(graph_module)
        if moved:
            graph_module.recompile()
        return PassResult(graph_module, moved)


# --- operations that do nothing -------------------------------------------------------------------------------------


_DETACH = (aten.detach.default, aten.detach, torch.detach, torch.Tensor.detach, "detach")


@attrs.frozen
class RemoveDetach(PassBase):
    """Replace every ``detach`` by its input: what cuts gradients in training does nothing in inference."""

    target_ops: ClassVar[tuple[Any, ...]] = (
        aten.detach.default,
        aten.detach,
        torch.detach,
        torch.Tensor.detach,
        "detach",
    )

    def call(self, graph_module: GraphModule) -> PassResult:
        """Remove the calls in place."""
        detaches = [node for node in graph_module.graph.nodes if _is_call_of(node, self.target_ops)]
        return _replaced_by_input(graph_module, detaches)


def _is_call_of(node: Node, targets: Sequence[Any]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets


def _replaced_by_input(graph_module: GraphModule, nodes: Sequence[Node]) -> PassResult:
    replace_nodes({node: node.all_input_nodes[0] for node in nodes})
    if nodes:
        graph_module.recompile()
    return PassResult(graph_module, bool(nodes))


_COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default, "clone", torch.clone})
_COPIES_INTO = frozenset({aten.copy_.default, "copy_"})


def find_no_ops(graph_module: GraphModule, effects: EffectAnalysis | None = None) -> list[Node]:
    """The calls whose result is their first input, as far as anybody can see.

    Views that change nothing (same type, shape, strides and offset, read from ``meta["val"]``), casts to what the value
    is already, dropout that is switched off, ``nn.Identity``; copies of values that nobody writes and that are not
    what the graph gives back; and what copies a tensor into itself. ``detach`` is none: it cuts gradients.
    """
    effects = effects or analyze_effects(graph_module)
    found: list[Node] = []
    origin: dict[Node, Node | str] = {}  # what a node is the same tensor as
    for node in effects.nodes:
        source = node.args[0] if node.args else None
        origin[node] = str(node.target) if node.op == "get_attr" else node
        if _copies_into_itself(node, origin) or _is_no_op(node, graph_module, effects):
            found.append(node)
            origin[node] = origin[node.all_input_nodes[0]]
        elif isinstance(source, Node) and _gives_back_what_it_writes(node, effects):
            origin[node] = origin[source]
    return found


def _copies_into_itself(node: Node, origin: Mapping[Node, Node | str]) -> bool:
    """Whether a tensor is copied into itself, as torch.export writes it behind ``self.steps += 1``."""
    if node.target not in _COPIES_INTO or len(node.args) < 2:
        return False
    target, source = node.args[:2]
    return isinstance(target, Node) and isinstance(source, Node) and origin[target] == origin[source]


def _is_no_op(node: Node, graph_module: GraphModule, effects: EffectAnalysis) -> bool:
    if node.op == "call_module":
        return type(resolve(graph_module, str(node.target))) is nn.Identity and len(node.all_input_nodes) == 1
    if node.op not in ("call_function", "call_method") or node.target in _DETACH:
        return False
    source = node.args[0] if node.args else None
    if not isinstance(source, Node) or not effects.of(node).is_pure or node.target is operator.getitem:
        return False
    if not effects.reshaped_storages.isdisjoint((*effects.storages(source), *effects.storages(node))):
        return False
    if not _same_layout(source.meta.get("val"), node.meta.get("val")):
        return False
    if node.target in _COPIES or _is_asked_to_copy(node):
        return _copy_is_needless(node, source, effects)
    call = effects.call(node)
    return call.returns == 1 and call.aliases == ((source,),) and _always_aliases(node)


def _gives_back_what_it_writes(node: Node, effects: EffectAnalysis) -> bool:
    """Whether a call writes one tensor in place, and gives back that tensor."""
    if node.op not in ("call_function", "call_method"):
        return False
    call = effects.call(node)
    if len(call.writes) != 1 or call.aliases != (call.writes,):
        return False
    return call.writes[0] is node.args[0] and _same_layout(call.writes[0].meta.get("val"), node.meta.get("val"))


def _always_aliases(node: Node) -> bool:
    """Whether a call that may alias its input surely gives it back when the layouts are equal."""
    return _name_of(node) in _IDENTITIES


def _is_asked_to_copy(node: Node) -> bool:
    """Whether a cast may copy what is of the type already: by name, or by a truth value behind the type."""
    flags = (*node.args[2:], node.kwargs.get("copy", False)) if _name_of(node) == "to" else ()
    return any(isinstance(flag, Node) or flag is True for flag in flags)


def _name_of(node: Node) -> str:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "_opname", node.target)
    return str(getattr(name, "__name__", name))


_IDENTITIES = frozenset(
    """alias view reshape expand expand_as view_as flatten squeeze permute transpose t contiguous to type float double
    half bfloat16 slice narrow movedim ravel dropout alpha_dropout feature_dropout unflatten broadcast_to reshape_as
    _unsafe_view lift_fresh lift""".split()  # noqa: SIM905 - a table of names reads better as text
)


def _copy_is_needless(node: Node, source: Node, effects: EffectAnalysis) -> bool:
    """Whether nobody could tell the copy from its source: neither is written, and the copy does not leave the graph."""
    touched = {*effects.storages(node), *effects.storages(source)}
    returned = {storage for user in node.users if user.op == "output" for storage in effects.storages(node)}
    lasting = any(storage in effects.lasting_storages for storage in effects.storages(node))
    return effects.written_storages.isdisjoint(touched) and not returned and not lasting


def _same_layout(source: Any, result: Any) -> bool:
    """Whether two fake values cannot be told apart; symbolic sizes must be equal for sure, without a new guard."""
    if not (isinstance(source, torch.Tensor) and isinstance(result, torch.Tensor)):
        return False
    if (source.dtype, source.device, source.layout) != (result.dtype, result.device, result.layout):
        return False
    if source.layout != torch.strided or source.is_conj() != result.is_conj() or source.is_neg() != result.is_neg():
        return False
    ours = (*source.shape, *source.stride(), source.storage_offset())
    theirs = (*result.shape, *result.stride(), result.storage_offset())
    return len(ours) == len(theirs) and all(map(_surely_equal, ours, theirs))


def _surely_equal(left: Any, right: Any) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # here: it imports sympy

    return bool(statically_known_true(left == right))


@attrs.frozen
class RemoveNoOps(PassBase):
    """Replace operations that do nothing by their input: views and casts to what is there already, needless copies.

    Assertions about a type or a shape that the recorded value meets do nothing either, and go.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        """Remove them in place."""
        replaced = _replaced_by_input(graph_module, find_no_ops(graph_module)).modified
        proven = [node for node in graph_module.graph.nodes if is_proven_assertion(node)]
        erase_nodes(proven)
        if proven:
            graph_module.recompile()
        return PassResult(graph_module, replaced or bool(proven))


# --- guards ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class StripGuards(PassBase):
    """Remove the call that checks the inputs of an exported module (``_guards_fn`` of ``ep.module()``), and its module.

    The checks make sure that the inputs have the exported shapes; without them, wrong shapes fail later or not at all.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        """Remove the calls in place."""
        guards = [node for node in graph_module.graph.find_nodes(op="call_module") if _is_guard(graph_module, node)]
        erase_nodes(guards)
        for target in dict.fromkeys(str(node.target) for node in guards):
            graph_module.delete_submodule(target)
        if guards:
            graph_module.recompile()
        return PassResult(graph_module, bool(guards))


def _is_guard(graph_module: GraphModule, node: Node) -> bool:
    module = resolve(graph_module, str(node.target))
    return is_guard(node) or type(module).__name__ == "GuardsFn"
