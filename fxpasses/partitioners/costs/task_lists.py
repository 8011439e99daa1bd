"""When each part of a placement runs and each value crosses: one thing at a time, or each as soon as it can.

A copy keeps its link busy, one at a time in each direction, and both ends as well where copies do not run beside the
work. A value that goes to several devices keeps the device that sends it busy once, for the slowest of these copies: so
what a device is busy with is its load as the solvers count it. Parameters of offloaded parts come over a link of their
own, from main memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal

import attrs
from torch.fx import Node

from fxpasses.devices import MAIN_MEMORY, Device, Topology
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.graph_figures import no_bytes, value_bytes
from fxpasses.partitioners.costs.shared_state import SentState, SharedState, sent_state
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.timeline.tracks import link_track

__all__ = ["Overlap", "Task", "TaskList", "run_one_by_one", "tasks_of"]

Overlap = Literal["none", "devices", "copies"]
"""What goes on at the same time: nothing; devices; devices and copies beside their work."""


@attrs.define
class Task:
    """A part that runs, a value that crosses, or a parameter that is loaded, for one sample.

    Args:
        name: The part, the value, or the parameter.
        kind: ``compute``, ``copy`` or ``load``.
        track: The device, or the two ends of the link.
        uses: The tracks that it keeps busy.
        seconds: How long it takes.
        needs: Positions of the tasks whose results it takes.
        sample: For which sample.
        part: The part, if it is one.
        is_backward: Whether it is the backward of a part, or brings a gradient.
        start: When it begins.
        after: Position of the task whose end it waited for.
        why: Why it waited for that one.
    """

    name: str
    kind: str
    track: str
    uses: tuple[str, ...]
    seconds: float
    needs: tuple[int, ...]
    sample: int
    part: str = ""
    is_backward: bool = False
    start: float = 0.0
    after: int | None = None
    why: str = ""

    @property
    def end(self) -> float:
        """When it is over."""
        return self.start + self.seconds


@attrs.define
class TaskList:
    """The tasks of all samples in the order in which one sample's parts and copies are started.

    Args:
        tasks: All of them.
        computing: The position of each part's, by sample and part.
        copying: The position of each copy's, by sample, value and target.
        loading: The position of each load's, by sample, constant and the part that it is for.
        backward: The position of the backward of each part, in a training step.
    """

    tasks: list[Task] = attrs.field(factory=list)
    computing: dict[tuple[int, str], int] = attrs.field(factory=dict)
    copying: dict[tuple[int, Node, str], int] = attrs.field(factory=dict)
    loading: dict[tuple[int, Node, str], int] = attrs.field(factory=dict)
    backward: dict[str, int] = attrs.field(factory=dict)

    def add(self, task: Task) -> int:
        """Append a task, and give its position."""
        self.tasks.append(task)
        return len(self.tasks) - 1


def tasks_of(
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    seconds: Callable[[Node, Device], float],
    samples: int,
    overlap: Overlap,
    *,
    sent: Callable[[Node], int] = value_bytes,
    returned: Callable[[Node], int] = no_bytes,
    in_one: bool = True,
    loads: Sequence[ParameterLoad] = (),
    shared: Sequence[SharedState] = (),
) -> TaskList:
    """Write down what is to be done: each part, and before it the copies that it is the first to need.

    Args:
        assignment: The parts.
        device_of: The device of each part.
        topology: Devices and links.
        seconds: What a node takes on a device.
        samples: How many samples.
        overlap: Whether a copy keeps its ends busy, or only its link.
        sent: Bytes of a node's value that go to another device.
        returned: Bytes of its gradient that come back.
        in_one: Whether a copy is there and back in one; else gradients are left to :func:`.add_backward`.
        loads: The parameters that offloaded parts load: each begins when the part before its own does.
        shared: State that several operators use: what of it crosses waits for nothing.
    """
    crossing = {
        (name, target): state
        for state in sent_state(shared, assignment, device_of, loads)
        for name in state.names
        for target in state.users
    }
    writer = _Writer(assignment, device_of, topology, overlap, sent, returned, in_one, crossing)
    parts = [str(part) for part in assignment.order]
    busy = {
        part: sum(seconds(node, device_of[part]) for node in assignment.partitions[name])
        for part, name in zip(parts, assignment.order, strict=True)
    }
    wanted: dict[str, list[ParameterLoad]] = {}
    for load in loads:
        wanted.setdefault(load.part, []).append(load)
    for sample in range(samples):
        for place, name in enumerate(assignment.order):
            begun = 0 if place == 0 else place + 1  # each part loads for the next one; the first also for itself
            for ahead in range(begun, min(place + 2, len(parts))):
                writer.load(sample, ahead, parts, wanted.get(parts[ahead], ()))
            writer.run(sample, name, busy[str(name)])
    return writer.todo


@attrs.define(eq=False)
class _Writer:
    """Writes tasks in the order in which they are started."""

    assignment: Assignment
    device_of: Mapping[str, Device]
    topology: Topology
    overlap: Overlap
    sent: Callable[[Node], int]
    returned: Callable[[Node], int]
    in_one: bool
    state: Mapping[tuple[Node, str], SentState]
    todo: TaskList = attrs.field(factory=TaskList)
    slowest: dict[Node, str] = attrs.field(factory=dict)
    loaded: dict[tuple[int, str], list[int]] = attrs.field(factory=dict)
    turns: dict[str, list[tuple[int, str]]] = attrs.field(factory=dict)  # by device: sample and part, as they run

    def load(self, sample: int, place: int, parts: Sequence[str], loads: Sequence[ParameterLoad]) -> None:
        """The loads of a part: when the part before it begins, and never more than two parts of a device ahead."""
        part = parts[place]
        home = self.device_of[part].name
        turns = self.turns.setdefault(home, [])
        turns.append((sample, part))
        if not loads:
            return
        before = [(sample, parts[place - 2])] if place >= 2 else []
        before += turns[-3:-2]
        needs = dict.fromkeys(self.todo.computing[turn] for turn in before if turn in self.todo.computing)
        link = link_track(MAIN_MEMORY, home)
        for load in loads:
            task = Task(
                str(load.value.target),
                "load",
                link,
                (link,) if self.overlap == "copies" else (link, home),
                load.seconds,
                tuple(needs),
                sample,
            )
            self.todo.loading[sample, load.value, part] = self.todo.add(task)
            self.loaded.setdefault((sample, part), []).append(len(self.todo.tasks) - 1)

    def run(self, sample: int, name: Hashable, busy: float) -> None:
        """A part, and before it the copies that it is the first to need."""
        part = str(name)
        home = self.device_of[part].name
        needs: dict[int, None] = dict.fromkeys(self.loaded.get((sample, part), ()))
        nodes = self.assignment.partitions[name]
        for used in dict.fromkeys(used for node in nodes for used in node.all_input_nodes):
            source = self.assignment.partition_of.get(used)
            if (state := self.state.get((used, home))) and self.sent(state.names[0]):
                needs[self._sent_state(sample, state, home)] = None
            if source is None or source == name:
                continue
            if self.device_of[str(source)].name == home or not self.sent(used):
                needs[self.todo.computing[sample, str(source)]] = None
            else:
                needs[self._copied(sample, used, str(source), home)] = None
        task = Task(part, "compute", home, (home,), busy, tuple(needs), sample, part=part)
        self.todo.computing[sample, part] = self.todo.add(task)

    def _copied(self, sample: int, value: Node, source: str, home: str) -> int:
        """The copy of what a part makes."""
        users = (self.assignment.partition_of.get(user) for user in value.users)
        targets = (self.device_of[str(part)].name for part in users if part is not None)
        made = self.todo.computing[sample, source]
        return self._copy(sample, value, self.device_of[source].name, home, targets, (made,))

    def _sent_state(self, sample: int, state: SentState, home: str) -> int:
        """The copy of a parameter or a buffer, which is there from the beginning."""
        return self._copy(sample, state.names[0], state.source, home, state.users, ())

    def _copy(
        self, sample: int, value: Node, origin: str, home: str, targets: Iterable[str], needs: tuple[int, ...]
    ) -> int:
        key = (sample, value, home)
        if key not in self.todo.copying:
            link, size, back = link_track(origin, home), self.sent(value), self.returned(value)
            ends = (origin, home) if self._slowest(value, origin, targets, size, back) == home else (home,)
            self.todo.copying[key] = self.todo.add(
                Task(
                    value.name,
                    "copy",
                    link,
                    (link,) if self.overlap == "copies" else (link, *ends),
                    self.topology.seconds(origin, home, size, back if self.in_one else 0),
                    needs,
                    sample,
                )
            )
        return self.todo.copying[key]

    def _slowest(self, value: Node, origin: str, targets: Iterable[str], size: int, back: int) -> str:
        """Of the devices that a value goes to, the one to which it takes longest, with its gradient."""
        if value not in self.slowest:
            self.slowest[value] = max(
                (target for target in dict.fromkeys(targets) if target != origin),
                key=lambda target: self.topology.seconds(origin, target, size, back),
            )
        return self.slowest[value]


def run_one_by_one(tasks: Sequence[Task]) -> None:
    """Start each task when the one before it is done."""
    now = 0.0
    for index, task in enumerate(tasks):
        task.start = now
        task.after, task.why = (index - 1, "one thing at a time") if index else (None, "")
        now = task.end
