"""The first walk of the effect analysis: which storage each value of a graph lives in, and what each node does to them.

A value is a storage id, a tuple of them (one for each element of a tuple-valued call), or ``NO_STORAGE``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from fxpasses.effects.aliasing import NO_STORAGE, Storages
from fxpasses.effects.calls import PLAIN, CallEffects, RegionKind, Rule, name_of
from fxpasses.errors import CycleError

__all__ = ["NodeEffects", "PlacedGraph", "Value", "executable_order", "flat_value", "place", "resolve"]

Value = int | tuple[int, ...]


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


NO_EFFECTS = NodeEffects()


@attrs.frozen(eq=False)
class PlacedGraph:
    """A graph whose values are placed.

    Attributes:
        nodes: In an order in which they can run: the graph's own, where that works.
        values: Where the value of each node lives.
        calls: What the nodes do that are not plain, told in operands.
        storages: The storages.
        impure: Those of them that do more than compute their result, in order.
        reshaped: Storages of which some node changes the shape in place; views and size queries read these, too.
    """

    nodes: list[Node]
    values: Mapping[Node, Value]
    calls: Mapping[Node, CallEffects]
    impure: Mapping[Node, CallEffects]
    storages: Storages
    reshaped: frozenset[int]
    _told: dict[Node, NodeEffects] = attrs.field(factory=dict, init=False, repr=False)

    def of(self, node: Node) -> NodeEffects:
        """What ``node`` does, told in storages; nothing for placeholders, attributes and the output."""
        if node.op in ("placeholder", "get_attr", "output"):
            return NO_EFFECTS
        if node not in self._told:
            self._told[node] = self._tell(node)
        return self._told[node]

    def _tell(self, node: Node) -> NodeEffects:
        call = self.calls.get(node, PLAIN)
        read = node.all_input_nodes if call.reads is None else [*call.reads, *self._reshaped_operands(node)]
        return NodeEffects(
            reads=self._touched(read, call.state_reads),
            writes=self._touched(call.writes, call.state_writes),
            random=call.random,
            world=call.world,
            region=call.region,
            reason=call.reason,
        )

    def _touched(self, operands: Sequence[Node], state: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
        if len(operands) == 1 and not state and isinstance(value := self.values[operands[0]], int):
            return (self.storages.find(value),) if value >= 0 else ()
        return self.roots([*self._living_in(operands), *map(self.storages.of_tensor, state)])

    def _reshaped_operands(self, node: Node) -> list[Node]:
        if not self.reshaped:
            return []
        found = self.storages.find
        return [
            operand
            for operand in node.all_input_nodes
            if any(found(storage) in self.reshaped for storage in flat_value(self.values[operand]))
        ]

    def _living_in(self, nodes: Iterable[Node]) -> Iterator[int]:
        for node in nodes:
            yield from flat_value(self.values[node])

    def roots(self, storages: Iterable[int]) -> tuple[int, ...]:
        """The ids that stand for ``storages``, each once."""
        find = self.storages.find
        return tuple(dict.fromkeys([find(storage) for storage in storages]))

    def written_storages(self) -> frozenset[int]:
        """The storages that any node writes."""
        return frozenset([storage for node in self.impure for storage in self.of(node).writes])

    def living_in(self, storages: frozenset[int]) -> set[Node]:
        """The nodes whose values may live in any of ``storages``."""
        find = self.storages.find
        found = set()
        for node, value in self.values.items():
            if isinstance(value, int):
                if value >= 0 and find(value) in storages:
                    found.add(node)
            elif any(find(storage) in storages for storage in value):
                found.add(node)
        return found


def flat_value(value: Value) -> tuple[int, ...]:
    """The storages in a value."""
    if isinstance(value, tuple):
        return value
    return (value,) if value != NO_STORAGE else ()


def resolve(root: nn.Module | None, target: str) -> Any:
    """The object behind a dotted name; None if there is none."""
    found: Any = root
    for part in target.split("."):
        found = getattr(found, part, None)
    return found


def place(
    graph: Graph,
    root: nn.Module | None,
    rule_of: Callable[[str, Any], Rule | None],
    effects_of: Callable[[Node, nn.Module | None], CallEffects],
    lifted: Mapping[str, torch.Tensor],
) -> PlacedGraph:
    """Walk a graph once and place its values. Linear in nodes and operands.

    Args:
        graph: The graph.
        root: The module that holds its attributes.
        rule_of: Gives the rule of a target, if it has one.
        effects_of: Gives what a call does.
        lifted: Real tensors behind placeholders, by their names.
    """
    walk = _Walk(root, rule_of, effects_of, lifted)
    nodes = executable_order(graph)
    walk.run(nodes)
    impure = {node: call for node, call in walk.calls.items() if not call.is_pure}
    written = [node for call in impure.values() if call.changes_shape for node in call.writes]
    reshaped = frozenset(walk.storages.find(storage) for node in written for storage in flat_value(walk.values[node]))
    return PlacedGraph(nodes, walk.values, walk.calls, impure, walk.storages, reshaped)


class _Walk:
    def __init__(
        self,
        root: nn.Module | None,
        rule_of: Callable[[str, Any], Rule | None],
        effects_of: Callable[[Node, nn.Module | None], CallEffects],
        lifted: Mapping[str, torch.Tensor],
    ) -> None:
        self.root = root
        self.rule_of = rule_of
        self.effects_of = effects_of
        self.lifted = lifted
        self.storages = Storages()
        self.values: dict[Node, Value] = {}
        self.calls: dict[Node, CallEffects] = {}
        self.by_name: dict[str, int] = {}

    def run(self, nodes: Iterable[Node]) -> None:
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
            values[node] = self._value(node)

    def _is_plain(self, target: Any) -> bool:
        return getattr(self.rule_of("call_function", target), "always", None) is PLAIN

    def _value(self, node: Node) -> Value:
        if node.op == "placeholder":
            return self._placeholder(node)
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op == "output":
            return NO_STORAGE
        call = self.effects_of(node, self.root)
        if call is PLAIN:
            return self.storages.fresh()
        self.calls[node] = call
        if call.mixes:
            self._united([*self._living_in(call.writes), *map(self.storages.of_tensor, call.state_writes)])
        return self._result(node, call)

    def _placeholder(self, node: Node) -> Value:
        if (tensor := self.lifted.get(node.name)) is not None:
            return self.storages.of_tensor(tensor)
        example = node.meta.get("val")
        return self.storages.of_example(example) if isinstance(example, torch.Tensor) else self.storages.fresh()

    def _attribute(self, target: str) -> Value:
        found = resolve(self.root, target)
        if isinstance(found, torch.Tensor):
            return self.storages.of_tensor(found)
        if isinstance(found, GraphModule):
            return NO_STORAGE
        if isinstance(found, nn.Module):
            return self._united([self.storages.of_tensor(tensor) for tensor in (*found.parameters(), *found.buffers())])
        return self._unknown_attribute(target)

    def _unknown_attribute(self, target: str) -> int:
        """A list of tensors, a script object, or the attribute of a graph without a module: known by its name.

        An attribute is part of what the first word of its name stands for.
        """
        base = target.partition(".")[0]
        if base not in self.by_name:
            self.by_name[base] = self.storages.fresh()
        return self.by_name[base]

    def _result(self, node: Node, call: CallEffects) -> Value:
        if call.returns == 0:
            return NO_STORAGE
        if _is_pick(node):
            return self._picked(node)
        if call.returns == 1:
            return self._element(call, 0)
        return tuple(self._element(call, slot) for slot in range(call.returns))

    def _element(self, call: CallEffects, slot: int) -> int:
        operands = call.aliases[slot] if slot < len(call.aliases) else ()
        tensors = call.state_aliases[slot] if slot < len(call.state_aliases) else ()
        state = [self.storages.of_tensor(tensor) for tensor in tensors]
        if len(operands) == 1 and not state and isinstance(value := self.values[operands[0]], int) and value >= 0:
            return value  # nearly all views
        return self._united([*self._living_in(operands), *state])

    def _living_in(self, nodes: Iterable[Node]) -> Iterator[int]:
        for node in nodes:
            yield from flat_value(self.values[node])

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
    return name_of(node.target) in ("getitem", "__getitem__") and bool(node.args) and isinstance(node.args[0], Node)


# --- the order in which nodes can run -------------------------------------------------------------------------------


def executable_order(graph: Graph) -> list[Node]:
    """The nodes of a graph in an order in which they can run: its own, unless a node stands before what it needs.

    Such a node waits; all others stay where they are, as far as that goes. Linear where nothing has to wait, otherwise
    Kahn's algorithm with a heap (A. B. Kahn, "Topological sorting of large networks", 1962), ``O((n + e) log n)``.

    Raises:
        CycleError: Nodes need each other (also a ``RuntimeError``); ``path`` names them.
    """
    nodes = list(graph.nodes)
    seen: set[Node] = set()
    for node in nodes:
        if not seen.issuperset(node.all_input_nodes):
            return _sorted(nodes)
        seen.add(node)
    return nodes


def _sorted(nodes: list[Node]) -> list[Node]:
    position = {node: index for index, node in enumerate(nodes)}
    waiting = [sum(operand in position for operand in node.all_input_nodes) for node in nodes]
    ready = [index for index, count in enumerate(waiting) if count == 0]
    order: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for user in node.users:
            index = position[user]
            waiting[index] -= 1
            if waiting[index] == 0:
                heapq.heappush(ready, index)
    if len(order) < len(nodes):
        raise _cycle(nodes, waiting, position)
    return order


def _cycle(nodes: list[Node], waiting: list[int], position: dict[Node, int]) -> CycleError:
    """Walk up from a node that waits, always to an operand that waits, until a node comes again."""
    stuck = {node for node, count in zip(nodes, waiting, strict=True) if count > 0}
    path = [next(node for node in nodes if node in stuck)]
    seen: dict[Node, int] = {}
    while path[-1] not in seen:
        seen[path[-1]] = len(path) - 1
        path.append(next(operand for operand in path[-1].all_input_nodes if operand in stuck))
    circle = path[seen[path[-1]] :][::-1]
    text = " -> ".join(node.name for node in circle)
    kind = type("CycleError", (CycleError, RuntimeError), {})
    error: CycleError = kind(
        f"the graph has a cycle: {text}; each of these nodes needs the one before it, so none can run first",
        path=circle,
        node=circle[0],
    )
    return error
