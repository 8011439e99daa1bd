"""Run a placement on paper: which part computes when, which value crosses when, what each device holds meanwhile.

The numbers are those that placing works with (:mod:`fxpasses.partitioners.cost`, :mod:`fxpasses.partitioners.memory`);
what is added is time: a device does one thing at a time, and nothing starts before its inputs are there.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology
from fxpasses.errors import InputError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.cost import seconds_of
from fxpasses.partitioners.graph_figures import value_bytes
from fxpasses.partitioners.memory import MemoryCourse, follow_memory
from fxpasses.timeline import MemoryCurve, Span, Timeline

__all__ = ["Detail", "Overlap", "PathStep", "Simulation", "simulate"]

Overlap = Literal["none", "devices", "copies"]
"""What goes on at the same time: nothing; devices; devices and copies beside their work."""

Detail = Literal["parts", "ops"]
"""What a span is: a whole part, or one operator of it."""


@attrs.frozen
class PathStep:
    """One step of the critical path.

    Args:
        name: The part, or the value that is copied.
        kind: ``compute`` or ``copy``.
        track: The device, or the two ends of the link.
        start: When it begins, in seconds.
        seconds: How long it takes.
        waited_for: What it had to wait for: the step before it, and whether for its value or for the device.
    """

    name: str
    kind: str
    track: str
    start: float
    seconds: float
    waited_for: str


@attrs.frozen(eq=False)
class Simulation:
    """A run on paper.

    Args:
        timeline: Spans on devices and links, memory of each device with its budget.
        samples: How many samples went through.
        overlap: What went on at the same time.
        ends: When each sample is done, in seconds.
        critical_path: What determines the end: steps without a gap between them, from 0 to the end.
    """

    timeline: Timeline
    samples: int
    overlap: Overlap
    ends: tuple[float, ...]
    critical_path: tuple[PathStep, ...]

    @property
    def seconds(self) -> float:
        """When all is done."""
        return self.timeline.makespan

    @property
    def samples_per_second(self) -> float:
        """Samples per second once the pipeline is filled; with one sample, of one after the other."""
        first, last = self.ends[0], self.ends[-1]
        if self.samples == 1 or last <= first:
            return self.samples / self.seconds if self.seconds else 0.0
        return (self.samples - 1) / (last - first)

    def to_json(self) -> dict[str, Any]:
        """The figures as plain data; the spans are in ``timeline.chrome_trace()``."""
        timeline = self.timeline
        return {
            "seconds": self.seconds,
            "samples": self.samples,
            "overlap": self.overlap,
            "samples_per_second": self.samples_per_second,
            "tracks": {
                track: {"busy": timeline.busy(track), "idle": timeline.idle(track), "peak_bytes": timeline.peak(track)}
                for track in timeline.tracks
            },
            "critical_path": [attrs.asdict(step) for step in self.critical_path],
        }


@attrs.define
class _Task:
    """A part that runs, or a value that crosses, for one sample.

    Args:
        uses: The tracks that it keeps busy.
        needs: Positions of the tasks whose results it takes.
        start: When it begins.
        after: Position of the task whose end it waited for, and why.
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
        return self.start + self.seconds


@attrs.define
class _Tasks:
    """The tasks of all samples in the order in which one sample's parts and copies are started."""

    tasks: list[_Task] = attrs.field(factory=list)
    computing: dict[tuple[int, str], int] = attrs.field(factory=dict)
    copying: dict[tuple[int, Node, str], int] = attrs.field(factory=dict)

    def add(self, task: _Task) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1


def simulate(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    *,
    samples: int = 1,
    overlap: Overlap | None = None,
    detail: Detail = "parts",
    seconds: Mapping[Node, float] | None = None,
    course: MemoryCourse | None = None,
) -> Simulation:
    """Simulate runs of a placed graph.

    Args:
        graph_module: The unsplit graph; its nodes carry values or costs.
        assignment: Which node is in which part.
        device_of: The device of each part.
        topology: Devices and links.
        samples: How many samples go through, each as soon as it can; the one that began first goes first.
        overlap: ``"none"``: one thing at a time, in the order of the parts, as the lowered module runs on the CPU: the
            seconds and the peak memory are those that the plan predicts. ``"devices"``: each device works whenever it
            has what it needs; a copy keeps both its ends busy. ``"copies"``: copies run beside the work of both ends,
            one at a time on each link and direction, and hold memory from when they begin. By default ``"none"`` for
            one sample, ``"devices"`` for more.
        detail: Whether a span is a part or an operator.
        seconds: What each node takes where it is, if that is known already.
        course: What is on each device over the schedule, if that is known already.

    Returns:
        The timeline and what follows from it. Time O(samples * (nodes + copies * log copies)).

    Raises:
        InputError: no sample, or an unknown option.
        MissingMetadataError: a node has no value and no cost; the message names the pass that writes them.
    """
    overlap = _checked(samples, overlap, detail)
    if seconds is None:
        seconds = {node: seconds_of(node, device_of[str(part)]) for node, part in assignment.partition_of.items()}
    todo = _tasks(assignment, device_of, topology, seconds, samples, overlap)
    if overlap == "none":
        _one_by_one(todo.tasks)
    else:
        _as_soon_as_possible(todo.tasks)
    course = course or follow_memory(graph_module, assignment, device_of)
    spans = list(_spans(todo.tasks, assignment, seconds, overlap, detail))
    tracks = [device.name for device in topology.devices]
    memory = {
        device: _curve(course, device, _clocks(todo, assignment, seconds, samples), todo, overlap)
        for device in tracks
        if device in course.held
    }
    budgets = {device.name: device.available_mem_bytes for device in topology.devices}
    ends = [max((task.end for task in todo.tasks if task.sample == index), default=0.0) for index in range(samples)]
    timeline = Timeline(tuple(spans), memory, budgets, tuple(tracks))
    return Simulation(timeline, samples, overlap, tuple(ends), tuple(_critical_path(todo.tasks)))


