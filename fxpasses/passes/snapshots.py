"""Let reads of small state come from a copy, so that they need not share a device with the writes behind them."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.editing import insert_after
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.metadata import value_of
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.programs.current_program import program_of

__all__ = ["SnapshotState"]

STATE = ("placeholder", "get_attr")


@attrs.frozen
class SnapshotState(PassBase):
    """Copy small state that the model writes to at the start of a run, for all that reads it before the first write.

    What touches memory that is written shares a device, so the position counter of a cache, which each layer reads and
    the model increments at the end, would keep all layers together. What reads a copy may be anywhere: the value is
    sent as any other. ``lower`` and ``place`` do so by themselves.

    State is taken where two operators or more read it before the first write and something between them reads other
    state; a norm that updates its statistics stays as it is.

    Args:
        max_bytes: State of more bytes is left alone.
    """

    visit_nested = False
    max_bytes: int = attrs.field(default=4096, kw_only=True)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Insert the copies in place. Time O(nodes + edges)."""
        effects = analyze_effects(graph_module, program=program_of(graph_module))
        found = list(_early_reads(effects, self.max_bytes))
        for state, readers in found:
            copy = insert_after(state, torch.ops.aten.clone.default, (state,), name=f"{state.name}_at_start")
            for reader in readers:
                reader.replace_input_with(state, copy)
        if found:
            graph_module.recompile()
        return PassResult(graph_module, bool(found))


def _early_reads(effects: EffectAnalysis, max_bytes: int) -> Iterator[tuple[Node, list[Node]]]:
    """Small state that is written, with what may read a copy instead."""
    written = _first_writes(effects)
    if not written:
        return
    place = {node: index for index, node in enumerate(effects.nodes)}
    reads_state = [
        index for index, node in enumerate(effects.nodes) if any(each.op in STATE for each in node.all_input_nodes)
    ]
    for state in effects.nodes:
        if state.op not in STATE or not 0 < _bytes_of(state) <= max_bytes:
            continue
        end = min((written[storage] for storage in effects.storages(state) if storage in written), default=0)
        readers = [user for user in state.users if _may_read_copy(effects, state, user, place, end)]
        if len(readers) > 1 and _is_shared(effects, state, sorted(map(place.__getitem__, readers)), reads_state):
            yield state, readers


def _first_writes(effects: EffectAnalysis) -> dict[int, int]:
    """The place of the first write to each storage; outputs that are copied back are written at the end."""
    first: dict[int, int] = {}
    for index, node in enumerate(effects.nodes):
        for storage in effects.of(node).writes:
            first.setdefault(storage, index)
    return first


def _bytes_of(state: Node) -> int:
    """What a tensor of known shape takes, 0 for anything else."""
    value = value_of(state)
    if not isinstance(value, torch.Tensor) or value.requires_grad:
        return 0
    sizes = tuple(value.shape)
    return value.numel() * value.element_size() if all(isinstance(size, int) for size in sizes) else 0


def _may_read_copy(effects: EffectAnalysis, state: Node, user: Node, place: dict[Node, int], end: int) -> bool:
    """Whether a user, and all that views what it gives, is done before the first write and writes nothing itself."""
    storages, waiting, seen = set(effects.storages(state)), [user], set()
    while waiting:
        node = waiting.pop()
        if node.op == "output" or place[node] >= end:
            return False
        if node not in seen and not storages.isdisjoint(effects.storages(node)):
            seen.add(node)
            waiting += node.users
    return True


def _is_shared(effects: EffectAnalysis, state: Node, readers: list[int], reads_state: list[int]) -> bool:
    """Whether something between the first and the last reader reads other state."""
    between = (effects.nodes[index] for index in reads_state if readers[0] < index < readers[-1])
    return any(each.op in STATE and each is not state for node in between for each in node.all_input_nodes)
