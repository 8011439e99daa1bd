"""The numbers of a graph that placing needs: what each operator costs, holds, reads and must share a device with."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.devices import Device, lies_on
from fxpasses.effects import EffectAnalysis
from fxpasses.errors import InputError
from fxpasses.metadata import value_of
from fxpasses.outlining.regions import dependencies_of_parts, switches_regions
from fxpasses.partitioners.costs.kernels.dry_runs import Autocast
from fxpasses.partitioners.costs.kernels.workspaces import (
    autocast_around,
    kept_cast_bytes,
)
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.node_costs import SECONDS, STEP_WORKSPACE, WORKSPACE, NodeCost, cost_of, seconds_on
from fxpasses.partitioners.costs.shared_state import SharedState, shared_state
from fxpasses.partitioners.grouping.keep_together import runs_anywhere
from fxpasses.partitioners.tensor_sizes import storage_bytes, tensor_bytes, tensors_in

__all__ = ["GraphFigures", "Support", "is_compute", "no_bytes", "value_bytes"]

Support = Callable[[Device, Node], bool]
"""Whether a device can run a node."""


FORWARD_AND_BACKWARD = 3
"""Work of a training step in forwards: a backward computes two products for each of the forward's."""


def is_compute(node: Node) -> bool:
    """Whether a node runs: all but inputs, attributes, the output, and the markers of regions."""
    return node.op not in ("placeholder", "get_attr", "output") and not switches_regions(node)


def value_bytes(node: Node) -> int:
    """Bytes of the tensors in a node's value."""
    return sum(map(tensor_bytes, tensors_in(value_of(node))))


def no_bytes(_node: Node) -> int:
    """Those of the gradient of a node where nothing is trained."""
    return 0


