"""When each part of a placement runs and each value crosses: one thing at a time, or each as soon as it can."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
from torch.fx import Node

from fxpasses.devices import Device, Topology
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.graph_figures import value_bytes

__all__ = ["Overlap", "Task", "TaskList", "run_as_soon_as_possible", "run_one_by_one", "tasks_of"]

Overlap = Literal["none", "devices", "copies"]
"""What goes on at the same time: nothing; devices; devices and copies beside their work."""


@attrs.define
class Task:
    """A part that runs, or a value that crosses, for one sample.

    Args:
        name: The part, or the value.
        kind: ``compute`` or ``copy``.
        track: The device, or the two ends of the link.
        uses: The tracks that it keeps busy.
        seconds: How long it takes.
        needs: Positions of the tasks whose results it takes.
        sample: For which sample.
        part: The part, if it is one.
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
    """

    tasks: list[Task] = attrs.field(factory=list)
    computing: dict[tuple[int, str], int] = attrs.field(factory=dict)
    copying: dict[tuple[int, Node, str], int] = attrs.field(factory=dict)

    def add(self, task: Task) -> int:
        """Append a task, and give its position."""
        self.tasks.append(task)
        return len(self.tasks) - 1


def tasks_of(
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    seconds: Mapping[Node, float],
    samples: int,
    overlap: Overlap,
) -> TaskList:
    """Write down what is to be done: each part, and before it the copies that it is the first to need.

    Args:
        assignment: The parts.
        device_of: The device of each part.
        topology: Devices and links.
        seconds: What each node takes where it is.
        samples: How many samples.
        overlap: Whether a copy keeps its ends busy, or only its link.
    """
    todo = TaskList()
    for sample, part in itertools.product(range(samples), assignment.order):
        nodes = assignment.partitions[part]
        home = device_of[str(part)].name
        needs: dict[int, None] = {}
        for used in dict.fromkeys(used for node in nodes for used in node.all_input_nodes):
            source = assignment.partition_of.get(used)
            if source is None or source == part:
                continue
            origin, size = device_of[str(source)].name, value_bytes(used)
            if origin == home or not size:
                needs[todo.computing[sample, str(source)]] = None
                continue
            if (sample, used, home) not in todo.copying:
                link = f"{origin} → {home}"
                todo.copying[sample, used, home] = todo.add(
                    Task(
                        used.name,
                        "copy",
                        link,
                        (link,) if overlap == "copies" else (link, origin, home),
                        topology.seconds(origin, home, size),
                        (todo.computing[sample, str(source)],),
                        sample,
                    )
                )
            needs[todo.copying[sample, used, home]] = None
        busy = sum(seconds[node] for node in nodes)
        task = Task(str(part), "compute", home, (home,), busy, tuple(needs), sample, part=str(part))
        todo.computing[sample, str(part)] = todo.add(task)
    return todo


def run_one_by_one(tasks: Sequence[Task]) -> None:
    """Start each task when the one before it is done."""
    now = 0.0
    for index, task in enumerate(tasks):
        task.start = now
        task.after, task.why = (index - 1, "one thing at a time") if index else (None, "")
        now = task.end


def run_as_soon_as_possible(tasks: Sequence[Task]) -> None:
    """Start each task when its needs are done and its tracks are free; the first in order goes first.

    List scheduling (Graham, "Bounds on multiprocessing timing anomalies", 1969), where a task that waits for a track
    keeps the others that it needs, once all that its part takes has been made: so a pipeline settles at the load of its
    busiest device.
    """
    consumer, unmade, wanted_by = _consumers(tasks)
    missing = [len(task.needs) for task in tasks]
    users: list[list[int]] = [[] for _ in tasks]
    for index, task in enumerate(tasks):
        for need in task.needs:
            users[need].append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    holder: dict[str, int] = {}
    running: list[tuple[float, int]] = []
    done_by: int | None = None
    now = 0.0
    while ready or running:
        waiting = []
        kept: set[str] = set()
        for index in sorted(ready):
            task = tasks[index]
            if all(track not in kept and _is_free(tasks, holder, track, now) for track in task.uses):
                task.start = now
                task.after, task.why = _waited_for(tasks, index, holder, done_by)
                holder.update(dict.fromkeys(task.uses, index))
                heapq.heappush(running, (task.end, index))
            else:
                waiting.append(index)
                if unmade[consumer[index]] == 0:
                    kept.update(task.uses)
        ready = waiting
        while running:
            now, done_by = heapq.heappop(running)
            for part in wanted_by.get(done_by, ()):
                unmade[part] -= 1
            for user in users[done_by]:
                missing[user] -= 1
                if missing[user] == 0:
                    ready.append(user)
            if not running or running[0][0] > now:
                break


def _consumers(tasks: Sequence[Task]) -> tuple[list[int], dict[int, int], dict[int, list[int]]]:
    """For each task the part that it is for, for each part how many others make what it takes, and who these are for.

    A copy that several parts of a device use is for the first of them.
    """
    consumer = list(range(len(tasks)))
    unmade: dict[int, int] = {}
    wanted_by: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        if task.kind == "copy":
            continue
        makers: dict[int, None] = {}
        for need in task.needs:
            if tasks[need].kind == "copy":
                makers[tasks[need].needs[0]] = None
                if consumer[need] == need:
                    consumer[need] = index
            else:
                makers[need] = None
        unmade[index] = len(makers)
        for maker in makers:
            wanted_by.setdefault(maker, []).append(index)
    return consumer, unmade, wanted_by


def _is_free(tasks: Sequence[Task], holder: Mapping[str, int], track: str, now: float) -> bool:
    return track not in holder or tasks[holder[track]].end <= now


def _waited_for(
    tasks: Sequence[Task], index: int, holder: Mapping[str, int], done_by: int | None
) -> tuple[int | None, str]:
    """Which task ended when this one began: one whose value it needs, or else one that kept its track busy."""
    task = tasks[index]
    for need in task.needs:
        if tasks[need].end == task.start:
            return need, f"needs {tasks[need].name}"
    for track in task.uses:
        if track in holder and tasks[holder[track]].end == task.start:
            return holder[track], f"{track} was busy with {tasks[holder[track]].name}"
    return (done_by if task.start > 0 else None), ""
