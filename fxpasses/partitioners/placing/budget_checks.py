"""Check a placement against the budgets as memory is predicted, for running a model and for training it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.devices import Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.memory import follow_placed
from fxpasses.partitioners.costs.memory_courses import MemoryCourse
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.device_runs import Runs

__all__ = ["Seen", "check_budgets", "course_of"]


@attrs.frozen(eq=False)
class Seen:
    """What a check saw.

    Args:
        over: By how many bytes which devices are over their budget.
        alive: Bytes beside the constants on the device of each compute node while it ran; in training, at the worst
            moment of that device.
        peaks: The most bytes on each device that is used.
    """

    over: Mapping[str, int]
    alive: NDArray[np.int64]
    peaks: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def fullest(self) -> int:
        """Bytes on the fullest device."""
        return max(self.peaks.values(), default=0)


def check_budgets(
    figures: GraphFigures,
    topology: Topology,
    runs: Runs,
    step: TrainingStep | None,
    *,
    always: bool = False,
    in_order: bool = True,
) -> Seen:
    """Follow the memory of a placement; where no device has a budget only if it is asked for always.

    In training the backward is traced in the order in which the parts run it, unless it is said that the graph's own
    order will do.
    """
    if not always and all(device.available_mem_bytes is None for device in topology.devices):
        return Seen({}, figures.needs)
    course = course_of(figures, topology, runs, step, in_order=in_order)
    peaks = {name: course.memory(name).peak for name in course.held}
    alive = _alive(figures, runs, course) if step is None else _beside_constants(figures, runs, peaks)
    return Seen(_over(topology, peaks), alive, peaks)


def course_of(
    figures: GraphFigures, topology: Topology, runs: Runs, step: TrainingStep | None, *, in_order: bool = True
) -> MemoryCourse:
    """The memory of a placement over time, of a run or of a training step; ``in_order`` as above."""
    device_of = runs.devices(topology)
    if step is None:
        return follow_placed(figures.memory, runs.assignment, device_of)
    return step.course(figures.graph_module, runs.assignment, device_of, figures.memory, in_order=in_order)


def _over(topology: Topology, peaks: Mapping[str, int]) -> dict[str, int]:
    over = {name: peak - topology[name].memory for name, peak in peaks.items()}
    return {name: int(size) for name, size in over.items() if size > 0}


def _alive(figures: GraphFigures, runs: Runs, course: MemoryCourse) -> NDArray[np.int64]:
    curves = {name: course.curve(name) for name in course.held}
    alive = np.zeros(len(figures.nodes), dtype=np.int64)
    for place, node in enumerate(course.schedule):
        device = runs.device_of[str(runs.assignment.partition_of[node])]
        alive[figures.position[node]] = curves[device][place]
    return alive


def _beside_constants(figures: GraphFigures, runs: Runs, peaks: Mapping[str, int]) -> NDArray[np.int64]:
    """What each device held at its worst moment that its constants do not explain."""
    constants: dict[str, dict[int, int]] = {name: {} for name in peaks}
    home = [runs.device_of[str(runs.assignment.partition_of[node])] for node in figures.nodes]
    for name, held in zip(home, figures.constants, strict=True):
        constants[name].update(held)
    beside = {name: max(0, peak - sum(constants[name].values())) for name, peak in peaks.items()}
    return np.array([beside[name] for name in home], dtype=np.int64)