@attrs.frozen(eq=False, slots=False)
class GraphFigures:
    """A graph measured once; one entry for each compute node in graph order.

    Args:
        memory: What values, state and operators need in memory, wherever they are.
        nodes: The compute nodes.
        costs: What each does.
        constants: The storages of parameters, buffers and constants that each node uses, with their bytes; tied tensors
            share a storage, and so do all views of one.
        sizes: Bytes of each storage of an input or an activation: those of the largest value in it.
        touched: The storages of inputs and activations that each node reads or makes; what may be a view counts as one.
        living: The same with each copy a storage of its own: what is there while a node runs.
        inputs: The storages among these that hold inputs of the graph.
        trained: The nodes that have a backward: it counts twice what the forward does, and their values cross twice.
        sends_state: Whether a parameter or a buffer that several devices use is sent to the others in each run; else
            each device has its own.
        beside_state: What the device that such a parameter lives on keeps besides if it is trained, as a share of it.
        devices: Where it may run; none are this machine's CPU.
        unread: What stands for a storage of all that no operator reads, among the constants of the first node: it is on
            the device of that one.
        remade: Nodes whose values need not be sent, as any device may compute them again.
    """

    memory: MemoryFacts
    nodes: Sequence[Node]
    costs: Sequence[NodeCost]
    constants: Sequence[Mapping[int, int]]
    sizes: Mapping[int, int]
    touched: Sequence[tuple[int, ...]]
    living: Sequence[tuple[int, ...]]
    inputs: frozenset[int]
    trained: Mapping[Node, None] = attrs.field(factory=dict)
    sends_state: bool = True
    beside_state: float = 0.0
    devices: tuple[Device, ...] = ()
    unread: int | None = None
    remade: frozenset[Node] = frozenset()
    _sent: dict[Node, int] = attrs.field(factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        graph_module: GraphModule,
        memory: MemoryFacts | None = None,
        *,
        sends_state: bool = True,
        devices: Iterable[Device] = (),
    ) -> GraphFigures:
        """Measure a graph in one walk over its nodes and edges.

        Args:
            graph_module: The graph.
            memory: What it needs in memory, if that is known already.
            sends_state: Whether a parameter that several devices use is sent to the others in each run.
            devices: Where it may run; none are this machine's CPU.

        Raises:
            InputError: it is no graph.
            MissingMetadataError: a node has neither a cost nor a value.
        """
        if not isinstance(graph_module, GraphModule):
            raise InputError(
                f"A graph is a GraphModule, not {type(graph_module).__name__}; of a program take .module()."
            )
        memory = memory or MemoryFacts.of(graph_module)
        effects, homes = memory.effects, memory.homes
        nodes = [node for node in graph_module.graph.nodes if is_compute(node)]
        costs = [cost_of(node) for node in nodes]
        used = [_storages_used(node, effects) for node in nodes]
        held = {  # asked for last: the state of a called module is found when its effects are
            storage: max(map(storage_bytes, tensors))
            for storage, tensors in effects.real_tensors().items()
            if storage >= 0
        }
        sizes = _storage_sizes(memory)
        constants = [
            {storage: held[storage] for storage in storages if storage in held} if held else {} for storages in used
        ]
        touched = [tuple(storage for storage in storages if storage not in held) for storages in used]
        living = [
            tuple(storage for storage in _homes_used(node, homes, storages) if storage in sizes)
            for node, storages in zip(nodes, touched, strict=True)
        ]
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        inputs = frozenset(storage for node in placeholders for storage in homes[node] if storage in sizes)
        figures = cls(
            memory,
            nodes,
            costs,
            constants,
            sizes,
            touched,
            living,
            inputs,
            sends_state=sends_state,
            devices=tuple(devices),
        )
        return figures._with_unread(max(itertools.chain(held, *homes.values()), default=0) + 1)

    def _with_unread(self, key: int) -> GraphFigures:
        """With what no operator reads, as far as it lies on whatever device the first operator runs on."""
        size = sum(
            each.size
            for each in self.memory.unread_state
            if all(lies_on(each.device, device) for device in self.devices)
        )
        if not size or not self.nodes:
            return self
        first, *others = self.constants
        return attrs.evolve(self, constants=[{**first, key: size}, *others], unread=key)

    @property
    def unread_bytes(self) -> int:
        """The bytes that count with the first node though no operator reads them."""
        return 0 if self.unread is None else self.constants[0][self.unread]

    def without_unread(self) -> GraphFigures:
        """The same for a model whose state is in main memory as far as it is not in use."""
        memory, key = attrs.evolve(self.memory, keeps_unread=False), self.unread
        constants = [{storage: size for storage, size in each.items() if storage != key} for each in self.constants]
        return attrs.evolve(self, memory=memory, constants=constants, unread=None)

    @property
    def graph_module(self) -> GraphModule:
        """The graph."""
        return self.memory.graph_module

    @property
    def effects(self) -> EffectAnalysis:
        """What its nodes read, write and alias."""
        return self.memory.effects

    @property
    def homes(self) -> Mapping[Node, tuple[int, ...]]:
        """Where each value lives, see :func:`~fxpasses.partitioners.costs.kernels.workspaces.homes_in_memory`."""
        return self.memory.homes

    @cached_property
    def position(self) -> dict[Node, int]:
        """The place of each compute node."""
        return {node: index for index, node in enumerate(self.nodes)}

    @cached_property
    def dependencies(self) -> Dependencies:
        """Data and order edges of the whole graph; parts enter their regions by themselves."""
        known = dependencies_of_parts(self.graph_module, self.effects)
        if not self.late_views:
            return known
        sources, targets = ([known.position[pair[end]] for pair in self.late_views] for end in (0, 1))
        return Dependencies(known.nodes, [*known.sources, *sources], [*known.targets, *targets], self.effects)

    @cached_property
    def late_views(self) -> tuple[tuple[Node, Node], ...]:
        """The last write to each storage, with each node that views it later: on another device it views a copy."""
        return tuple(_late_views(self.graph_module, self.effects))

    @cached_property
    def shared_state(self) -> tuple[SharedState, ...]:
        """The parameters and buffers that cross where their users are on several devices."""
        return shared_state(self.graph_module) if self.sends_state else ()

    @cached_property
    def needs(self) -> NDArray[np.int64]:
        """Bytes of inputs and activations that must be on a device while one node runs there.

        Of a view that it reads these are its own: what is sent to another device is a copy of the view alone.
        """
        made = self.memory.made
        living = [
            sum(min(_least_of(storage, node, made, self.sizes[storage]), self.sizes[storage]) for storage in storages)
            for node, storages in zip(self.nodes, self.living, strict=True)
        ]
        return np.array(living, dtype=np.int64) + self.inside

    @cached_property
    def inside(self) -> NDArray[np.int64]:
        """Bytes that each node needs for itself while it runs, on the device where these are fewest."""
        with_scratch = all(device.has_known_kernels for device in self.devices)
        needed = [
            self._least_measured(node, sum(self.memory.estimated_inside(node, with_scratch))) for node in self.nodes
        ]
        return np.array(needed, dtype=np.int64)

    def _least_measured(self, node: Node, estimated: int) -> int:
        """What was measured in an inference, or in a training step."""
        if node in self.trained:
            measured = {name: needed.inside for name, needed in STEP_WORKSPACE.get(node, {}).items()}
        else:
            measured = {**WORKSPACE.get(node, {})}
        return min((measured.get(device.name, estimated) for device in self.devices), default=estimated)

    @cached_property
    def autocasts(self) -> Sequence[Autocast | None]:
        """Under which autocast region that a marker opened each node runs."""
        return [autocast_around(node, self.effects) for node in self.nodes]

    @cached_property
    def live(self) -> NDArray[np.int64]:
        """Bytes of activations alive while each node runs, on whatever device; inputs are left out.

        A storage lives from its first value to the last use of its last alias, and to the end where the model returns
        it.
        """
        end = len(self.nodes)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for index, storages in enumerate(self.living):
            for storage in storages:
                if storage not in self.inputs:
                    first.setdefault(storage, index)
                    last[storage] = index
        for node in self.graph_module.graph.output_node().all_input_nodes:
            last.update((storage, end) for storage in self.homes[node] if storage in last)
        change = np.zeros(end + 2, dtype=np.int64)
        for storage, start in first.items():
            change[start] += self.sizes[storage]
            change[last[storage] + 1] -= self.sizes[storage]
        live: NDArray[np.int64] = np.cumsum(change)[:end] + self.inside
        return live

    def held(self, index: int) -> dict[int, int]:
        """What a device holds as long as it runs one node: constants, inputs, what autocast keeps; by storage."""
        held = dict(self.constants[index])
        held.update((storage, self.sizes[storage]) for storage in self.living[index] if storage in self.inputs)
        if self.casts[index]:
            held[~min(self.constants[index])] = self.casts[index]  # a key of its own: storages are not negative
        return held

    @cached_property
    def casts(self) -> Sequence[int]:
        """Bytes of parameters in another type that each node leaves behind for the rest of an autocast region."""
        if self.trained or not any(self.autocasts):  # in training they are saved for the backward anyway
            return [0] * len(self.nodes)
        return [kept_cast_bytes(node, around) for node, around in zip(self.nodes, self.autocasts, strict=True)]

    def is_constant(self, index: int) -> bool:
        """Whether the value of one node lies in a constant."""
        return any(storage in self.constants[index] for storage in self.homes[self.nodes[index]])

    def bytes_needed(self, index: int) -> int:
        """Bytes that a device must have to run one node at all: its constants, what it reads and what it makes."""
        return int(self.needs[index]) + sum(self.constants[index].values())

    def bytes_of(self, indices: Sequence[int]) -> int:
        """Constants and inputs of some nodes, each storage once, and the most bytes alive during one of them."""
        held: dict[int, int] = {}
        for index in indices:
            held.update(self.held(index))
        return sum(held.values()) + int(self.live[np.asarray(indices, dtype=np.int64)].max(initial=0))

    def measured(self, node: Node, device: Device) -> float:
        """Seconds of one compute node on a device, without measuring it again."""
        known: float | None = SECONDS.get(node, {}).get(device.name)
        forward = seconds_on(self.costs[self.position[node]], device) if known is None else known
        return FORWARD_AND_BACKWARD * forward if node in self.trained else forward

    def sent(self, node: Node) -> int:
        """Bytes of a node's value, which go over a link where its users are on another device."""
        if node in self.remade:
            return 0
        if (known := self._sent.get(node)) is None:
            known = self._sent[node] = value_bytes(node)
        return known

    def returned(self, node: Node) -> int:
        """Bytes of its gradient, which come back over the link that leads the other way."""
        return self.sent(node) if node in self.trained else 0

    def crossing(self, node: Node) -> int:
        """Bytes of both."""
        return self.sent(node) + self.returned(node)

    def seconds(self, devices: Sequence[Device], support: Support | None = None) -> Iterator[dict[str, float]]:
        """For each node its seconds by device, without the devices that cannot run it.

        Args:
            devices: Where the nodes may run.
            support: Whether a device can run a node; by default each device answers for itself.
        """
        submodules = dict(self.graph_module.named_modules())
        asked = support is not None or any(device.supports is not None for device in devices)
        counted: dict[NodeCost, dict[str, float]] = {}  # many nodes are alike
        for node, cost in zip(self.nodes, self.costs, strict=True):
            times = counted.get(cost)
            if times is None:
                times = counted[cost] = {device.name: seconds_on(cost, device) for device in devices}
            if measured := SECONDS.get(node, {}):
                times = {name: measured.get(name, seconds) for name, seconds in times.items()}
            if node in self.trained:
                times = {name: FORWARD_AND_BACKWARD * seconds for name, seconds in times.items()}
            if asked:
                able = [
                    runs_anywhere(node) or (device.runs(submodules, node) if support is None else support(device, node))
                    for device in devices
                ]
                times = {name: seconds for (name, seconds), runs in zip(times.items(), able, strict=True) if runs}
            yield times


