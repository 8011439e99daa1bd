"""Say what keeps a plan from running a model as it is now: operators without a part, budgets passed, devices gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import BACKENDS, Device, Topology, holds_no_data, is_here, is_known
from fxpasses.errors import CycleError, PartitionError, came_from
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.memory_courses import MemoryCourse
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.costs.training.training_course import TrainingCourse
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.grouping.keep_together import runs_anywhere
from fxpasses.partitioners.placing.names.device_maps import holders
from fxpasses.partitioners.placing.replication.replicas import with_replicas
from fxpasses.plan.applying import assignment_of
from fxpasses.plan.contents import contents_of, differences
from fxpasses.plan.explaining import hints, misfit, waiting
from fxpasses.plan.faults import not_replicable, torn_apart
from fxpasses.plan.fitting import Fit, fit
from fxpasses.plan.keys import path_in, stable_keys
from fxpasses.plan.program_graphs import graph_of
from fxpasses.plan.renaming import guess_renames
from fxpasses.units import format_bytes
from fxpasses.wording import listed

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from fxpasses.plan.plans import Plan

__all__ = ["Violation", "check_plan", "missing_devices"]


@attrs.frozen
class Violation:
    """One thing that keeps a plan from running a model.

    Args:
        kind: ``another model``, ``no part``, ``not there``, ``two parts``, ``changed``, ``order``, ``cycle``,
            ``torn apart``, ``no device``, ``no torch device``, ``no backend``, ``unsupported``, ``again`` or
            ``budget``.
        message: What, where and what to do.
        device: The device it is about.
        op: The operator it is about, by its key, or the entry of the plan.
        missing_bytes: By how much a budget is passed.
    """

    kind: str
    message: str
    device: str | None = None
    op: str | None = None
    missing_bytes: int | None = None

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """The violation as plain data, without what is not known."""
        return attrs.asdict(self, filter=lambda _attribute, value: value is not None)


def check_plan(
    plan: Plan,
    model: GraphModule | ExportedProgram,
    *,
    devices: Topology | Iterable[Device] | None = None,
    on_this_machine: bool = False,
) -> list[Violation]:
    """Find everything that keeps a plan from running a model.

    Args:
        plan: The plan.
        model: The model as it is now, after the passes that the plan names: of a program that was exported again
            ``parse_pipeline(plan.pipeline)(program).exported_program``.
        devices: The devices as they are now: their budgets and what they support count, not those in the plan.
        on_this_machine: Also ask whether each torch device that the plan uses is here.

    Returns:
        What was found; nothing if the plan can be replayed, its lines for whole modules stand for what they stood for
        when it was written, and all budgets are kept.

    Raises:
        MissingMetadataError: a node has no value to count bytes on.
    """
    graph_module = graph_of(model)
    found, now = _devices(plan, devices, on_this_machine)
    keys = stable_keys(graph_module)
    given = fit(plan.parts, keys)
    found += _misfits(plan, given)
    if not given.is_complete:
        return found
    found += _changed(plan, keys)
    found += _unsupported(plan, graph_module, given, now)
    found += _torn(plan, graph_module, given)
    if refused := _refused(plan, graph_module, given):
        return [*found, *refused]
    try:
        places = {part.name: part.device for part in plan.parts}
        graph_module, assignment = with_replicas(graph_module, assignment_of(plan.parts, graph_module, given), places)
    except PartitionError as error:
        return [
            *found,
            Violation("order", f"The parts of the plan stand in an order in which they cannot run: {error}."),
        ]
    except CycleError as error:
        return [*found, Violation("cycle", f"In the plan, {waiting(error, given)}", op=given.keys[error.path[0]])]
    return [*found, *_budgets(plan, graph_module, assignment, now)]


def missing_devices(plan: Plan, there: Collection[str], asked: Iterable[Device]) -> Iterator[Violation]:
    """Which of some devices of a plan it uses, though they are not there."""
    for device in asked:
        parts = [part.name for part in plan.parts if part.device == device.name]
        if parts and device.name not in there:
            yield Violation(
                "no device",
                f"The plan puts {listed(parts)} on {device.name}, which is not among the devices "
                f"{', '.join(there)}; add it, or place the model again.",
                device.name,
            )


def _devices(
    plan: Plan, devices: Topology | Iterable[Device] | None, on_this_machine: bool
) -> tuple[list[Violation], dict[str, Device]]:
    """The devices as they are now, by the names of the plan."""
    now = {device.name: device for device in (plan.devices if devices is None else Topology.of(devices).devices)}
    found: list[Violation] = []
    for device in plan.devices:
        parts = [part.name for part in plan.parts if part.device == device.name]
        found += missing_devices(plan, now, (device,))
        used = parts or device.name in now
        if used and (why := _why_no_torch_device(now.get(device.name, device), on_this_machine and bool(parts))):
            what = f"The plan runs {listed(parts)} on {device.name}, which is" if parts else f"{device.name} is"
            message = f"{what} the torch device {why}."
            found.append(Violation("no torch device", message, device.name))
    for device in now.values():
        if device.backend not in BACKENDS:
            message = f"{device.name} has the backend {device.backend!r}; there are {', '.join(BACKENDS)}."
            found.append(Violation("no backend", message, device.name))
    return found, {device.name: now.get(device.name, device) for device in plan.devices}


def _why_no_torch_device(device: Device, on_this_machine: bool) -> str:
    """What keeps a device from running anything, as the end of a sentence; "" if nothing does."""
    if not is_known(device.torch_device):
        return f"{device.torch_device!r}; torch knows none of that name"
    if on_this_machine and holds_no_data(device.torch_device):
        return f"{device.torch_device}; it holds no data and runs nothing"
    if on_this_machine and not is_here(device.torch_device):
        return f"{device.torch_device}; this machine has none"
    return ""


def _misfits(plan: Plan, given: Fit) -> list[Violation]:
    renames = guess_renames(plan.parts, given)
    if given.is_for_another_model and not renames:
        return [Violation("another model", misfit(plan.model, plan.parts, given))]
    found = []
    for module, keys in _homeless_by_module(given).items():
        message = f"{keys[0]} has no part; add it to one, or place again."
        if len(keys) > 1:
            where = f"module {module!r}" if module else "the model itself"
            message = (
                f"{len(keys)} operators of {where} have no part ({listed(keys)}); add them to one, or place again."
            )
        found.append(Violation("no part", message, op=keys[0]))
    for entry, part in given.unused:
        message = f"{part} names {entry}, which the model does not have; take it out, or place again."
        found.append(Violation("not there", message, op=entry))
    for entry, first, second in given.doubled:
        message = f"{entry} stands in two parts, {first} and {second}; take it out of one."
        found.append(Violation("two parts", message, op=entry))
    for about, tip in hints(plan.parts, given, renames).items() if found else ():
        at = next((at for at, violation in enumerate(found) if violation.op == about), 0)
        found[at] = attrs.evolve(found[at], message=f"{found[at].message[:-1]} ({tip}).")
    return found


def _changed(plan: Plan, keys: Mapping[Node, str]) -> Iterator[Violation]:
    """Lines for whole modules that have other operators than those that the plan was made for."""
    for difference in differences(plan.contents, contents_of(plan.parts, keys)):
        stands = "stands" if len(difference.lines) == 1 else "stand"
        yield Violation(
            "changed",
            f"{listed(difference.lines)} {stands} for other operators than when the plan was written: {difference}; "
            "place again, or follow the plan as it is and write it anew (place --plan FILE --out FILE).",
            op=difference.lines[0],
        )


def _homeless_by_module(given: Fit) -> dict[str, list[str]]:
    """The operators without a part, by the outermost modules (not the model itself) none of whose operators has one."""
    settled = {path for key in set(given.keys.values()).difference(given.homeless) for path in holders(path_in(key))}
    by_module: dict[str, list[str]] = {}
    for key in given.homeless:
        path = path_in(key)
        outermost = next((step for step in reversed(holders(path)) if step and step not in settled), path)
        by_module.setdefault(outermost, []).append(key)
    return by_module


def _unsupported(plan: Plan, graph_module: GraphModule, given: Fit, now: Mapping[str, Device]) -> list[Violation]:
    submodules = dict(graph_module.named_modules())
    device_of = {part.name: now[part.device] for part in plan.parts}
    found = []
    again = ((node, part) for part, nodes in given.again.items() for node in nodes)
    for node, part in (*given.part_of.items(), *again):
        device = device_of[part]
        if device.supports is not None and not runs_anywhere(node) and not device.runs(submodules, node):
            message = f"{device.name} does not support {given.keys[node]} ({node.target}); move it to another device."
            found.append(Violation("unsupported", message, device.name, given.keys[node]))
    return found


def _refused(plan: Plan, graph_module: GraphModule, given: Fit) -> list[Violation]:
    return [
        Violation(
            "again",
            f"{refused.part} computes {refused.name} again, but {refused.why}; take it out of `again`.",
            op=refused.name,
        )
        for refused in not_replicable(plan.parts, graph_module, given)
    ]


def _torn(plan: Plan, graph_module: GraphModule, given: Fit) -> list[Violation]:
    device_of = {part.name: part.device for part in plan.parts}
    home = {node: device_of[part] for node, part in given.part_of.items()}
    return [
        Violation(
            "torn apart",
            f"{given.keys[torn.first]} is on {home[torn.first]} and {given.keys[torn.second]} on {home[torn.second]}, "
            f"but {torn.why}; keep them on one device.",
            home[torn.second],
            given.keys[torn.second],
        )
        for torn in torn_apart(graph_module, home)
    ]


def _budgets(
    plan: Plan, graph_module: GraphModule, assignment: Assignment, now: Mapping[str, Device]
) -> list[Violation]:
    device_of = {part.name: now[part.device] for part in plan.parts}
    step = TrainingStep.if_any(graph_module, plan.training)
    course = ParameterUses.of(graph_module, assignment, device_of, step=step).course_with(plan.offloaded)
    over = [name for name in course.held if course.memory(name).peak > now[name].memory]
    keys = stable_keys(graph_module) if over else {}
    return [_over_budget(course, now[name], keys) for name in over]


def _over_budget(course: MemoryCourse, device: Device, keys: Mapping[Node, str]) -> Violation:
    held, budget = course.memory(device.name), device.memory
    position = course.fullest(device.name)
    at = course.node_at(position)
    where = f" at {keys[at]}{came_from(at)}" if at is not None else ""
    split = f"parameters {format_bytes(held.parameters)}, activations and copies {format_bytes(held.activations)}"
    if isinstance(course, TrainingCourse):
        where = f" {course.moment(position)}" + where.replace(" at ", " of ", 1)
        split = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in course.split(device.name).items() if size)
    return Violation(
        "budget",
        f"{device.name} holds {format_bytes(held.peak)}{where}, {format_bytes(held.peak - budget)} over its budget of "
        f"{format_bytes(budget)} ({split}).",
        device.name,
        keys[at] if at is not None else None,
        int(held.peak - budget),
    )
