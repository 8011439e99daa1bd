"""Which parameters offloaded parts load, from when to when these are on the device, and what that makes of its memory.

An offloaded part finds its parameters on its device only while it runs: they are loaded when the part before it begins,
so that loading and computing overlap, and freed when it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import MAIN_MEMORY, Device, Link
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.memory import follow_memory
from fxpasses.partitioners.costs.memory_courses import DeviceMemory, Life, MemoryCourse
from fxpasses.partitioners.tensor_sizes import storage_bytes, tensor_bytes, tensors_in

__all__ = ["LoadedMemory", "ParameterLoad", "ParameterUses"]


@attrs.frozen
class LoadedMemory:
    """Bytes on one device of which some are only loaded while they are used.

    Args:
        memory: Parameters that stay, activations without loaded parameters, copies.
        loaded: Most bytes of loaded parameters at one time.
        peak: Most bytes of everything at one time.
        traffic: Bytes loaded in one run.
    """

    memory: DeviceMemory
    loaded: int = 0
    peak: int = 0
    traffic: int = 0


@attrs.frozen(eq=False)
class ParameterLoad:
    """One load of one run: what, for which part, the position of the schedule until which it stays, bytes, seconds."""

    value: Node
    part: str
    last_position: int
    size: int
    seconds: float


@attrs.frozen(eq=False)
class _Constant:
    """A parameter, buffer or constant: its ``get_attr`` nodes, what it is, its bytes, and who uses it where."""

    node: Node
    ids: frozenset[int]
    size: int
    held: int
    parts: Mapping[str, tuple[str, ...]]  # by device
    is_written: bool


@attrs.frozen(eq=False)
class ParameterUses:
    """What the parts of a placement use of a model's state, measured once.

    Args:
        course: The memory over time, all parameters staying where they are used.
        constants: The state.
        device_of: The device of each part.
        order: The parts in execution order.
        spans: First and last position of each part in the schedule.
    """

    course: MemoryCourse
    constants: tuple[_Constant, ...]
    device_of: Mapping[str, Device]
    order: tuple[str, ...]
    spans: Mapping[str, tuple[int, int]]

    @classmethod
    def of(
        cls,
        graph_module: GraphModule,
        assignment: Assignment,
        device_of: Mapping[str, Device],
        effects: EffectAnalysis | None = None,
    ) -> ParameterUses:
        """Measure a placement in one walk over the graph's state and its users."""
        effects = effects or analyze_effects(graph_module)
        course = follow_memory(graph_module, assignment, device_of, effects)
        spans: dict[str, tuple[int, int]] = {}
        for index, node in enumerate(course.schedule):
            part = str(assignment.partition_of[node])
            spans[part] = (spans.get(part, (index, index))[0], index)
        order = tuple(str(part) for part in assignment.order if str(part) in spans)
        return cls(course, _constants(graph_module, assignment, device_of, effects), device_of, order, spans)

    def loaded(self, offloaded: Collection[str]) -> list[tuple[_Constant, str]]:
        """The state that is loaded, and the device: all its parts there are offloaded, and no part writes to it."""
        chosen = set(offloaded)
        return [
            (constant, device)
            for constant in self.constants
            if not constant.is_written
            for device, parts in constant.parts.items()
            if chosen.issuperset(parts)
        ]

    def loaded_tensors(self, offloaded: Collection[str]) -> frozenset[int]:
        """The identities of the tensors that are loaded on some device."""
        return frozenset(identity for constant, _ in self.loaded(offloaded) for identity in constant.ids)

    def bytes_of(self, part: str) -> int:
        """Bytes of the state that a part uses and that can be loaded."""
        device = self.device_of[part].name
        return sum(
            constant.size
            for constant in self.constants
            if not constant.is_written and part in constant.parts.get(device, ())
        )

    def memory(self, offloaded: Collection[str]) -> dict[str, LoadedMemory]:
        """What each device holds when some parts are offloaded."""
        if not offloaded:
            plain = {name: self.course.memory(name) for name in self.course.held}
            return {name: LoadedMemory(memory, 0, memory.peak) for name, memory in plain.items()}
        held, lives = self._with_loads(offloaded)
        return {name: self._memory(name, held[name], lives[name]) for name in held}

    def course_with(self, offloaded: Collection[str]) -> MemoryCourse:
        """The memory over time when some parts are offloaded: what they load comes and goes."""
        held, loaded = self._with_loads(offloaded)
        lives = {name: (*lives, *loaded[name]) for name, lives in self.course.lives.items()}
        return attrs.evolve(self.course, held=held, lives=lives)

    def _with_loads(self, offloaded: Collection[str]) -> tuple[dict[str, int], dict[str, list[Life]]]:
        """What stays on each device when some parts are offloaded, and from when to when what they load is there."""
        held = dict(self.course.held)
        lives: dict[str, list[Life]] = {name: [] for name in held}
        for constant, device in self.loaded(offloaded):
            held[device] -= constant.held
            lives[device] += self._lives(constant, device)
        return held, lives

    def load_seconds(self, offloaded: Collection[str]) -> dict[str, float]:
        """Seconds that the loads of one run take over the default link to main memory, if nothing else runs."""
        taken = dict.fromkeys(self.course.held, 0.0)
        for load in self.loads(offloaded):
            taken[self.device_of[load.part].name] += load.seconds
        return taken

    def loads(self, offloaded: Collection[str]) -> list[ParameterLoad]:
        """Each load of one run, in the order of the parts that it is for."""
        found = [load for constant, device in self.loaded(offloaded) for load in self._loads(constant, device)]
        place = {part: index for index, part in enumerate(self.order)}
        return sorted(found, key=lambda load: place[load.part])  # sorted() is stable

    def _loads(self, constant: _Constant, device: str) -> list[ParameterLoad]:
        """Two parts of a device that follow each other share a load."""
        turn = {part: index for index, part in enumerate(p for p in self.order if self.device_of[p].name == device)}
        seconds = Link(MAIN_MEMORY, device).seconds(constant.size)
        loads: list[ParameterLoad] = []
        previous = -2
        for part in sorted(constant.parts[device], key=turn.__getitem__):
            if turn[part] == previous + 1:
                loads[-1] = attrs.evolve(loads[-1], last_position=self.spans[part][1])
            else:
                loads.append(ParameterLoad(constant.node, part, self.spans[part][1], constant.size, seconds))
            previous = turn[part]
        return loads

    def _lives(self, constant: _Constant, device: str) -> list[Life]:
        """One for each load: from the beginning of the part before its own."""
        lives = []
        for load in self._loads(constant, device):
            place = self.order.index(load.part)
            start = self.spans[self.order[place - 1] if place else load.part][0]
            lives.append(Life(start, load.last_position, constant.size, False, constant.node))
        return lives

    def _memory(self, device: str, held: int, lives: Sequence[Life]) -> LoadedMemory:
        plain = self.course.memory(device)
        loads = MemoryCourse(self.course.schedule, {device: 0}, {device: tuple(lives)}).curve(device)
        peak = held + int((self.course.curve(device) + loads).max(initial=0))
        memory = attrs.evolve(plain, parameters=held)
        return LoadedMemory(memory, int(loads.max(initial=0)), peak, sum(life.size for life in lives))


