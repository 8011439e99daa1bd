"""Bring the writes to a buffer into one stage, where the graph lets them wait.

A model may prepare the state of all its layers before the first of them runs: the positions of a cache, say. By place
in the graph these writes are in the first stage, and what reads them is in others. A write that only a later stage
looks at is done there.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule, Node

from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.outlining.regions import is_marker

__all__ = ["gather_writes"]


def gather_writes(graph_module: GraphModule, stage_of: dict[Node, int]) -> None:
    """Move what touches a written buffer to the last stage that does, unless an earlier stage needs a result of it.

    Args:
        graph_module: The graph; one with region markers is left alone, as nothing may pass those.
        stage_of: The stage of each node, which is changed in place.

    Linear in nodes and what they touch.
    """
    effects = analyze_effects(graph_module)
    if not effects.written_storages or any(map(is_marker, graph_module.graph.nodes)):
        return
    touching: dict[int, list[Node]] = {}
    lasting = {
        storage
        for node in graph_module.graph.find_nodes(op="get_attr")
        for storage in effects.storages(node)
        if storage in effects.written_storages
    }
    for node in graph_module.graph.nodes:
        if node in stage_of:
            for storage in _touched(node, effects):
                if storage in lasting:
                    touching.setdefault(storage, []).append(node)
    for nodes in touching.values():
        _gather(nodes, effects, stage_of)


def _touched(node: Node, effects: EffectAnalysis) -> dict[int, None]:
    does = effects.of(node)
    return dict.fromkeys((*does.reads, *does.writes, *effects.storages(node)))


def _gather(nodes: Sequence[Node], effects: EffectAnalysis, stage_of: dict[Node, int]) -> None:
    """All of them, or none: the last ones first, so that users have moved before what they use."""
    target = max(stage_of[node] for node in nodes)
    moved: dict[Node, int] = {}
    for node in reversed(nodes):
        does = effects.of(node)
        if stage_of[node] == target:
            continue
        users = [moved.get(user, stage_of.get(user, target)) for user in node.users]
        if does.random or does.world or any(stage < target for stage in users):
            return
        moved[node] = target
    stage_of.update(moved)
