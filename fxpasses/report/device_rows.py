"""What each device of a plan does and holds, as rows: in one run of the model, or in a training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
from torch.fx import Node

from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.memory_courses import MemoryCourse
from fxpasses.partitioners.costs.parameter_loads import LoadedMemory
from fxpasses.partitioners.costs.training.training_course import TrainingCourse
from fxpasses.plan import Plan
from fxpasses.report.summary import DeviceRow

__all__ = ["device_rows"]


def device_rows(
    plan: Plan,
    assignment: Assignment,
    course: MemoryCourse,
    load: Mapping[str, float],
    period: float,
    keys: Mapping[Node, str],
    *,
    loads: tuple[Mapping[str, LoadedMemory], Mapping[str, float]],
) -> Iterator[DeviceRow]:
    """A row for each device of a plan, used or not.

    Args:
        plan: The plan.
        assignment: The plan as an assignment.
        course: What is on each device, offloaded parameters and training counted.
        load: The seconds in which each device is busy.
        period: The seconds of which what is not busy is idle.
        keys: The operators by their names in plans.
        loads: What loading makes of the memory of each device, and the seconds that it takes.
    """
    held, loading = loads
    for device in plan.devices:
        parts = tuple(part.name for part in plan.parts if part.device == device.name)
        busy = load.get(device.name, 0.0)
        row = DeviceRow(
            device.name,
            device.torch_device,
            sum(len(assignment.partitions.get(part, ())) for part in parts),
            0,
            0,
            0,
            0,
            device.available_mem_bytes,
            busy * 1e3,
            parts,
            idle_ms=max(0.0, period - busy) * 1e3,
            loading_ms=loading.get(device.name, 0.0) * 1e3,
        )
        if device.name not in course.held:
            yield row
        elif isinstance(course, TrainingCourse):
            yield _in_training(row, course, held[device.name], keys)
        else:
            yield _with_memory(row, course, held[device.name], keys)


def _with_memory(row: DeviceRow, course: MemoryCourse, loads: LoadedMemory, keys: Mapping[Node, str]) -> DeviceRow:
    held, fullest = loads.memory, course.fullest(row.name)
    node = course.node_at(fullest)
    return attrs.evolve(
        row,
        parameter_bytes=held.parameters,
        activation_bytes=held.activations,
        copy_bytes=held.copies,
        peak_bytes=loads.peak,
        loaded_bytes=loads.loaded,
        traffic_bytes=loads.traffic,
        state_bytes=min(held.parameters, course.state.get(row.name, 0)),
        peak_copy_bytes=min(held.activations, int(course.curve(row.name, copies_only=True)[fullest])),
        peak_op=keys[node] if node is not None else "",
    )


def _in_training(row: DeviceRow, course: TrainingCourse, loads: LoadedMemory, keys: Mapping[Node, str]) -> DeviceRow:
    held, split = course.memory(row.name), course.split(row.name)
    fullest = course.fullest(row.name)
    node = course.node_at(fullest)
    return attrs.evolve(
        row,
        parameter_bytes=split["parameters"],
        activation_bytes=split["saved"] + split["copies"] + split["activations"],
        copy_bytes=held.copies,
        peak_bytes=held.peak,
        loaded_bytes=loads.loaded,
        traffic_bytes=loads.traffic,
        state_bytes=min(held.parameters, course.state.get(row.name, 0)),
        peak_copy_bytes=split["copies"],
        peak_op=keys[node] if node is not None else "",
        peak_when=course.moment(fullest),
        gradient_bytes=split["gradients"],
        optimizer_bytes=split["optimizer"],
        saved_bytes=split["saved"],
        most_saved_bytes=course.most_saved(row.name),
    )