def _constants(
    graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Device], effects: EffectAnalysis
) -> tuple[_Constant, ...]:
    nodes: dict[tuple[int, ...], list[Node]] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        if tensors_in(node.meta.get("val")) and any(user in assignment.partition_of for user in node.users):
            nodes.setdefault(effects.storages(node), []).append(node)
    written = effects.written_storages
    return tuple(
        _constant(graph_module, group, assignment, device_of, not written.isdisjoint(storages))
        for storages, group in nodes.items()
    )


def _constant(
    graph_module: GraphModule,
    group: Sequence[Node],
    assignment: Assignment,
    device_of: Mapping[str, Device],
    is_written: bool,
) -> _Constant:
    parts: dict[str, dict[str, None]] = {}
    for node in group:
        for user in node.users:
            if user in assignment.partition_of:
                part = str(assignment.partition_of[user])
                parts.setdefault(device_of[part].name, {})[part] = None
    values = [find_attribute(graph_module, str(node.target)).value for node in group]
    fakes = [tensors_in(node.meta["val"])[0] for node in group]
    distinct = {id(value): tensor_bytes(fake) for value, fake in zip(values, fakes, strict=True)}
    return _Constant(
        group[0],
        frozenset(id(value) for value in values if isinstance(value, torch.Tensor)),
        sum(distinct.values()),
        max(map(storage_bytes, fakes)),
        {device: tuple(names) for device, names in parts.items()},
        is_written,
    )
