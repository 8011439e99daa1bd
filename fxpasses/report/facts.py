"""The facts of a placement, as rows: what each device holds and does, what crosses and why, what takes the time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import MAIN_MEMORY, Device, is_given_on
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_times import predict_times
from fxpasses.partitioners.costs.graph_figures import no_bytes, value_bytes
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.node_costs import seconds_of
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.costs.shared_state import sent_state, shared_state
from fxpasses.partitioners.costs.single_loads import ParameterLoad
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.replication.replicas import REPLICA_OF, bytes_saved
from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.plan import Plan, stable_keys
from fxpasses.report.device_rows import device_rows
from fxpasses.report.summary import CopyRow, PassRow, PathRow, ReplicaRow, Summary
from fxpasses.simulation import Simulation, counted_overlap, simulate

__all__ = ["summarize", "with_figures"]

HEAVIEST = 3

_WHERE_ANY = ("loaded_bytes", "traffic_bytes", "gradient_bytes", "optimizer_bytes", "saved_bytes")
"""Figures of a device that a plan has only where there is something: offloaded parameters, training."""


def summarize(
    plan: Plan,
    graph_module: GraphModule,
    assignment: Assignment,
    *,
    reasons: Mapping[str, str] | None = None,
    passes: Sequence[PassRow] = (),
    memory: MemoryFacts | None = None,
    step: TrainingStep | None = None,
) -> Summary:
    """Collect what a report says about a placement.

    Args:
        plan: The plan.
        graph_module: The unsplit graph.
        assignment: The plan as an assignment of this graph.
        reasons: For each part, why it is where it is.
        passes: The passes that ran.
        memory: What the graph needs in memory, if that is known already.
        step: The training step of the graph, where the plan is for training.
    """
    device_of, keys = plan.device_of, stable_keys(graph_module)
    taken = {node: seconds_of(node, device_of[str(part)]) for node, part in assignment.partition_of.items()}
    whole = taken if step is None else {node: each * (1 + step.backward_share(node)) for node, each in taken.items()}
    uses = ParameterUses.of(graph_module, assignment, device_of, memory, step)
    course, loads = uses.course_with(plan.offloaded), uses.loads(plan.offloaded)
    seconds, load = predict_times(
        graph_module,
        assignment,
        device_of,
        plan.topology,
        seconds=lambda node, _: whole[node],
        returned=no_bytes if step is None else step.returned,
        loads=loads,
    )
    loading = uses.load_seconds(plan.offloaded)
    known = partial(
        simulate,
        graph_module,
        assignment,
        device_of,
        plan.topology,
        seconds=taken,
        course=course,
        loads=loads,
        step=step,
    )
    run = known(overlap=counted_overlap(plan.objective))
    fills = plan.objective == "throughput" and step is None
    shown = known(samples=min(8, 2 * len(course.held))) if fills and len(course.held) else run
    sent = _planned_copies(graph_module, assignment, plan, keys, loads)
    period = max(load.values(), default=0.0) if plan.objective == "throughput" else seconds
    held = uses.memory(plan.offloaded)
    value = plan.predicted.get("objective_value")
    if value is None:  # nothing was searched, but what a search makes small is known all the same
        value = {
            "throughput": period,
            "latency": run.timeline.makespan,
            "memory": float(max((each.peak for each in held.values()), default=0)),
            "devices": float(len({device_of[str(part)].name for part in assignment.order})),
        }[plan.objective]
    return Summary(
        plan.model,
        plan.objective,
        len(assignment.partition_of),
        (),
        tuple(passes),
        tuple(device_rows(plan, assignment, course, load, period, keys, loads=(held, loading))),
        tuple(sent),
        seconds * 1e3,
        reasons={key: _why_there(node, assignment, device_of, reasons or {}) for node, key in keys.items()},
        path=tuple(_path_rows(run, assignment, taken, keys, step)),
        objective_value=value,
        bound=plan.predicted.get("bound"),
        bound_once=plan.predicted.get("bound_once"),
        timeline=shown.timeline,
        replicas=tuple(_replica_rows(graph_module, assignment, device_of, whole, keys, loads)),
        training=plan.training,
    )


def _replica_rows(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    taken: Mapping[Node, float],
    keys: Mapping[Node, str],
    loads: Sequence[ParameterLoad],
) -> Iterator[ReplicaRow]:
    saved = bytes_saved(assignment, device_of, value_bytes, shared_state(graph_module), loads)
    rank = {key: index for index, key in enumerate(keys.values())}
    for part in map(str, assignment.order):
        again = [node for node in assignment.partitions[part] if REPLICA_OF.has(node)]
        if again:
            ops = tuple(sorted((keys[node].rpartition("@")[0] for node in again), key=rank.__getitem__))
            milliseconds = sum(taken[node] for node in again) * 1e3
            yield ReplicaRow(part, device_of[part].name, ops, milliseconds, saved.get(part, 0))


def with_figures(
    plan: Plan,
    summary: Summary,
    *,
    objective_value: float | None = None,
    bound: float | None = None,
    bound_once: float | None = None,
) -> Plan:
    """Write the predicted figures of a summary into its plan."""
    devices = {
        row.name: {
            "seconds": row.estimated_ms / 1e3,
            "parameter_bytes": row.parameter_bytes,
            "peak_bytes": row.peak_bytes,
            **{name: getattr(row, name) for name in _WHERE_ANY if getattr(row, name)},
        }
        for row in summary.devices
    }
    sizes = ("value", "source", "target", "size")
    copies = tuple(attrs.asdict(row, filter=lambda attribute, _: attribute.name in sizes) for row in summary.copies)
    predicted: dict[str, Any] = {"seconds": summary.estimated_ms / 1e3}
    searched = {"objective_value": objective_value, "bound": bound, "bound_once": bound_once}
    predicted.update((key, value) for key, value in searched.items() if value is not None)
    return attrs.evolve(plan, copies=copies, predicted={**predicted, "devices": devices})


def _planned_copies(
    graph_module: GraphModule,
    assignment: Assignment,
    plan: Plan,
    keys: Mapping[Node, str],
    loads: Sequence[ParameterLoad],
) -> list[CopyRow]:
    """What crosses between devices in one run: values of parts, inputs and results that are elsewhere, tied parameters.

    Args:
        graph_module: The unsplit graph.
        assignment: Which node is in which part.
        plan: The devices and links.
        keys: The stable key of each operator.
        loads: What offloaded parts load.
    """
    device_of = plan.device_of
    home = {node: device_of[str(part)] for node, part in assignment.partition_of.items()}
    rows = []
    for node in graph_module.graph.nodes:
        if node.op in ("get_attr", "output") or not value_bytes(node) or _is_container(node):
            continue
        users: dict[str, list[Node]] = {}
        for user in node.users:
            if user in home and _crosses(node, home.get(node), home[user]):
                users.setdefault(home[user].name, []).append(user)
        source = home[node].name if node in home else MAIN_MEMORY
        for target, needing in users.items():
            rows.append(_copy_row(plan, node, source, target, _needed_by(needing, assignment, keys)))
        if node in home and any(user.op == "output" for user in node.users) and _crosses_back(node, home[node]):
            rows.append(_copy_row(plan, node, source, MAIN_MEMORY, "the result is wanted there"))
    for state in sent_state(shared_state(graph_module), assignment, device_of, loads):
        for target, using in state.users.items():
            why = f"{_needed_by(using, assignment, keys)}, and {state.source} holds it"
            rows.append(_copy_row(plan, state.names[0], state.source, target, why))
    return rows


def _is_container(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _crosses(node: Node, source: Device | None, target: Device) -> bool:
    if source is not None:
        return source.name != target.name
    return _is_elsewhere(node, target)


def _crosses_back(node: Node, source: Device) -> bool:
    return _is_elsewhere(node, source)


def _is_elsewhere(node: Node, device: Device) -> bool:
    """Whether a value, as the model has it, is on another torch device than this one."""
    first, *_ = tensors_in(node.meta.get("val"))
    return not is_given_on(first.device, device.torch_device)


def _needed_by(users: Sequence[Node], assignment: Assignment, keys: Mapping[Node, str]) -> str:
    parts = dict.fromkeys(str(assignment.partition_of[user]) for user in users)
    more = f" and {len(users) - 1} more" if len(users) > 1 else ""
    return f"{', '.join(parts)} {'uses' if len(parts) == 1 else 'use'} it in {keys[users[0]]}{more}"


def _copy_row(plan: Plan, node: Node, source: str, target: str, why: str) -> CopyRow:
    (tensor, *_), size = tensors_in(node.meta["val"]), value_bytes(node)
    known = {device.name for device in plan.devices}
    seconds = plan.topology.seconds(source, target, size) if {source, target} <= known else 0.0
    return CopyRow(node.name, source, target, size, "x".join(map(str, tensor.shape)), seconds * 1e3, why)


def _path_rows(
    run: Simulation,
    assignment: Assignment,
    taken: Mapping[Node, float],
    keys: Mapping[Node, str],
    step: TrainingStep | None,
) -> Iterator[PathRow]:
    for each in run.critical_path:
        times: list[tuple[str, float]] = []
        if each.kind == "compute":
            share = step.backward_share if step is not None and each.is_backward else _once
            times = [(keys[node], taken[node] * share(node) * 1e3) for node in assignment.partitions[each.name]]
        heaviest = tuple(heapq.nlargest(HEAVIEST, times, key=lambda entry: entry[1]))
        start, seconds = each.start * 1e3, each.seconds * 1e3
        kind = each.kind if step is None else _KINDS[each.kind, each.is_backward]
        yield PathRow(each.name, kind, each.track, start, seconds, each.waited_for, heaviest)


_KINDS = {
    ("compute", False): "forward",
    ("compute", True): "backward",
    ("copy", False): "copy",
    ("copy", True): "gradient",
    ("load", False): "load",
    ("load", True): "load",
}
"""What the steps of a training step are called."""


def _once(_node: Node) -> int:
    return 1


def _why_there(node: Node, assignment: Assignment, device_of: Mapping[str, Device], reasons: Mapping[str, str]) -> str:
    part = assignment.partition_of.get(node)
    if part is None:
        return f"outside of all parts: {assignment.why(node)}"
    if REPLICA_OF.has(node):
        return f"{part} on {device_of[str(part)].name}: computed again here instead of being sent"
    reason = reasons.get(str(part))
    return f"{part} on {device_of[str(part)].name}" + (f": {reason}" if reason else "")