def _storages_used(node: Node, effects: EffectAnalysis) -> dict[int, None]:
    """The storages of what a node reads, writes and makes, in order."""
    told = effects.of(node)
    found = {storage: None for used in node.all_input_nodes for storage in effects.storages(used)}
    found.update(dict.fromkeys((*told.reads, *told.writes, *effects.storages(node))))
    return found


def _least_of(storage: int, node: Node, values: Mapping[Node, Mapping[int, int]], whole: int) -> int:
    """Bytes of a storage that a node needs: of each view a copy, or of what several of them are views of."""
    read = [used for used in node.all_input_nodes if storage in values[used]]
    sizes = [values[used][storage] for used in read]
    largest = max([*sizes, values[node].get(storage, 0)])
    if len(read) < 2:
        return largest or whole
    seen = Counter(other for used in read for other in _viewed(used, storage, values))
    shared = [values[other][storage] for other, times in seen.items() if times > 1]
    return max(largest, min([sum(sizes), whole, *shared]))


def _viewed(value: Node, storage: int, values: Mapping[Node, Mapping[int, int]]) -> dict[Node, None]:
    """A value and all that it is a view of, in one storage."""
    found, waiting = {value: None}, [value]
    while waiting:
        for used in waiting.pop().all_input_nodes:
            if used not in found and storage in values[used]:
                found[used] = None
                waiting.append(used)
    return found


