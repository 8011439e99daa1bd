"""What each device holds while tasks run: the memory of a schedule laid over seconds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs
from torch.fx import Node

from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.memory_courses import Life, MemoryCourse
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.partitioners.costs.task_lists import Overlap, Task, TaskList
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.timeline import MemoryCurve

__all__ = ["Clock", "Early", "clocks_of", "memory_curve"]


@attrs.frozen
class Clock:
    """When each position of the schedule begins and ends for one sample, and when that sample is done."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]
    done: float


def clocks_of(
    todo: TaskList,
    assignment: Assignment,
    seconds: Mapping[Node, float],
    samples: int,
    step: TrainingStep | None = None,
) -> list[Clock]:
    """The clock of each sample; of a training step its backward follows.

    Args:
        todo: The tasks, each with the second at which it begins.
        assignment: The parts.
        seconds: What each node takes where it is, in a forward.
        samples: How many samples.
        step: For training.
    """
    clocks = []
    for sample in range(samples):
        begins: list[float] = []
        ends: list[float] = []
        for part in assignment.order:
            taken = [seconds[node] for node in assignment.partitions[part]]
            _pass(todo.tasks[todo.computing[sample, str(part)]], taken, begins, ends)
        if step is not None:
            for part in reversed(assignment.order):
                taken = [seconds[node] * step.backward_share(node) for node in reversed(assignment.partitions[part])]
                _pass(todo.tasks[todo.backward[str(part)]], taken, begins, ends)
        clocks.append(Clock(tuple(begins), tuple(ends), max(ends, default=0.0)))
    return clocks


def _pass(task: Task, taken: Sequence[float], begins: list[float], ends: list[float]) -> None:
    """Go through the nodes of a part."""
    now = task.start
    for each in taken:
        begins.append(now)
        now = min(now + each, task.end)
        ends.append(now)
    ends[-1:] = [task.end]  # sums round: what comes next begins right then, and not before


@attrs.frozen(eq=False)
class Early:
    """When copies and loads really begin to hold memory: with their own task, if that is before it is counted."""

    begins: Mapping[tuple[int, Node, int | None], float]

    @classmethod
    def of(cls, todo: TaskList, device: str, overlap: Overlap, loads: Sequence[ParameterLoad]) -> Early:
        """Copies by sample and value; loads also by the position of the schedule at whose end they go."""
        tasks = todo.tasks
        begins: dict[tuple[int, Node, int | None], float] = {}
        if overlap == "copies":
            copies = {key: at for key, at in todo.copying.items() if key[2] == device}
            begins.update({(sample, value, None): tasks[at].start for (sample, value, _), at in copies.items()})
        stops = {(load.value, load.part): load.last_position for load in loads}
        for (sample, value, part), at in todo.loading.items():
            begins[sample, value, stops[value, part]] = tasks[at].start
        return cls(begins)

    def start(self, sample: int, life: Life, otherwise: float) -> float:
        """When a life begins in one sample."""
        copied = self.begins.get((sample, life.value, None), otherwise) if life.copied else otherwise
        return min(self.begins.get((sample, life.value, life.stop), copied), otherwise)


def memory_curve(course: MemoryCourse, device: str, clocks: Sequence[Clock], early: Early) -> MemoryCurve:
    """What is held, and for each sample what comes and goes.

    Steps of one instant are ordered as the schedule has them; of them the highest and the last are kept.
    """
    last = len(course.schedule)
    steps: list[tuple[float, int, int, int]] = []
    for sample, clock in enumerate(clocks):
        for life in course.lives[device]:
            comes = early.start(sample, life, clock.begins[life.start] if life.start < last else clock.done)
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
        curve += [(second, size) for size in dict.fromkeys((highest, held))]
    return tuple(curve)
