"""What every node of a graph reads, writes, aliases, or does to the world, and the order that follows from it.

Data edges say that a node needs the result of another. They do not say that ``y = x + 1`` must run before
``x.sin_()``. This module finds those orders: each value lives in one or more storages (views live in their base's), and
for each storage the last writer and the readers since are kept while the graph is walked once. An edge goes from every
reader to the next writer and from every writer to the next reader or writer; all longer orders follow from these, so
there are at most as many edges as operands. The random number generator and the world are storages that every random
operator and every side effect writes. Markers of regions (autocast, grad mode) are barriers.

The idea is memory-dependence analysis as compilers do it (def-use chains of MemorySSA, D. Novillo, "Memory SSA", 2007)
on a straight line of code. Time and memory are linear in nodes and operands, times the inverse Ackermann function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node

from fxpasses.aliasing import NO_STORAGE, Storages
from fxpasses.bodies import BodySummary, higher_order_effects, module_effects
from fxpasses.call_effects import PLAIN, CallEffects, RegionKind, Registry, Rule, flat_nodes, opaque
from fxpasses.purity import rule_for_target

__all__ = [
    "CallEffects",
    "EffectAnalysis",
    "NodeEffects",
    "RegionKind",
    "Registry",
    "analyze_effects",
    "is_impure",
    "register_effects",
    "register_pure",
]

USER_REGISTRY = Registry()
"""What :func:`register_pure` and :func:`register_effects` were told in this process."""


def register_pure(target: Any, *, may_alias: bool = False) -> Any:
    """Declare that calls of ``target`` only compute their result; usable as a decorator.

    Args:
        target: A callable, an operator, a method name or a module class.
        may_alias: Whether the result may share memory with an operand.

    >>> @register_pure
    ... def scale(x):
    ...     return x * 2
    """
    return USER_REGISTRY.pure(target, may_alias=may_alias)


def register_effects(target: Any, function: Rule | None = None) -> Any:
    """Declare what calls of ``target`` do; ``function`` takes the node and answers with :class:`CallEffects`.

    Usable as a decorator, too: ``@register_effects(my_op)``.

    >>> def write_first(node):
    ...     return CallEffects(writes=tuple(node.all_input_nodes[:1]), reason="my_op writes its first operand")
    >>> def my_op(x, y): ...
    >>> register_effects(my_op, write_first) is write_first
    True
    """
    return USER_REGISTRY.effects(target, function)


@attrs.frozen(slots=True)
class NodeEffects:
    """What one node does, told in storages.

    Attributes:
        reads: Storages whose contents it reads.
        writes: Storages whose contents it changes.
        random: It draws random numbers.
        world: It has a side effect that no value shows.
        region: The kind of state it switches, if it is a marker.
        reason: Why it is not pure, in a few words; "" if it is.
    """

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    random: bool = False
    world: bool = False
    region: RegionKind | None = None
    reason: str = ""

    @property
    def is_pure(self) -> bool:
        """Whether the node only computes its result."""
        return not (self.writes or self.random or self.world or self.region)


_NO_EFFECTS = NodeEffects()
Value = int | tuple[int, ...]


def analyze_effects(
    graph: GraphModule | Graph,
    *,
    signature: ExportGraphSignature | None = None,
    program: ExportedProgram | None = None,
    registry: Registry | None = None,
) -> EffectAnalysis:
    """Find the effects of all nodes of a graph, and the order that follows from them.

    Args:
        graph: A graph, or the module that holds it. A bare graph is looked up in its owning module.
        signature: The signature of an exported program whose graph this is: it tells which outputs are copied back.
        program: The program itself; its real tensors tell which parameters share memory. Gives the signature, too.
        registry: What users said about targets; what was registered in this process if it is not given.

    Returns:
        The analysis. It is a snapshot: edits of the graph are not seen.

    Inputs are taken to be distinct in memory, unless their example values (``meta["val"]``) or the program's tensors
    say otherwise.
    """
    inner = graph.graph if isinstance(graph, GraphModule) else graph
    root = graph if isinstance(graph, GraphModule) else inner.owning_module
    if program is not None and signature is None:
        signature = program.graph_signature
    context = _Context(registry or USER_REGISTRY)
    return _analysis(inner, root, context, signature, program)


def is_impure(node: Node) -> bool:
    """Whether a node does more than compute its result, without a look at other nodes.

    For :meth:`torch.fx.Graph.eliminate_dead_code` as its ``is_impure_node``. Unlike torch's own answer, in-place
    methods, modules that change their buffers, and effects inside the bodies of control flow count.
    """
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "get_attr":
        return False
    return not _Context(USER_REGISTRY).effects_of(node, node.graph.owning_module).is_pure


def _resolve(root: nn.Module | None, target: str) -> Any:
    """The object behind a dotted name; None if there is none."""
    found: Any = root
    for part in target.split("."):
        found = getattr(found, part, None)
    return found


class _Context:
    """Answers that hold for one analysis and all graphs nested in it: rules by target, summaries by body."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._rules: dict[tuple[str, Any], Rule | None] = {}
        self._summaries: dict[int, tuple[GraphModule, BodySummary]] = {}
        self._open: set[int] = set()

    def effects_of(self, node: Node, root: nn.Module | None) -> CallEffects:
        """What a compute node does, told in its operands."""
        if node.op == "call_module":
            module = _resolve(root, str(node.target))
            return module_effects(node, module if isinstance(module, nn.Module) else None, self.summary, self.registry)
        rule = self.rule(node.op, node.target)
        if rule is not None:
            return rule(node)
        if isinstance(node.target, HigherOrderOperator):
            return higher_order_effects(node, self.summary, self.registry)
        return opaque(node, f"nobody knows what {_target_name(node)} does")

    def rule(self, op: str, target: Any) -> Rule | None:
        """The rule for a target, looked up once."""
        try:
            if (op, target) not in self._rules:
                self._rules[op, target] = self.registry.rule_for(target) or rule_for_target(op, target)
            return self._rules[op, target]
        except TypeError:  # an unhashable callable object
            return None

    def summary(self, body: GraphModule) -> BodySummary:
        """What running ``body`` does, told in its placeholders; bodies that several calls share are analysed once."""
        if (known := self._summaries.get(id(body))) is not None:
            return known[1]
        if id(body) in self._open:
            return _summary_of_recursion(body)
        self._open.add(id(body))
        summary = _summarize(_analysis(body.graph, body, self, None, None))
        self._open.discard(id(body))
        self._summaries[id(body)] = (body, summary)
        return summary


