"""Which parameters offloaded parts load, from when to when these are on the device, and what that makes of its memory.

An offloaded part finds its parameters on its device only while it runs: they are loaded when the part before it begins,
so that loading and computing overlap, and freed when it ends. In a training step each backward that reads one loads it
again; its gradient goes home once the backward of the part before has run, and the optimizer steps there.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Mapping, Sequence
from functools import cached_property

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import MAIN_MEMORY, Device, Link
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.loaded_views import last_uses_of_views
from fxpasses.partitioners.costs.memory import follow_placed
from fxpasses.partitioners.costs.memory_courses import DeviceMemory, Life, MemoryCourse
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.partitioners.costs.training.loads_in_steps import StepLoads
from fxpasses.partitioners.costs.training.training_course import StepLife, TrainingCourse
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.tensor_sizes import storage_bytes, tensor_bytes, tensors_in

__all__ = ["Constant", "LoadedMemory", "ParameterUses"]


@attrs.frozen
class LoadedMemory:
    """Bytes on one device of which some are only loaded while they are used.

    Args:
        memory: Parameters that stay, activations without loaded parameters, copies.
        loaded: Most bytes of loaded parameters at one time.
        peak: Most bytes of everything at one time.
        traffic: Bytes loaded in one run; in a training step with those loaded again, and gradients that go back.
    """

    memory: DeviceMemory
    loaded: int = 0
    peak: int = 0
    traffic: int = 0


@attrs.frozen(eq=False)
class Constant:
    """A parameter, buffer or constant: its ``get_attr`` nodes, what it is, its bytes, and who uses it where."""

    node: Node
    storages: tuple[int, ...]
    ids: frozenset[int]
    size: int
    held: int
    parts: Mapping[str, tuple[str, ...]]  # by device
    is_written: bool


@attrs.frozen
class _Stretch:
    """What one load is for: the parts of a device that follow each other and use a parameter, by their positions.

    Args:
        part: The first of them.
        first: Where it begins.
        last: Where the last of them ends, or the last view is used unless something else is loaded before.
        until: Until when there are views of what is loaded, which may go on to other parts.
    """

    part: str
    first: int
    last: int
    until: int


@attrs.frozen(eq=False, slots=False)
class ParameterUses:
    """What the parts of a placement use of a model's state, measured once.

    Args:
        course: The memory over time, of a run or a training step, all parameters staying where they are used.
        constants: The state.
        device_of: The device of each part.
        order: The parts in execution order.
        spans: First and last position of each part in the schedule.
        views: Until when memory of what is loaded is used beyond the part that it is loaded for.
        steps: What a training step makes of what is loaded, if it is one.
    """

    course: MemoryCourse
    constants: tuple[Constant, ...]
    device_of: Mapping[str, Device]
    order: tuple[str, ...]
    spans: Mapping[str, tuple[int, int]]
    views: Mapping[tuple[tuple[int, ...], str], int]
    steps: StepLoads | None = None
    _loads_of: dict[tuple[Constant, str], tuple[ParameterLoad, ...]] = attrs.field(init=False, factory=dict)
    _lives_of: dict[tuple[Constant, str], tuple[Life, ...]] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(
        cls,
        graph_module: GraphModule,
        assignment: Assignment,
        device_of: Mapping[str, Device],
        facts: MemoryFacts | None = None,
        step: TrainingStep | None = None,
    ) -> ParameterUses:
        """Measure a placement in one walk over the graph's state and its users.

        Args:
            graph_module: The unsplit graph.
            assignment: Which node is in which part.
            device_of: The device of each part.
            facts: Those of the graph, if it is measured already.
            step: The training step, if it is placed for one.
        """
        facts = facts or MemoryFacts.of(graph_module)
        effects = facts.effects
        if step is None:
            course = follow_placed(facts, assignment, device_of)
        else:
            course = step.course(graph_module, assignment, device_of, facts)
        spans: dict[str, tuple[int, int]] = {}
        for index, node in enumerate(course.forward):
            part = str(assignment.partition_of[node])
            spans[part] = (spans.get(part, (index, index))[0], index)
        order = tuple(str(part) for part in assignment.order if str(part) in spans)
        steps = StepLoads.of(course, effects) if isinstance(course, TrainingCourse) else None
        constants = _constants(graph_module, assignment, device_of, effects)
        views = last_uses_of_views(course.forward, assignment, device_of, effects, end=len(course.schedule) - 1)
        return cls(course, constants, device_of, order, spans, views, steps)

    def loaded(self, offloaded: Collection[str]) -> list[tuple[Constant, str]]:
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
        return sum(constant.size for constant in self.loadable(part))

    def loadable(self, part: str) -> Sequence[Constant]:
        """The state that a part uses and that can be loaded."""
        return self._loadable.get(part, ())

    @cached_property
    def _loadable(self) -> Mapping[str, Sequence[Constant]]:
        found: dict[str, list[Constant]] = {}
        for constant in self.constants:
            for part in itertools.chain.from_iterable(constant.parts.values()) if not constant.is_written else ():
                found.setdefault(part, []).append(constant)
        return found

    def memory(self, offloaded: Collection[str]) -> dict[str, LoadedMemory]:
        """What each device holds when some parts are offloaded."""
        if not offloaded:
            plain = {name: self.course.memory(name) for name in self.course.held}
            return {name: LoadedMemory(memory, 0, memory.peak) for name, memory in plain.items()}
        course, lives = self.but_for_loads(offloaded)
        traffic = dict.fromkeys(course.held, 0)
        for load in self.loads(offloaded):
            traffic[self.device_of[load.part].name] += load.times * load.size
        return {name: self._memory(course, name, lives[name], traffic[name]) for name in course.held}

    def course_with(self, offloaded: Collection[str]) -> MemoryCourse:
        """The memory over time when some parts are offloaded: what they load comes and goes."""
        course, loaded = self.but_for_loads(offloaded)
        lives = {name: (*lives, *loaded[name]) for name, lives in course.lives.items()}
        return attrs.evolve(course, lives=lives)

    def but_for_loads(self, offloaded: Collection[str]) -> tuple[MemoryCourse, dict[str, list[Life]]]:
        """What is on each device but for what is loaded, and from when to when that is there."""
        loaded = self.loaded(offloaded)
        course: MemoryCourse = self.course
        if self.steps is not None:
            storages: dict[str, set[tuple[int, ...]]] = {name: set() for name in course.held}
            for constant, device in loaded:
                storages[device].add(constant.storages)
            course = self.steps.without(storages, self._homes(loaded))
        held = dict(course.held)
        if offloaded:  # what nobody reads is in main memory, too
            held = {name: size - course.unread.get(name, 0) for name, size in held.items()}
        lives: dict[str, list[Life]] = {name: [] for name in held}
        for constant, device in loaded:
            held[device] -= constant.held
            lives[device] += self.lives_of(constant, device)
        return attrs.evolve(course, held=held), lives

    def _homes(self, loaded: Collection[tuple[Constant, str]]) -> dict[tuple[int, ...], str]:
        """Where that lives which some devices load and others have all the time: the first of these to use it."""
        loading: dict[Constant, set[str]] = {}
        for constant, device in loaded:
            loading.setdefault(constant, set()).add(device)
        homes = {constant.storages: self.home_beside(constant, devices) for constant, devices in loading.items()}
        return {storages: home for storages, home in homes.items() if home is not None}

    def home_beside(self, constant: Constant, loading: Container[str]) -> str | None:
        """Where something lives that some devices load: the first of the others to use it, if there is one."""
        others = [part for device, parts in constant.parts.items() if device not in loading for part in parts]
        return self.device_of[min(others, key=self._place.__getitem__)].name if others else None

    def load_seconds(self, offloaded: Collection[str]) -> dict[str, float]:
        """Seconds that loads take in all over the default link to main memory, if nothing else runs."""
        taken = dict.fromkeys(self.course.held, 0.0)
        for load in self.loads(offloaded):
            taken[self.device_of[load.part].name] += load.times * load.seconds
        return taken

    def loads(self, offloaded: Collection[str]) -> list[ParameterLoad]:
        """Each load of one forward, in the order of the parts that it is for."""
        found = [load for constant, device in self.loaded(offloaded) for load in self._loads(constant, device)]
        return sorted(found, key=lambda load: self._place[load.part])  # sorted() is stable

    def _loads(self, constant: Constant, device: str) -> tuple[ParameterLoad, ...]:
        """Found once: whatever else is loaded, these are the same."""
        if (constant, device) not in self._loads_of:
            seconds = Link(MAIN_MEMORY, device).seconds(constant.size)
            found = [
                self._in_step(
                    ParameterLoad(constant.node, each.part, each.until, constant.size, seconds), each, constant, device
                )
                for each in self._stretches(constant, device)
            ]
            self._loads_of[constant, device] = tuple(found)
        return self._loads_of[constant, device]

    def _stretches(self, constant: Constant, device: str) -> list[_Stretch]:
        """What each load is for; two parts of a device that follow each other share one."""
        turn = self._turns[device]
        found: list[_Stretch] = []
        previous = -2
        for part in sorted(constant.parts[device], key=turn.__getitem__):
            first, last = self.spans[part]
            until = max(last, self.views.get((constant.storages, part), last))
            if turn[part] == previous + 1:
                found[-1] = attrs.evolve(found[-1], last=last, until=max(until, found[-1].until))
            else:
                found.append(_Stretch(part, first, last, until))
            previous = turn[part]
        after = [each.first for each in found[1:]] + [len(self.course.schedule)]
        stretches = zip(found, after, strict=True)
        return [attrs.evolve(each, last=each.until) if each.until < other else each for each, other in stretches]

    @cached_property
    def _turns(self) -> Mapping[str, Mapping[str, int]]:
        """The number of each part among those of its device."""
        turns: dict[str, dict[str, int]] = {}
        for part in self.order:
            own = turns.setdefault(self.device_of[part].name, {})
            own[part] = len(own)
        return turns

    @cached_property
    def _place(self) -> Mapping[str, int]:
        return {part: index for index, part in enumerate(self.order)}

    def _in_step(self, load: ParameterLoad, stretch: _Stretch, constant: Constant, device: str) -> ParameterLoad:
        if self.steps is None:
            return load
        asked = (device, constant.storages, stretch.first, stretch.last)
        again, until = self.steps.times_again(*asked), self.steps.kept_until(*asked)
        is_trained = self.steps.is_trained(device, constant.storages)
        return attrs.evolve(load, last_position=max(until, stretch.until), again=again, is_trained=is_trained)

    def lives_of(self, constant: Constant, device: str) -> tuple[Life, ...]:
        """What is on a device of something that it loads; found once."""
        if (constant, device) not in self._lives_of:
            self._lives_of[constant, device] = tuple(self._lives(constant, device))
        return self._lives_of[constant, device]

    def _lives(self, constant: Constant, device: str) -> list[Life]:
        """One for each load: from the beginning of the part before its own; and what a step makes of it."""
        value, size, loads = constant.node, constant.size, self._loads(constant, device)
        spans = [(self._begin(load.part), load.last_position) for load in loads]
        if self.steps is None:
            return [Life(start, stop, size, False, value) for start, stop in spans]
        lives = [StepLife(start, stop, size, False, value, kind="loaded") for start, stop in spans]
        stretches = [(self._begin(each.part), each.first, each.last) for each in self._stretches(constant, device)]
        return [*lives, *self.steps.lives(device, value, constant.storages, stretches, size)]

    def _begin(self, part: str) -> int:
        """When what a part needs begins to come: with the part before it."""
        place = self._place[part]
        return self.spans[self.order[place - 1] if place else part][0]

    def _memory(self, course: MemoryCourse, device: str, lives: Sequence[Life], traffic: int) -> LoadedMemory:
        loads = MemoryCourse(course.schedule, {device: 0}, {device: tuple(lives)})
        come = [life for life in lives if not isinstance(life, StepLife) or life.kind == "loaded"]
        loaded = attrs.evolve(loads, lives={device: tuple(come)}).curve(device)
        peak = course.held[device] + int((course.curve(device) + loads.curve(device)).max(initial=0))
        return LoadedMemory(course.memory(device), int(loaded.max(initial=0)), peak, traffic)


def _constants(
    graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Device], effects: EffectAnalysis
) -> tuple[Constant, ...]:
    nodes: dict[tuple[int, ...], list[Node]] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        if tensors_in(node.meta.get("val")) and any(user in assignment.partition_of for user in node.users):
            nodes.setdefault(effects.storages(node), []).append(node)
    written = effects.written_storages
    return tuple(
        _constant(graph_module, storages, group, assignment, device_of, not written.isdisjoint(storages))
        for storages, group in nodes.items()
    )


def _constant(
    graph_module: GraphModule,
    storages: tuple[int, ...],
    group: Sequence[Node],
    assignment: Assignment,
    device_of: Mapping[str, Device],
    is_written: bool,
) -> Constant:
    parts: dict[str, dict[str, None]] = {}
    for node in group:
        for user in node.users:
            if user in assignment.partition_of:
                part = str(assignment.partition_of[user])
                parts.setdefault(device_of[part].name, {})[part] = None
    values = [find_attribute(graph_module, str(node.target)).value for node in group]
    fakes = [tensors_in(node.meta["val"])[0] for node in group]
    distinct = {id(value): tensor_bytes(fake) for value, fake in zip(values, fakes, strict=True)}
    return Constant(
        group[0],
        storages,
        frozenset(id(value) for value in values if isinstance(value, torch.Tensor)),
        sum(distinct.values()),
        max(map(storage_bytes, fakes)),
        {device: tuple(names) for device, names in parts.items()},
        is_written,
    )
