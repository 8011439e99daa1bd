"""The analysis: two walks over a graph, and what they tell about each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node

from fxpasses.effects.bodies import BodySummary, higher_order_effects, module_effects
from fxpasses.effects.calls import PLAIN, CallEffects, Registry, Rule, flat_nodes, name_of, opaque
from fxpasses.effects.order import enclosing_regions, order_edges
from fxpasses.effects.purity import rule_for_target
from fxpasses.effects.storages import NodeEffects, PlacedGraph, flat_value, place, resolve

__all__ = [
    "EffectAnalysis",
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


def analyze_effects(
    graph: GraphModule | Graph,
    *,
    signature: ExportGraphSignature | None = None,
    program: ExportedProgram | None = None,
    registry: Registry | None = None,
    trusting: bool = False,
) -> EffectAnalysis:
    """Find the effects of all nodes of a graph, and the order that follows from them.

    Args:
        graph: A graph, or the module that holds it. A bare graph is looked up in its owning module.
        signature: The signature of an exported program whose graph this is: it tells which outputs are copied back.
        program: The program itself; its real tensors tell which parameters share memory. Gives the signature, too.
        registry: What users said about targets; what was registered in this process if it is not given.
        trusting: Calls that nobody can look into are taken to compute their result, and to do nothing else.

    Returns:
        The analysis. It is a snapshot: edits of the graph are not seen.

    Inputs are taken to be distinct in memory, unless their example values (``meta["val"]``) or the program's tensors
    say otherwise.
    """
    inner = graph.graph if isinstance(graph, GraphModule) else graph
    root = graph if isinstance(graph, GraphModule) else inner.owning_module
    if program is not None and signature is None:
        signature = program.graph_signature
    context = _Context(registry or USER_REGISTRY, trusting)
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


class _Context:
    """Answers that hold for one analysis and all graphs nested in it: rules by target, summaries by body."""

    def __init__(self, registry: Registry, trusting: bool = False) -> None:
        self.registry = registry
        self.trusting = trusting
        self._rules: dict[tuple[str, Any], Rule | None] = {}
        self._summaries: dict[int, tuple[GraphModule, BodySummary]] = {}
        self._open: set[int] = set()

    def effects_of(self, node: Node, root: nn.Module | None) -> CallEffects:
        """What a compute node does, told in its operands."""
        found = self._looked_up(node, root)
        return PLAIN if self.trusting and not found.is_known else found

    def _looked_up(self, node: Node, root: nn.Module | None) -> CallEffects:
        if node.op == "call_module":
            module = resolve(root, str(node.target))
            return module_effects(node, module if isinstance(module, nn.Module) else None, self.summary, self.registry)
        rule = self.rule(node.op, node.target)
        if rule is not None:
            return rule(node)
        if isinstance(node.target, HigherOrderOperator):
            return higher_order_effects(node, self.summary, self.registry)
        return opaque(node, f"nobody knows what {name_of(node.target)} does")

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


def _summary_of_recursion(body: GraphModule) -> BodySummary:
    """A body that calls itself: it may do anything to its operands."""
    names = _names(body.graph.find_nodes(op="placeholder"))
    everything = tuple(range(len(names)))
    return BodySummary(
        names, everything, everything, (everything,), False, random=True, world=True, reason="the body calls itself"
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
        random, world = random or effects.random, world or effects.world
        if not effects.is_pure:
            reason = reason or effects.reason
        if node.op == "output" and analysis.region_stack(node):
            world, reason = True, "it leaves a region open"
    outputs, is_tuple = _output_values(analysis)
    return BodySummary(
        parameters=_names(placeholders),
        reads=_indices(reads, position),
        writes=_indices(writes, position),
        outputs=tuple(_indices(output, position) for output in outputs),
        is_tuple=is_tuple,
        state_reads=_tensors(reads, tensors),
        state_writes=_tensors(writes, tensors),
        output_state=tuple(_tensors(output, tensors) for output in outputs),
        random=random,
        world=world,
        reason=reason,
    )


def _names(placeholders: Iterable[Node]) -> tuple[str, ...]:
    return tuple(str(node.target) for node in placeholders)


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


class EffectAnalysis:
    """The effects of all nodes of one graph; made by :func:`analyze_effects`.

    Attributes:
        graph: The graph.
        nodes: Its nodes as they were when it was analysed, in an order in which they can run.
        order_edges: Pairs ``(earlier, later)`` that must keep their order though no data flows between them. All other
            orders that effects force follow from these and the data edges.
        copy_backs: For an exported program: which value is copied back at the end to which placeholder.
    """

    def __init__(self, graph: Graph, placed: PlacedGraph, copy_backs: dict[Node, Node]) -> None:
        self.graph = graph
        self.nodes = placed.nodes
        self.copy_backs = copy_backs
        self._placed = placed
        self._open: dict[Node, tuple[Node, ...]] | None = None
        self._named: dict[int, Node] | None = None
        self.order_edges: list[tuple[Node, Node]] = order_edges(placed)

    def of(self, node: Node) -> NodeEffects:
        """What ``node`` does, told in storages.

        Placeholders and attributes do nothing. The output of an exported program writes what it copies back.
        """
        if node.op == "output" and self.copy_backs:
            written = self._placed.roots(self._storages_of(self.copy_backs.values()))
            return NodeEffects(writes=written, reason="the program copies results back to its inputs")
        return self._placed.of(node)

    def call(self, node: Node) -> CallEffects:
        """What ``node`` does, told in its operands: which of them it writes, which its result may alias."""
        return self._placed.calls.get(node, PLAIN)

    def _storages_of(self, nodes: Iterable[Node]) -> Iterator[int]:
        for node in nodes:
            yield from flat_value(self._placed.values[node])

    def storages(self, node: Node) -> tuple[int, ...]:
        """The storages that the value of ``node`` may live in; a view lives in its base's."""
        return self._placed.roots(flat_value(self._placed.values[node]))

    def bases(self, node: Node) -> tuple[int, ...]:
        """The storages of the value of ``node``, as they were numbered before those that may be one became one."""
        return flat_value(self._placed.values[node])

    def real_tensors(self) -> dict[int, list[torch.Tensor]]:
        """The real tensors of the graph (parameters, buffers, constants), by storage."""
        return self._placed.storages.real_tensors()

    def written_tensors(self) -> list[torch.Tensor]:
        """The real tensors of the graph that any node writes."""
        state, written = self.real_tensors(), self.written_storages
        return [tensor for storage, tensors in state.items() if storage in written for tensor in tensors]

    def written_inputs(self) -> list[Node]:
        """The inputs of the graph that any node writes."""
        inputs = (node for node in self.nodes if node.op == "placeholder")
        return [node for node in inputs if not self.written_storages.isdisjoint(self.storages(node))]

    def may_alias(self, a: Node, b: Node) -> bool:
        """Whether a write to one may be seen in the other."""
        return not set(self.storages(a)).isdisjoint(self.storages(b))

    @property
    def is_pure(self) -> bool:
        """Whether no node of the graph has any effect."""
        return not self._placed.impure

    @property
    def reshaped_storages(self) -> frozenset[int]:
        """The storages of which a node changes the shape in place (``t_``, ``resize_``)."""
        return self._placed.reshaped

    @cached_property
    def written_storages(self) -> frozenset[int]:
        """The storages that any node writes."""
        return self._placed.written_storages()

    @cached_property
    def lasting_storages(self) -> frozenset[int]:
        """The storages that others can see after the graph has run: of its inputs, attributes, state and results."""
        seen = [node for node in self.nodes if node.op in ("placeholder", "get_attr")]
        seen += [operand for node in self.nodes if node.op == "output" for operand in node.all_input_nodes]
        return frozenset(self._placed.roots([*self._storages_of(seen), *self.real_tensors()]))

    def is_removable(self, node: Node) -> bool:
        """Whether ``node`` may be erased when nothing uses its result.

        A node that writes is not; :meth:`needed_nodes` also finds writes that nobody sees.
        """
        return node.op not in ("placeholder", "output") and self.of(node).is_pure

    def needed_nodes(self) -> list[Node]:
        """The nodes that somebody would miss: what the output needs, and every effect that can be seen.

        One walk from the end to the start (liveness, as in any compiler; here with storages as variables): a node is
        needed if a needed node uses its value, if it writes a storage that a needed node behind it reads or that lasts,
        if it draws random numbers (that moves the generator on for the others), acts on the world, or marks a region.
        """
        needed: list[Node] = []
        wanted: set[Node] = set()
        live = set(self.lasting_storages)
        writes, impure = self.written_storages, self._placed.impure
        for node in reversed(self.nodes):
            if not (node in wanted or node.op in ("placeholder", "output") or self._is_seen(node, impure, live)):
                continue
            needed.append(node)
            operands = node.all_input_nodes
            wanted.update(operands)
            if writes:
                live.update(self.of(node).reads)
                live.update(self._placed.roots(self._storages_of([node, *operands])))
        return needed[::-1]

    def _is_seen(self, node: Node, impure: Mapping[Node, CallEffects], live: set[int]) -> bool:
        """Whether a node has an effect that somebody sees, where the storages in ``live`` are looked at later."""
        if (call := impure.get(node)) is None:
            return False
        if call.random or call.world or call.region is not None:
            return True
        return not live.isdisjoint(self.of(node).writes)

    def region_stack(self, node: Node) -> tuple[Node, ...]:
        """The markers of the regions that are open at ``node``, outermost first; a marker is inside what it opens."""
        if self._open is None:
            self._open = enclosing_regions(self._placed)
        return self._open.get(node, ())

    def why_ordered(self, earlier: Node, later: Node) -> str:
        """Why ``later`` must stay behind ``earlier``, in a few words; "" if nothing says so directly."""
        first, second = self.of(earlier), self.of(later)
        if conflict := self._conflict(earlier, first, later, second):
            return conflict
        for marker, effects in ((earlier, first), (later, second)):
            if effects.region is not None and effects.region.is_barrier:
                return f"{marker.name} switches {effects.region.value}"
        if first.random and second.random:
            return f"{earlier.name} and {later.name} both draw random numbers"
        if first.world and second.world:
            return f"{earlier.name} and {later.name} both act on the world"
        if later.op == "output":
            return f"the effect of {earlier.name} comes before the end"
        return f"{earlier.name} asserts what {later.name} relies on" if first.world else ""

    def _conflict(self, earlier: Node, first: NodeEffects, later: Node, second: NodeEffects) -> str:
        """Where one writes what the other touches."""
        for mine, verb, theirs, other_verb in (
            (first.writes, "writes", second.reads, "reads"),
            (first.reads, "reads", second.writes, "writes"),
            (first.writes, "writes", second.writes, "writes"),
            (first.writes, "writes", self.storages(later), "is a view of"),
        ):
            if shared := [storage for storage in mine if storage in theirs]:
                return f"{earlier.name} {verb} {self._name_of(shared[0])}, which {later.name} {other_verb}"
        return ""

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
    placed = place(graph, root, context.rule, context.effects_of, _lifted_tensors(program))
    return EffectAnalysis(graph, placed, _copy_backs(graph, signature))


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
