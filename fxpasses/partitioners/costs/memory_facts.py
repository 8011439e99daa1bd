"""What values, state and operators of a graph need in memory, wherever they are: measured once for all placements."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.effects.aliasing import storage_key
from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.kernels.described_values import note_layouts
from fxpasses.partitioners.costs.kernels.kernel_results import result_bytes
from fxpasses.partitioners.costs.kernels.tangent_storages import joined_tangents, tangents_of
from fxpasses.partitioners.costs.kernels.workspaces import (
    autocast_around,
    homes_in_memory,
    kept_cast_bytes,
    workspace_bytes,
)
from fxpasses.partitioners.costs.node_costs import WORKSPACE
from fxpasses.partitioners.jvp_tangents import note_tangents, tangent_levels
from fxpasses.partitioners.symbol_bounds import note_limits
from fxpasses.partitioners.tensor_sizes import bytes_by_place, storage_bytes, tensor_bytes, tensors_in
from fxpasses.partitioners.vmap_rows import note_rows
from fxpasses.values import record_copies_back

__all__ = ["HeldState", "Inside", "MadeValue", "MemoryFacts", "UnreadState"]


class MadeValue(NamedTuple):
    """A value that comes and goes: its bytes by storage where it is made, and where it is sent to."""

    node: Node
    made: Mapping[int, int]
    sent: Mapping[int, int]


class HeldState(NamedTuple):
    """State that stays where it is used: a node that reads or calls it, its storages, its bytes, its kind."""

    node: Node
    storages: tuple[int, ...]
    size: int
    is_parameter: bool


class UnreadState(NamedTuple):
    """State of a kind that no operator reads, and that stays where it is: the device that it lies on, its bytes."""

    device: torch.device
    size: int
    is_parameter: bool


class Inside(NamedTuple):
    """Bytes that an operator needs for itself, and those of the casts that autocast keeps of it."""

    size: int
    kept: int


@attrs.frozen(eq=False, slots=False)
class MemoryFacts:
    """What does not depend on where the operators of a graph are.

    Args:
        graph_module: The graph.
        effects: What its nodes read, write and alias.
        homes: The storages that each value lives in, see
            :func:`~fxpasses.partitioners.costs.kernels.workspaces.homes_in_memory`.
        keeps_unread: Whether state that no operator reads counts where it lies.
    """

    graph_module: GraphModule
    effects: EffectAnalysis
    homes: Mapping[Node, tuple[int, ...]]
    keeps_unread: bool = True
    _estimated: dict[tuple[Node, bool], Inside] = attrs.field(factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, graph_module: GraphModule, effects: EffectAnalysis | None = None) -> MemoryFacts:
        """Measure a graph, of which the effects may be known already."""
        note_limits(graph_module)
        note_layouts(graph_module)
        note_rows(graph_module)
        note_tangents(graph_module)
        record_copies_back(graph_module)
        effects = effects or analyze_effects(graph_module)
        return cls(graph_module, effects, homes_in_memory(graph_module, effects))

    @cached_property
    def constants(self) -> frozenset[int]:
        """The storages of parameters, buffers and constants that nodes read."""
        reads = self.graph_module.graph.find_nodes(op="get_attr")
        return frozenset(storage for node in reads for storage in self.homes[node])

    @cached_property
    def made(self) -> Mapping[Node, Mapping[int, int]]:
        """The bytes of each value by storage, where it is made."""
        return {node: result_bytes(node, homes) for node, homes in self.homes.items() if node.op != "output"}

    @cached_property
    def values(self) -> tuple[MadeValue, ...]:
        """The values with tensors that come and go, in graph order."""
        found = []
        for node in self.graph_module.graph.nodes:
            tensors = tensors_in(value_of(node)) if node.op not in ("get_attr", "output") else []
            if tensors:
                own = self.homes[node]
                made = self.made[node]
                is_sparse = tensors[0].layout is not torch.strided
                sizes = made, made if is_sparse else bytes_by_place(own, tensors, tensor_bytes)
                found.append(MadeValue(node, *(self._with_tangents(node, each) for each in sizes)))
        return tuple(found)

    @cached_property
    def tangents(self) -> Mapping[Node, Mapping[int, tuple[int, ...]]]:
        """For each value with tangents their storages, by the storage that the value lies in."""
        joined = joined_tangents(self.graph_module.graph, self.homes)
        return {
            node: {storage: tangents_of(node, storage, joined) for storage in storages}
            for node, storages in self.homes.items()
            if tangent_levels(node)
        }

    def _with_tangents(self, node: Node, sizes: Mapping[int, int]) -> dict[int, int]:
        """The bytes by storage, and as many of each tangent."""
        own = self.tangents.get(node, {})
        return {**sizes, **{each: size for storage, size in sizes.items() for each in own.get(storage, ())}}

    @cached_property
    def read_state(self) -> tuple[HeldState, ...]:
        """What nodes read: it is on each device that uses it."""
        found = []
        for node in self.graph_module.graph.find_nodes(op="get_attr"):
            if tensors := tensors_in(value_of(node)):
                value = find_attribute(self.graph_module, str(node.target)).value
                is_parameter = isinstance(value, torch.nn.Parameter)
                found.append(HeldState(node, self.homes[node], storage_bytes(tensors[0]), is_parameter))
        return tuple(found)

    @cached_property
    def called_state(self) -> tuple[HeldState, ...]:
        """The parameters and buffers of called modules."""
        return tuple(
            HeldState(node, (storage,), storage_bytes(tensor), isinstance(tensor, torch.nn.Parameter))
            for node in self.graph_module.graph.find_nodes(op="call_module")
            for storage in dict.fromkeys((*self.effects.of(node).reads, *self.effects.of(node).writes))
            for tensor in self.effects.real_tensors().get(storage, ())
        )

    @cached_property
    def unread_state(self) -> tuple[UnreadState, ...]:
        """The parameters and buffers that no operator reads or calls, and that share no memory with those, together."""
        if not self.keeps_unread:
            return ()
        seen = {storage_key(tensor) for tensor in self._tensors_in_use()}
        sizes: dict[tuple[torch.device, bool], int] = {}
        for tensor in itertools.chain(self.graph_module.parameters(), self.graph_module.buffers()):
            if (key := storage_key(tensor)) not in seen:
                seen.add(key)
                kind = tensor.device, isinstance(tensor, torch.nn.Parameter)
                sizes[kind] = sizes.get(kind, 0) + storage_bytes(tensor)
        return tuple(UnreadState(device, size, is_parameter) for (device, is_parameter), size in sizes.items())

    def _tensors_in_use(self) -> Iterator[torch.Tensor]:
        for node in self.graph_module.graph.find_nodes(op="get_attr"):
            if any(user.op != "output" for user in node.users):
                yield from tensors_in(find_attribute(self.graph_module, str(node.target)).value)
        for node in self.graph_module.graph.find_nodes(op="call_module"):
            for storage in (*self.effects.of(node).reads, *self.effects.of(node).writes):
                yield from self.effects.real_tensors().get(storage, ())

    def inside(self, node: Node, device: Device) -> Inside:
        """What a node needs for itself while it runs on a device: as measured there, else as far as is known."""
        known = self.estimated_inside(node, device.has_known_kernels)
        measured = WORKSPACE.get(node, {}).get(device.name)
        return known if measured is None else Inside(max(0, measured - known.kept), known.kept)

    def estimated_inside(self, node: Node, with_scratch: bool) -> Inside:
        """The same as far as is known without measuring; with what this machine's kernels need, or without."""
        if (known := self._estimated.get((node, with_scratch))) is None:
            autocast = autocast_around(node, self.effects)
            kept = kept_cast_bytes(node, autocast)
            known = Inside(workspace_bytes(node, autocast, with_scratch=with_scratch) - kept, kept)
            self._estimated[node, with_scratch] = known
        return known