def _target_name(node: Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__qualname__", None) or str(target)


def _summary_of_recursion(body: GraphModule) -> BodySummary:
    """A body that calls itself: it may do anything to its operands."""
    count = len(body.graph.find_nodes(op="placeholder"))
    everything = tuple(range(count))
    return BodySummary(
        count, everything, everything, (everything,), False, random=True, world=True, reason="the body calls itself"
    )


def _summarize(analysis: EffectAnalysis) -> BodySummary:
    """Tell a finished analysis in the placeholders of its graph."""
    placeholders = [node for node in analysis.nodes if node.op == "placeholder"]
    position: dict[int, list[int]] = {}
    for index, placeholder in enumerate(placeholders):
        for storage in analysis.storages(placeholder):
            position.setdefault(storage, []).append(index)
    tensors = analysis.real_tensors()
    reads: dict[int, None] = {}
    writes: dict[int, None] = {}
    random = world = False
    reason = ""
    for node in analysis.nodes:
        effects = analysis.of(node)
        reads.update(dict.fromkeys(effects.reads))
        writes.update(dict.fromkeys(effects.writes))
        random, world = random or effects.random, world or effects.world or effects.region is not None
        reason = reason or effects.reason
    outputs, is_tuple = _output_values(analysis)
    return BodySummary(
        parameters=len(placeholders),
        reads=_indices(reads, position),
        writes=_indices(writes, position),
        outputs=tuple(_indices(output, position) for output in outputs),
        is_tuple=is_tuple,
        state_reads=_tensors(reads, tensors),
        state_writes=_tensors(writes, tensors),
        output_state=_tensors((storage for output in outputs for storage in output), tensors),
        random=random,
        world=world,
        reason=reason,
    )


def _indices(storages: Iterable[int], position: dict[int, list[int]]) -> tuple[int, ...]:
    return tuple(sorted({index for storage in storages for index in position.get(storage, ())}))


def _tensors(storages: Iterable[int], tensors: dict[int, list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for storage in dict.fromkeys(storages) for tensor in tensors.get(storage, ()))


def _output_values(analysis: EffectAnalysis) -> tuple[list[tuple[int, ...]], bool]:
    """The storages of each value that a graph gives back, and whether it gives back a flat tuple."""
    output = next((node for node in reversed(analysis.nodes) if node.op == "output"), None)
    given = output.args[0] if output is not None and output.args else None
    if isinstance(given, (tuple, list)) and all(not isinstance(item, (tuple, list, dict)) for item in given):
        return [_storages_in(analysis, item) for item in given], True
    return [_storages_in(analysis, given)], False


def _storages_in(analysis: EffectAnalysis, value: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(storage for node in flat_nodes(value) for storage in analysis.storages(node)))


# --------------------------------------------------------------------------------------------------------------------
# First walk: which value lives where
# --------------------------------------------------------------------------------------------------------------------


class _Placing:
    """Gives every value its storages, in one walk; keeps the effects of the nodes that are not plain."""

    def __init__(self, root: nn.Module | None, context: _Context) -> None:
        self.root = root
        self.context = context
        self.storages = Storages()
        self.values: dict[Node, Value] = {}
        self.effects: dict[Node, CallEffects] = {}

    def walk(self, nodes: Iterable[Node], lifted: dict[str, torch.Tensor]) -> None:
        values, parent = self.values, self.storages.parent
        plain: dict[Any, bool] = {}
        for node in nodes:
            if node.op == "call_function":
                target = node.target
                if (is_plain := plain.get(target)) is None:
                    is_plain = plain[target] = self._is_plain(target)
                if is_plain:
                    values[node] = len(parent)
                    parent.append(len(parent))
                    continue
            values[node] = self._value(node, lifted)

    def _is_plain(self, target: Any) -> bool:
        rule = self.context.rule("call_function", target)
        return getattr(rule, "always", None) is PLAIN

    def _value(self, node: Node, lifted: dict[str, torch.Tensor]) -> Value:
        if node.op == "placeholder":
            return self._placeholder(node, lifted)
        if node.op == "get_attr":
            return self._attribute(_resolve(self.root, str(node.target)))
        if node.op == "output":
            return NO_STORAGE
        effects = self.context.effects_of(node, self.root)
        if effects is PLAIN:
            return self.storages.fresh()
        self.effects[node] = effects
        if effects.reason and effects.writes and effects.world:
            self._mix(effects)
        return self._result(node, effects)

    def _mix(self, effects: CallEffects) -> None:
        """An opaque call may make any of its operands share memory with any other."""
        flat = [storage for operand in effects.writes for storage in _flat_value(self.values[operand])]
        self._united([*flat, *map(self.storages.of_tensor, effects.state_aliases)])

    def _placeholder(self, node: Node, lifted: dict[str, torch.Tensor]) -> Value:
        if (tensor := lifted.get(node.name)) is not None:
            return self.storages.of_tensor(tensor)
        example = node.meta.get("val")
        return self.storages.of_tensor(example) if isinstance(example, torch.Tensor) else self.storages.fresh()

    def _attribute(self, found: Any) -> Value:
        if isinstance(found, torch.Tensor):
            return self.storages.of_tensor(found)
        if isinstance(found, GraphModule):
            return NO_STORAGE
        if isinstance(found, nn.Module):
            return self._united([self.storages.of_tensor(tensor) for tensor in (*found.parameters(), *found.buffers())])
        return self.storages.fresh()

    def _result(self, node: Node, effects: CallEffects) -> Value:
        if effects.returns == 0:
            return NO_STORAGE
        if _is_pick(node):
            return self._picked(node)
        state = [self.storages.of_tensor(tensor) for tensor in effects.state_aliases]
        if effects.returns == 1:
            return self._element(effects, 0, state)
        return tuple(self._element(effects, slot, state) for slot in range(effects.returns))

    def _element(self, effects: CallEffects, slot: int, state: list[int]) -> int:
        operands = effects.aliases[slot] if slot < len(effects.aliases) else ()
        flat = [storage for operand in operands for storage in _flat_value(self.values[operand])]
        return self._united([*flat, *state])

    def _picked(self, node: Node) -> Value:
        """An element of a tuple, or a slice of a tensor."""
        value = self.values[node.args[0]]  # type: ignore[index]  # _is_pick saw a node there
        if isinstance(value, tuple):
            index = node.args[1]
            return value[index] if isinstance(index, int) and -len(value) <= index < len(value) else self._united(value)
        return value

    def _united(self, storages: Iterable[int]) -> int:
        merged = NO_STORAGE
        for storage in storages:
            merged = self.storages.unite(merged, storage)
        return merged if merged != NO_STORAGE else self.storages.fresh()


def _is_pick(node: Node) -> bool:
    return getattr(node.target, "__name__", node.target) in ("getitem", "__getitem__") and isinstance(
        node.args[0], Node
    )


def _flat_value(value: Value) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return value
    return (value,) if value != NO_STORAGE else ()


# --------------------------------------------------------------------------------------------------------------------
# Second walk: the order
# --------------------------------------------------------------------------------------------------------------------

_RANDOM, _WORLD = -2, -3


class _Ordering:
    """Turns reads, writes and barriers into edges, in one walk."""

    def __init__(self, analysis: EffectAnalysis) -> None:
        self.analysis = analysis
        self.edges: list[tuple[Node, Node]] = []
        self.writer: dict[int, Node] = {}
        self.readers: dict[int, list[Node]] = {}
        self.since_barrier: list[Node] = []
        self.barrier: Node | None = None
        self.symbols = _Symbols(analysis) if any(effects.guards for effects in analysis._effects.values()) else None

    def walk(self) -> list[tuple[Node, Node]]:
        analysis = self.analysis
        if not any(not effects.is_pure for effects in analysis._effects.values()):
            return []
        hot = analysis._written_storages()
        find = analysis._storages.find
        touched = {node for node, value in analysis._values.items() if any(find(s) in hot for s in _flat_value(value))}
        markers = any(effects.region and effects.region.is_barrier for effects in analysis._effects.values())
        for node in analysis.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            if node.op == "output":
                self._close(node)
            elif node in analysis._effects:
                self._effectful(node, hot)
            else:
                for operand in node.all_input_nodes:
                    if operand in touched:
                        self._read_all(node, _flat_value(analysis._values[operand]), hot)
            if markers and node.op != "output":
                self._cross(node)
            if self.symbols is not None:
                self._guard(node)
        return self.edges

    def _read_all(self, node: Node, storages: Iterable[int], hot: set[int]) -> None:
        find = self.analysis._storages.find
        for storage in storages:
            if (root := find(storage)) in hot:
                self._read(node, root)

    def _effectful(self, node: Node, hot: set[int]) -> None:
        effects = self.analysis.of(node)
        for storage in effects.reads:
            if storage in hot and storage not in effects.writes:
                self._read(node, storage)
        for storage in effects.writes:
            self._write(node, storage)
        if effects.random:
            self._write(node, _RANDOM)
        if effects.world:
            self._write(node, _WORLD)

    def _edge(self, earlier: Node, later: Node) -> None:
        if earlier is not later and earlier not in later.all_input_nodes:
            self.edges.append((earlier, later))

    def _read(self, node: Node, storage: int) -> None:
        if (writer := self.writer.get(storage)) is not None:
            self._edge(writer, node)
        self.readers.setdefault(storage, []).append(node)

    def _write(self, node: Node, storage: int) -> None:
        if readers := self.readers.pop(storage, None):
            for reader in readers:
                self._edge(reader, node)
        elif (writer := self.writer.get(storage)) is not None:
            self._edge(writer, node)
        self.writer[storage] = node

    def _cross(self, node: Node) -> None:
        effects = self.analysis._effects.get(node)
        if effects is None or effects.region is None or not effects.region.is_barrier:
            if self.barrier is not None:
                self._edge(self.barrier, node)
            self.since_barrier.append(node)
            return
        for earlier in self._before_barrier():
            self._edge(earlier, node)
        self.since_barrier, self.barrier = [], node

    def _before_barrier(self) -> list[Node]:
        """What the next barrier must wait for: the nodes since the last one, or that one itself."""
        return self.since_barrier or ([self.barrier] if self.barrier is not None else [])

    def _guard(self, node: Node) -> None:
        for earlier in self.symbols.visit(node) if self.symbols else ():
            self._edge(earlier, node)

    def _close(self, output: Node) -> None:
        """Nothing that lasts may come after the output: the end of the graph is behind all effects."""
        for storage in list(self.writer):
            for reader in self.readers.get(storage, ()):
                self._edge(reader, output)
            if not self.readers.get(storage):
                self._edge(self.writer[storage], output)
        for earlier in self._before_barrier() if self.barrier is not None else ():
            self._edge(earlier, output)
        self.edges = list(dict.fromkeys(self.edges))


class _Symbols:
    """Follows numbers from producer to use, so that an assertion on one stays before what it guards."""

    def __init__(self, analysis: EffectAnalysis) -> None:
        self._analysis = analysis
        self._classes = Storages()
        self._class_of: dict[Node, int] = {}
        self._asserted: dict[int, int] = {}
        self._asserts: list[Node] = []

    def visit(self, node: Node) -> list[Node]:
        """The assertions that must run before ``node``; at most one, as assertions are in order among themselves."""
        operands = [operand for operand in node.all_input_nodes if self._is_number(operand)]
        effects = self._analysis._effects.get(node)
        if effects is not None and effects.guards:
            self._asserts.append(node)
            for operand in operands:
                self._asserted[self._symbol(operand)] = len(self._asserts) - 1
            return []
        if self._is_number(node):
            for operand in operands:
                self._unite(self._symbol(operand), self._symbol(node))
            return []
        found = [self._asserted[symbol] for operand in operands if (symbol := self._symbol(operand)) in self._asserted]
        return [self._asserts[max(found)]] if found else []

    def _is_number(self, node: Node) -> bool:
        if isinstance(value := node.meta.get("val"), torch.Tensor):
            return False
        if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        return node.op not in ("output", "placeholder") and self._analysis._values[node] == NO_STORAGE

    def _symbol(self, node: Node) -> int:
        if node not in self._class_of:
            self._class_of[node] = self._classes.fresh()
        return self._classes.find(self._class_of[node])

    def _unite(self, first: int, second: int) -> None:
        known = [self._asserted[symbol] for symbol in (first, second) if symbol in self._asserted]
        merged = self._classes.unite(first, second)
        if known:
            self._asserted[merged] = max(known)


# --------------------------------------------------------------------------------------------------------------------
# Regions
# --------------------------------------------------------------------------------------------------------------------


class _Regions:
    """The stack of regions that are open at each node."""

    def __init__(self, analysis: EffectAnalysis) -> None:
        self.stack: tuple[Node, ...] = ()
        self.open_at: dict[Node, tuple[Node, ...]] = {}
        for node in analysis.nodes:
            effects = analysis._effects.get(node)
            if effects is not None and effects.region is not None and effects.region.is_barrier:
                self._switch(node, effects)
            self.open_at[node] = self.stack

    def _switch(self, node: Node, effects: CallEffects) -> None:
        if effects.region is RegionKind.GRAD_MODE:
            self._set_grad_mode(node)
        elif effects.opens:
            self.stack = (*self.stack, node)
        else:
            opener = node.args[0] if node.args and isinstance(node.args[0], Node) else None
            self._close(opener if opener in self.stack else next(reversed(self.stack), None))

    def _close(self, opener: Node | None) -> None:
        self.stack = tuple(node for node in self.stack if node is not opener)

    def _set_grad_mode(self, node: Node) -> None:
        """``_set_grad_enabled`` has no end marker: setting back what was set before closes the region."""
        setters = [opener for opener in self.stack if _is_grad_setter(opener)]
        value = node.args[0] if node.args else None
        before = setters[-2].args[0] if len(setters) > 1 else (not setters[-1].args[0] if setters else None)
        if setters and value == before:
            self._close(setters[-1])
        else:
            self.stack = (*self.stack, node)


def _is_grad_setter(node: Node) -> bool:
    return "set_grad_enabled" in getattr(node.target, "__name__", str(node.target))


class EffectAnalysis:
    """The effects of all nodes of one graph; made by :func:`analyze_effects`.

    Attributes:
        graph: The graph.
        nodes: Its nodes, in order, as they were when it was analysed.
        order_edges: Pairs ``(earlier, later)`` that must keep their order though no data flows between them. All other
            orders that effects force follow from these and the data edges.
        copy_backs: For an exported program: which value is copied back at the end to which placeholder.
    """

    def __init__(self, graph: Graph, placing: _Placing, copy_backs: dict[Node, Node]) -> None:
        self.graph = graph
        self.nodes: list[Node] = list(graph.nodes)
        self.copy_backs = copy_backs
        self._values = placing.values
        self._storages = placing.storages
        self._effects = placing.effects
        self._shape_matters = any(effects.changes_shape for effects in placing.effects.values())
        self._told: dict[Node, NodeEffects] = {}
        self._regions: _Regions | None = None
        self._named: dict[int, Node] | None = None
        self.order_edges: list[tuple[Node, Node]] = _Ordering(self).walk()

    def of(self, node: Node) -> NodeEffects:
        """What ``node`` does, told in storages. Placeholders and attributes do nothing."""
        if node.op in ("placeholder", "get_attr", "output"):
            return self._of_output() if node.op == "output" else _NO_EFFECTS
        if node not in self._told:
            self._told[node] = self._tell(node)
        return self._told[node]

    def _of_output(self) -> NodeEffects:
        written = self._roots(storage for target in self.copy_backs.values() for storage in self.storages(target))
        return (
            NodeEffects(writes=written, reason="the program copies results back to its inputs")
            if written
            else _NO_EFFECTS
        )

    def _tell(self, node: Node) -> NodeEffects:
        effects = self._effects.get(node, PLAIN)
        read = node.all_input_nodes if effects.reads is None or self._shape_matters else effects.reads
        written = self._of_nodes(effects.writes)
        state = self._storages.of_tensor
        return NodeEffects(
            reads=self._roots([*self._of_nodes(read), *map(state, effects.state_reads)]),
            writes=self._roots([*written, *map(state, effects.state_writes)]),
            random=effects.random,
            world=effects.world,
            region=effects.region,
            reason=effects.reason,
        )

    def _of_nodes(self, nodes: Iterable[Node]) -> Iterator[int]:
        for node in nodes:
            yield from _flat_value(self._values[node])

    def _roots(self, storages: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self._storages.find(storage) for storage in storages))

    def _written_storages(self) -> set[int]:
        return {storage for node in self._effects for storage in self.of(node).writes}

    def storages(self, node: Node) -> tuple[int, ...]:
        """The storages that the value of ``node`` may live in; a view lives in its base's."""
        return self._roots(_flat_value(self._values[node]))

    def real_tensors(self) -> dict[int, list[torch.Tensor]]:
        """The real tensors of the graph (parameters, buffers, constants), by storage."""
        return self._storages.real_tensors()

    def may_alias(self, a: Node, b: Node) -> bool:
        """Whether a write to one may be seen in the other."""
        return not set(self.storages(a)).isdisjoint(self.storages(b))

    def is_removable(self, node: Node) -> bool:
        """Whether ``node`` may be erased when nothing uses its result."""
        return node.op not in ("placeholder", "output") and self.of(node).is_pure

    def region_stack(self, node: Node) -> tuple[Node, ...]:
        """The markers of the regions that are open at ``node``, outermost first; a marker is inside what it opens."""
        if self._regions is None:
            self._regions = _Regions(self)
        return self._regions.open_at[node]

    def why_ordered(self, earlier: Node, later: Node) -> str:
        """Why ``later`` must stay behind ``earlier``, in a few words; "" if nothing says so directly."""
        first, second = self.of(earlier), self.of(later)
        for marker, effects in ((earlier, first), (later, second)):
            if effects.region is not None and effects.region.is_barrier:
                return f"{marker.name} switches {effects.region.value}"
        for mine, verb, theirs, other_verb in (
            (first.writes, "writes", second.reads, "reads"),
            (first.reads, "reads", second.writes, "writes"),
            (first.writes, "writes", second.writes, "writes"),
        ):
            if shared := [storage for storage in mine if storage in theirs]:
                what = self._name_of(shared[0])
                return f"{earlier.name} {verb} {what}, which {later.name} {other_verb}"
        if first.random and second.random:
            return f"{earlier.name} and {later.name} both draw random numbers"
        if first.world and second.world:
            return f"{earlier.name} and {later.name} both act on the world"
        if later.op == "output" and not first.is_pure:
            return f"{earlier.name} has an effect that lasts"
        return f"{earlier.name} asserts what {later.name} relies on" if first.world else ""

    def _name_of(self, storage: int) -> str:
        if self._named is None:
            self._named = {}
            for node in self.nodes:
                for found in self.storages(node):
                    self._named.setdefault(found, node)
        return self._named[storage].name if storage in self._named else "module state"


def _analysis(
    graph: Graph,
    root: nn.Module | None,
    context: _Context,
    signature: ExportGraphSignature | None,
    program: ExportedProgram | None,
) -> EffectAnalysis:
    placing = _Placing(root, context)
    placing.walk(graph.nodes, _lifted_tensors(program))
    return EffectAnalysis(graph, placing, _copy_backs(graph, signature))


def _lifted_tensors(program: ExportedProgram | None) -> dict[str, torch.Tensor]:
    """The real tensors of the lifted inputs of a program, by placeholder name."""
    if program is None:
        return {}
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR) and spec.target is not None:
            tensor = program.state_dict.get(spec.target, program.constants.get(spec.target))
            if isinstance(tensor, torch.Tensor):
                found[spec.arg.name] = tensor
    return found


_MUTATIONS = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
    getattr(OutputKind, "PARAMETER_MUTATION", None),
)


def _copy_backs(graph: Graph, signature: ExportGraphSignature | None) -> dict[Node, Node]:
    """The values that the program copies back at its end, and the placeholders it copies them to."""
    if signature is None:
        return {}
    by_name = {node.name: node for node in graph.nodes}
    of_state = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target is not None}
    found = {}
    for spec in signature.output_specs:
        if spec.kind in _MUTATIONS:
            target = by_name.get(of_state.get(spec.target or "", spec.target or ""))
            value = by_name.get(spec.arg.name)
            if target is not None and value is not None:
                found[value] = target
    return found