def _checked(samples: int, overlap: Overlap | None, detail: Detail) -> Overlap:
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise InputError(f"A simulation takes 1 sample or more, not {samples!r}.")
    for what, value, known in (
        ("overlap", overlap, ("none", "devices", "copies")),
        ("detail", detail, ("parts", "ops")),
    ):
        if value is not None and value not in known:
            raise InputError(f"There is no {what} {value!r}; there is {', '.join(known)}.")
    return overlap or ("none" if samples == 1 else "devices")


def _tasks(
    assignment: Assignment,
    device_of: Mapping[str, Device],
    topology: Topology,
    seconds: Mapping[Node, float],
    samples: int,
    overlap: Overlap,
) -> _Tasks:
    todo = _Tasks()
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
                    _Task(
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
        task = _Task(str(part), "compute", home, (home,), busy, tuple(needs), sample, part=str(part))
        todo.computing[sample, str(part)] = todo.add(task)
    return todo


def _one_by_one(tasks: Sequence[_Task]) -> None:
    now = 0.0
    for index, task in enumerate(tasks):
        task.start = now
        task.after, task.why = (index - 1, "one thing at a time") if index else (None, "")
        now = task.end


def _as_soon_as_possible(tasks: Sequence[_Task]) -> None:
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


def _consumers(tasks: Sequence[_Task]) -> tuple[list[int], dict[int, int], dict[int, list[int]]]:
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


def _is_free(tasks: Sequence[_Task], holder: Mapping[str, int], track: str, now: float) -> bool:
    return track not in holder or tasks[holder[track]].end <= now


def _waited_for(
    tasks: Sequence[_Task], index: int, holder: Mapping[str, int], done_by: int | None
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


def _spans(
    tasks: Sequence[_Task],
    assignment: Assignment,
    seconds: Mapping[Node, float],
    overlap: Overlap,
    detail: Detail,
) -> Iterator[Span]:
    """A copy is a span on its link, and on both ends as long as it keeps them busy."""
    for task in tasks:
        if task.kind == "copy":
            yield from (Span(track, task.name, task.start, task.seconds, "copy") for track in task.uses)
        elif detail == "parts":
            yield Span(task.track, task.name, task.start, task.seconds)
        else:
            now = task.start
            for node in assignment.partitions[task.part]:
                if seconds[node]:
                    yield Span(task.track, node.name, now, seconds[node])
                now += seconds[node]


@attrs.frozen
class _Clock:
    """When each position of the schedule begins and ends for one sample, and when that sample is done."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]
    done: float


def _clocks(todo: _Tasks, assignment: Assignment, seconds: Mapping[Node, float], samples: int) -> list[_Clock]:
    clocks = []
    for sample in range(samples):
        begins: list[float] = []
        ends: list[float] = []
        for part in assignment.order:
            now = todo.tasks[todo.computing[sample, str(part)]].start
            for node in assignment.partitions[part]:
                begins.append(now)
                now += seconds[node]
                ends.append(now)
        clocks.append(_Clock(tuple(begins), tuple(ends), max(ends, default=0.0)))
    return clocks


def _curve(course: MemoryCourse, device: str, clocks: Sequence[_Clock], todo: _Tasks, overlap: Overlap) -> MemoryCurve:
    """What is held, and for each sample what comes and goes.

    Steps of one instant are ordered as the schedule has them; of them the highest and the last are kept.
    """
    last = len(course.schedule)
    steps: list[tuple[float, int, int, int]] = []
    for sample, clock in enumerate(clocks):
        for life in course.lives[device]:
            comes = clock.begins[life.start] if life.start < last else clock.done
            copy = todo.copying.get((sample, life.value, device)) if overlap == "copies" else None
            if copy is not None:
                comes = min(comes, todo.tasks[copy].start)
            goes = clock.ends[life.stop] if life.stop < last else clock.done
            steps.append((comes, sample * (last + 2) + life.start, 1, life.size))
            steps.append((max(comes, goes), sample * (last + 2) + min(life.stop, last) + 1, 0, -life.size))
    steps.sort()
    held = course.held[device]
    curve: list[tuple[float, int]] = [(0.0, held)]
    for second, same in itertools.groupby(steps, key=lambda step: step[0]):
        levels = list(itertools.accumulate((step[3] for step in same), initial=held))[1:]
        held = levels[-1]
        highest = max(levels)
        curve += [(second, size) for size in dict.fromkeys((highest, held)) if size != curve[-1][1] or size == highest]
    return tuple(curve)


def _critical_path(tasks: Sequence[_Task]) -> list[PathStep]:
    """Follow what each step waited for, from the last to end back to the first."""
    path: list[PathStep] = []
    index = max(range(len(tasks)), key=lambda each: (tasks[each].end, -each), default=None)
    while index is not None:
        task = tasks[index]
        path.append(PathStep(task.name, task.kind, task.track, task.start, task.seconds, task.why))
        index = task.after
    return [step for step in reversed(path) if step.seconds > 0] or path[::-1]
