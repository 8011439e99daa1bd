"""Which values of a split's top level show the same memory, also where only the inside of a part tells."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import attrs
from networkx.utils import UnionFind
from torch.fx import GraphModule, Node

from fxpasses.effects import EffectAnalysis, analyze_effects

__all__ = ["SharedMemory"]


@attrs.frozen(eq=False)
class SharedMemory:
    """The storages of a top level: two results of one part that are views of one tensor have one."""

    effects: EffectAnalysis
    joined: UnionFind[int]

    @classmethod
    def of(cls, graph_module: GraphModule) -> SharedMemory:
        """Look into each part that the top level calls. Linear in all nodes."""
        effects = analyze_effects(graph_module)
        joined: UnionFind[int] = UnionFind()
        for node in graph_module.graph.find_nodes(op="call_module"):
            part = graph_module.get_submodule(str(node.target))
            if isinstance(part, GraphModule):
                for group in _groups(node, part):
                    storages = [storage for value in group for storage in effects.storages(value)]
                    if len(storages) > 1:
                        joined.union(*storages)
        return cls(effects, joined)

    def storages(self, value: Node) -> frozenset[int]:
        """Where a value lives."""
        return self._joined(self.effects.storages(value))

    def written_by(self, node: Node) -> frozenset[int]:
        """What a node writes to."""
        return self._joined(self.effects.of(node).writes)

    def _joined(self, storages: Iterable[int]) -> frozenset[int]:
        return frozenset(self.joined[storage] for storage in storages)


def _groups(call: Node, part: GraphModule) -> list[list[Node]]:
    """The results of a part, in groups that share memory inside of it."""
    results = part.graph.output_node().args[0]
    if not isinstance(results, (tuple, list)):
        return []
    inside = analyze_effects(part)
    picked: dict[int, list[Node]] = {}
    for user in call.users:
        if user.target is operator.getitem:
            picked.setdefault(user.args[1], []).append(user)  # type: ignore[arg-type]  # the index of a result
    groups: dict[int, list[Node]] = {}
    for index, result in enumerate(results):
        if isinstance(result, Node):
            for storage in inside.storages(result):
                groups.setdefault(storage, []).extend(picked.get(index, ()))
    return [group for group in groups.values() if len(group) > 1]