def _late_views(graph_module: GraphModule, effects: EffectAnalysis) -> Iterator[tuple[Node, Node]]:
    """The last write to each storage, with each node after it whose value is in this storage."""
    if not effects.written_storages:
        return
    nodes = [node for node in graph_module.graph.nodes if is_compute(node)]
    last = {storage: node for node in nodes for storage in effects.of(node).writes}
    before: set[Node] = set()
    for node in nodes:
        writes = dict.fromkeys(last[storage] for storage in effects.storages(node) if storage in last)
        yield from ((write, node) for write in writes if write in before)
        before.add(node)


def _homes_used(node: Node, homes: Mapping[Node, tuple[int, ...]], touched: Sequence[int]) -> dict[int, None]:
    """Where the operands and the result of a node live; for a called module, what it touches as well."""
    found = {storage: None for used in (*node.all_input_nodes, node) for storage in homes[used]}
    return {**dict.fromkeys(touched), **found} if node.op == "call_module" else found


def _storage_sizes(memory: MemoryFacts) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for node in memory.graph_module.graph.nodes:
        if node.op in ("get_attr", "output") or not value_bytes(node):
            continue
        for storage, size in memory.made[node].items():
            if storage >= 0 and storage not in memory.constants:
                sizes[storage] = max(sizes.get(storage, 0), size)
    return sizes
