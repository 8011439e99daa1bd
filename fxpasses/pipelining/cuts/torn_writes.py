"""Cuts that go through memory: stages do not share any, and so a write has to be where its tensor is."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import GraphModule, Node

from fxpasses.effects import analyze_effects
from fxpasses.errors import StageError
from fxpasses.pipelining.cuts.split_points import where

__all__ = ["refuse_torn_writes"]


def refuse_torn_writes(graph_module: GraphModule, stage_of: Mapping[Node, int]) -> None:
    """Refuse cuts between a tensor and an in-place write to it: stages do not share memory.

    Raises:
        StageError: A write to what another stage holds.
    """
    effects = analyze_effects(graph_module)
    held: dict[int, tuple[int, str]] = {}
    state: dict[int, None] = {}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            held.update((storage, (0, f"the input {node.name}")) for storage in effects.storages(node))
        elif node.op == "get_attr":
            state.update(dict.fromkeys(effects.storages(node)))
    written: dict[int, tuple[int, str]] = {}
    for node, stage in stage_of.items():
        touches = effects.of(node)
        for storage in (*effects.storages(node), *touches.reads, *touches.writes):
            if storage < 0:
                continue  # the random generator and the outside world
            first, name = held.setdefault(storage, (stage, node.name))
            writer = written.get(storage)
            if storage in touches.writes and first != stage:
                raise StageError(
                    f"{where(node)} writes in place to what stage {first} holds ({name}), but runs in stage {stage}; "
                    "move the split point",
                    node=node,
                )
            if writer is not None and storage in state and writer[0] != stage:
                raise StageError(
                    f"{where(node)} in stage {stage} reads a buffer that {writer[1]} writes in stage {writer[0]}; "
                    "move the split point",
                    node=node,
                )
            if storage in touches.writes:
                written[storage] = (stage, node.name)
