"""Simulate a placement: spans of work, curves of memory, the critical path."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology
from fxpasses.errors import InputError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.backward_tasks import add_backward
from fxpasses.partitioners.costs.graph_figures import no_bytes
from fxpasses.partitioners.costs.list_scheduling import run_as_soon_as_possible
from fxpasses.partitioners.costs.memory import follow_memory
from fxpasses.partitioners.costs.memory_courses import MemoryCourse
from fxpasses.partitioners.costs.node_costs import seconds_of
from fxpasses.partitioners.costs.shared_state import shared_state
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.partitioners.costs.task_lists import (
    Overlap,
    Task,
    run_one_by_one,
    tasks_of,
)
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.simulation.memory_curves import Early, clocks_of, memory_curve
from fxpasses.timeline import Flow, Span, Timeline
from fxpasses.wording import counted

__all__ = [
    "Detail",
    "Overlap",
    "PathStep",
    "Simulation",
    "counted_overlap",
    "simulate",
]

MOST_SAMPLES, MOST_RUNS = 100_000, 10_000_000
"""Samples, and runs of operators in all: some ten microseconds and a third of a kilobyte each."""

Detail = Literal["parts", "ops"]
"""What a span is: a whole part, or one operator of it."""


@attrs.frozen
class PathStep:
    """One step of the critical path.

    Args:
        name: The part, or the value that is copied.
        kind: ``compute``, ``copy`` or ``load``.
        track: The device, or the two ends of the link.
        start: When it begins, in seconds.
        seconds: How long it takes.
        waited_for: What it had to wait for: the step before it, and whether for its value or for the device.
        is_backward: Whether it is the backward of the part, or brings a gradient back.
    """

    name: str
    kind: str
    track: str
    start: float
    seconds: float
    waited_for: str
    is_backward: bool = False


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
        """Samples per second once the pipeline is filled; with one sample, of one after the other.

        Never more than the busiest track lets through: of few samples the first may be held up by the others.
        """
        first, last = self.ends[0], self.ends[-1]
        if self.samples == 1 or last <= first:
            return self.samples / self.seconds if self.seconds else 0.0
        busiest = max(map(self.timeline.busy, self.timeline.tracks))
        return min((self.samples - 1) / (last - first), self.samples / busiest)

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


def counted_overlap(objective: str) -> Overlap:
    """What goes on at the same time in one run, as solvers and reports count it for an objective."""
    return "copies" if objective == "latency" else "devices"


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
    loads: Sequence[ParameterLoad] = (),
    step: TrainingStep | None = None,
) -> Simulation:
    """Simulate runs of a placed graph, or a training step of it.

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
        seconds: What each node takes where it is, in a forward, if that is known already.
        course: What is on each device over the schedule, if that is known already.
        loads: The parameters that offloaded parts load. Each is a span on the link from main memory: it begins when the
            part before its own does, and is there when its part begins.
        step: For training: the backward follows the forward, mirrored, and memory is that of the whole step. What a
            backward loads again keeps its device waiting, and so do gradients on their way to main memory. What the
            optimizer computes takes no time here.

    Returns:
        The timeline and what follows from it. Time O(samples * (nodes + tasks * (devices + links + log tasks))), where
        tasks are parts, copies and loads.

    Raises:
        InputError: no sample or too many, an unknown option, or several samples of a training step.
        MissingMetadataError: a node has no value and no cost; the message names the pass that writes them.
    """
    overlap = _checked(samples, overlap, detail, step)
    _refuse_too_many(samples, len(assignment.partition_of))
    if seconds is None:
        seconds = {node: seconds_of(node, device_of[str(part)]) for node, part in assignment.partition_of.items()}
    taken = seconds
    shared = shared_state(graph_module)
    todo = tasks_of(
        assignment,
        device_of,
        topology,
        lambda node, _: taken[node],
        samples,
        overlap,
        returned=no_bytes if step is None else step.returned,
        in_one=False,
        loads=loads,
        shared=shared,
    )
    if step is not None:
        add_backward(todo, assignment.partitions, topology, taken, step.backward_share, loads)
    if overlap == "none":
        run_one_by_one(todo.tasks)
    else:
        run_as_soon_as_possible(todo.tasks)
    if course is None:
        follow = follow_memory if step is None else step.course
        course = follow(graph_module, assignment, device_of)
    of_task = [list(_spans(task, assignment, seconds, detail, step)) for task in todo.tasks]
    spans = [span for found in of_task for span in found]
    tracks = [device.name for device in topology.devices]
    clocks = clocks_of(todo, assignment, seconds, samples, step)
    memory = {
        device: memory_curve(course, device, clocks, Early.of(todo, device, overlap, loads))
        for device in tracks
        if device in course.held
    }
    budgets = {device.name: device.available_mem_bytes for device in topology.devices}
    ends = [0.0] * samples
    for task in todo.tasks:
        ends[task.sample] = max(ends[task.sample], task.end)
    flows = _Flows(todo.tasks, of_task, assignment if detail == "ops" else None)
    timeline = Timeline(tuple(spans), memory, budgets, tuple(tracks), tuple(flows))
    return Simulation(timeline, samples, overlap, tuple(ends), tuple(_critical_path(todo.tasks)))


def _checked(samples: int, overlap: Overlap | None, detail: Detail, step: TrainingStep | None) -> Overlap:
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise InputError(f"A simulation takes 1 sample or more, not {samples!r}.")
    if step is not None and samples > 1:
        raise InputError(
            f"A training step is simulated for one sample, not {samples}: what several hold at a time depends on the "
            "schedule of forwards and backwards, which fxpasses.pipelining has."
        )
    for what, value, known in (
        ("overlap", overlap, ("none", "devices", "copies")),
        ("detail", detail, ("parts", "ops")),
    ):
        if value is not None and value not in known:
            raise InputError(f"There is no {what} {value!r}; there is {', '.join(known)}.")
    return overlap or ("none" if samples == 1 else "devices")


def _refuse_too_many(samples: int, operators: int) -> None:
    most = min(MOST_SAMPLES, max(1, MOST_RUNS // max(1, operators)))
    if samples > most:
        large = f" of {counted(operators, 'operator')}" if most < MOST_SAMPLES else ""
        raise InputError(
            f"A simulation{large} takes {counted(most, 'sample')} at most, not {samples}; after some hundred, each "
            "takes as long as the one before."
        )


def _spans(
    task: Task, assignment: Assignment, seconds: Mapping[Node, float], detail: Detail, step: TrainingStep | None
) -> Iterator[Span]:
    """A copy or a load is a span on its link first, then on those ends that it keeps busy."""
    kind = task.kind if step is None or task.kind != "compute" else "backward" if task.is_backward else "forward"
    if task.kind != "compute":
        yield from (Span(track, task.name, task.start, task.seconds, kind) for track in task.uses)
    elif detail == "parts":
        yield Span(task.track, task.name, task.start, task.seconds, kind)
    else:
        now, nodes = task.start, assignment.partitions[task.part]
        for node in reversed(nodes) if task.is_backward else nodes:
            taken = seconds[node] * (step.backward_share(node) if step is not None and task.is_backward else 1)
            if taken:
                yield Span(task.track, node.name, now, taken, kind)
            now += taken


class _Flows:
    """Arrows from what a task needs to the task: by way of the link of a copy.

    Where the spans of a part are its operators, a copy comes from the one that makes the value (or the last one before,
    if that takes no time) and goes to the first one that uses it; without a copy, the last operator of a part leads to
    the first one of the next.
    """

    def __init__(self, tasks: Sequence[Task], spans: Sequence[Sequence[Span]], assignment: Assignment | None) -> None:
        self.tasks, self.spans, self.assignment = tasks, spans, assignment
        nodes = () if assignment is None else assignment.graph.nodes
        self.nodes = {node.name: node for node in nodes}
        self.place = {name: place for place, name in enumerate(self.nodes)}
        self.places = [
            [self.place[span.name] for span in own] if self._has_operators(task) else []
            for task, own in zip(tasks, spans, strict=True)
        ]

    def __iter__(self) -> Iterator[Flow]:
        for index, task in enumerate(self.tasks):
            for need in task.needs:
                if self.spans[need] and self.spans[index]:
                    yield Flow(self._source(need, task), self._target(self.tasks[need], index))

    def _has_operators(self, task: Task) -> bool:
        return self.assignment is not None and task.kind == "compute" and not task.is_backward

    def _source(self, need: int, task: Task) -> Span:
        """Where an arrow begins."""
        spans = self.spans[need]
        if self.tasks[need].kind != "compute":
            return spans[0]
        if task.kind != "copy" or task.name not in self.place or not self.places[need]:
            return spans[-1]
        return spans[max(0, bisect_right(self.places[need], self.place[task.name]) - 1)]

    def _target(self, need: Task, index: int) -> Span:
        """Where it ends."""
        spans, part = self.spans[index], self.tasks[index].part
        if need.kind != "copy" or need.name not in self.place or not self.places[index] or self.assignment is None:
            return spans[0]
        partition_of = self.assignment.partition_of
        users = (user for user in self.nodes[need.name].users if str(partition_of.get(user)) == part)
        first = min((self.place[user.name] for user in users), default=0)
        return spans[min(len(spans) - 1, bisect_left(self.places[index], first))]


def _critical_path(tasks: Sequence[Task]) -> list[PathStep]:
    """Follow what each step waited for, from the last to end back to the first."""
    path: list[PathStep] = []
    index = max(range(len(tasks)), key=lambda each: (tasks[each].end, -each), default=None)
    while index is not None:
        task = tasks[index]
        path.append(PathStep(task.name, task.kind, task.track, task.start, task.seconds, task.why, task.is_backward))
        index = task.after
    return [step for step in reversed(path) if step.seconds > 0] or path[::-1]
