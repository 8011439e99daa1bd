"""The main job: lower a model onto devices and get one callable ``GraphModule`` that runs there.

Capture with ``torch.export``, clean up with passes, decide which device runs what, split, move, copy, report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.attributes import find_attribute
from fxpasses.backends import compile_part
from fxpasses.capture import capture
from fxpasses.devices import Device, Link, Topology
from fxpasses.effects import analyze_effects
from fxpasses.errors import InputError
from fxpasses.input_contract import InputContract
from fxpasses.lowered_module import LoweredModule, lowered_module
from fxpasses.lowered_report import copy_rows, device_rows, predicted_figures, why_there
from fxpasses.model_placement import check_offload, module_paths, propose
from fxpasses.outline_plan import Policy
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.by_device import Objective, predict_times
from fxpasses.partitioners.by_device_map import devices_of_map
from fxpasses.partitioners.device_maps import DeviceMap
from fxpasses.partitioners.offloading import OffloadedPlacement
from fxpasses.partitioners.parameter_loads import LoadedMemory, ParameterUses
from fxpasses.pass_manager import PassManager
from fxpasses.passes.placement import PlaceOnDevices
from fxpasses.passes.splitting import split
from fxpasses.plan import Plan, stable_keys
from fxpasses.registry import parse_pipeline
from fxpasses.report.summary import PassRow, StepRow, Summary
from fxpasses.verification import compare_with_model

__all__ = ["DEFAULT_PIPELINE", "LoweredModule", "lower", "lower_with_plan"]

DEFAULT_PIPELINE = "remove-detach,remove-no-ops,eliminate-dead-code"

Progress = Callable[[str], None]


@attrs.define
class _Clock:
    """The steps so far; tells whoever watches when one begins."""

    progress: Progress | None
    rows: list[StepRow] = attrs.field(factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        if self.progress is not None:
            self.progress(name)
        begin = time.perf_counter()
        yield
        self.rows.append(StepRow(name, time.perf_counter() - begin))


def lower(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: Iterable[Device] | Topology | None = None,
    links: Iterable[Link] = (),
    objective: Objective = "latency",
    device_map: DeviceMap | None = None,
    offload: str | None = None,
    pipeline: str | PassManager | Sequence[Any] = DEFAULT_PIPELINE,
    dynamic_shapes: Any = None,
    strict: bool = False,
    check: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
) -> LoweredModule:
    """Lower a model onto devices.

    Args:
        model: An ``nn.Module``, any ``GraphModule``, an ``ExportedProgram``, or the path of a saved one.
        args: Example inputs; not needed for a program.
        kwargs: Example keyword inputs.
        devices: Where it may run; their memory is kept. May be left out where a device map names torch devices.
        links: Connections between devices; pairs without one use the default.
        objective: ``latency``, ``throughput`` or ``memory``.
        device_map: Which module runs where, as Hugging Face writes it: module path to the name of a device, a torch
            device, or the number of a GPU. The longest path that covers an operator counts. Nothing is searched then.
        offload: ``"cpu"`` lets parameters stay in main memory where the devices are too small: some parts then load
            theirs in each run, one part ahead. Nothing changes where the model fits.
        pipeline: The clean-up passes: a text, a manager, or a list of passes.
        dynamic_shapes: Which sizes may change, as ``torch.export.export`` takes them.
        strict: Capture by bytecode instead of by running.
        check: Compare the result with the model on the example inputs.
        name: What plans and reports call the model; by default its class.
        progress: Called with the name of each step when it begins.

    Returns:
        One callable module with ``plan`` and ``report``. The model's own tensors are used where they already are on
        the right device; buffers that the model writes to are copied, so the two never disturb each other.

    Raises:
        InputError: no device, two of one name, missing or unfitting inputs.
        CaptureError: torch cannot export the model.
        PipelineError: the pipeline cannot work.
        PlacementError: the device map names a module or a device that is not there, or misses modules.
        InfeasibleError: the model does not fit the devices.
    """
    if devices is None:
        devices = () if device_map is None else devices_of_map(device_map)
    topology = Topology.of(devices, links)
    check_offload(offload)
    clock = _Clock(progress)
    with clock.step("capture"):
        program = capture(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    if args is not None or kwargs is not None:
        InputContract.of(program).bind(tuple(args or ()), dict(kwargs or {}))
    with clock.step("passes"):
        cleaned, rows = _run_passes(program, pipeline)
    with clock.step("place"):
        graph_module = _stateful(cleaned)
        modules = module_paths(model, program)
        found = propose(graph_module, topology, objective, device_map=device_map, modules=modules, offload=offload)
        plan = _plan(name or _name_of(model), found, pipeline)
    placement = found.placement
    lowered = _build(cleaned, graph_module, placement.assignment, plan, clock, rows, dict(placement.reasons))
    if check:
        with clock.step("check"):
            verdict = compare_with_model(model, program, lowered, args, kwargs)
        lowered.report = attrs.evolve(lowered.report, check=verdict, steps=tuple(clock.rows))
    return lowered


def lower_with_plan(program: ExportedProgram, plan: Plan, *, progress: Progress | None = None) -> LoweredModule:
    """Replay a plan on a program: no passes, no search.

    Args:
        program: The program the plan was made for, or the same model exported again.
        plan: Which operator runs where.
        progress: Called with the name of each step when it begins.

    Raises:
        PlanError: the plan does not fit the program.
    """
    clock = _Clock(progress)
    with clock.step("place"):
        graph_module = _stateful(program)
        assignment = plan.assign(graph_module)
    return _build(program, graph_module, assignment, plan, clock, (), {})


def _plan(name: str, found: OffloadedPlacement, pipeline: Any) -> Plan:
    placed = found.placement
    plan = Plan.of(
        name, placed.objective, placed.topology, placed.assignment, placed.device_of, offloaded=found.offloaded
    )
    text = pipeline if isinstance(pipeline, str) else None
    return attrs.evolve(plan, pipeline=text, contiguity=placed.contiguity)


def _name_of(model: Any) -> str:
    if isinstance(model, ExportedProgram):
        stack = model.module_call_graph[0].fqn
        return stack or "program"
    return model if isinstance(model, str) else type(model).__name__


def _run_passes(program: ExportedProgram, pipeline: Any) -> tuple[ExportedProgram, tuple[PassRow, ...]]:
    manager = _manager(pipeline)
    result = manager(program)
    cleaned = result.exported_program or program
    rows = tuple(
        PassRow(
            record.name,
            record.seconds,
            record.nodes_before,
            record.nodes_after,
            record.skipped or (str(record.edits) if record.modified else "nothing"),
        )
        for record in result.records
    )
    return cleaned, rows


def _manager(pipeline: Any) -> PassManager:
    if isinstance(pipeline, PassManager):
        return pipeline
    if isinstance(pipeline, str):
        manager: PassManager = parse_pipeline(pipeline)
        manager.run_checks_after_each_pass = True
        return manager
    if isinstance(pipeline, Sequence):
        return PassManager(list(pipeline), run_checks_after_each_pass=True)
    raise InputError(f"A pipeline is a text, a PassManager or a list of passes, not {type(pipeline).__name__}.")


def _stateful(program: ExportedProgram) -> GraphModule:
    """The program as a module that holds its state; buffers that it writes to are its own copies."""
    graph_module = program.module(check_guards=False)
    graph_module._forward_pre_hooks.clear()
    graph_module._forward_pre_hooks_with_kwargs.clear()
    effects = analyze_effects(graph_module)
    written = {storage for node in graph_module.graph.nodes for storage in effects.of(node).writes}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        if written.intersection(effects.storages(node)):
            _own_buffer(graph_module, str(node.target))
    return graph_module


def _own_buffer(graph_module: GraphModule, target: str) -> None:
    path, _, leaf = target.rpartition(".")
    holder = graph_module.get_submodule(path)
    value = getattr(holder, leaf)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        setattr(holder, leaf, value.detach().clone())


def _build(
    program: ExportedProgram,
    graph_module: GraphModule,
    assignment: Assignment,
    plan: Plan,
    clock: _Clock,
    passes: Sequence[PassRow],
    reasons: Mapping[str, str],
) -> LoweredModule:
    """Split, place and describe; the one way from an assignment to a lowered module."""
    device_of = plan.device_of
    keys = stable_keys(graph_module)
    why = {key: why_there(node, assignment, device_of, reasons) for node, key in keys.items()}
    offloaded = tuple(part.name for part in plan.parts if part.offload is not None)
    uses = ParameterUses.of(graph_module, assignment, device_of)
    memory = uses.memory(offloaded)
    seconds, load = predict_times(graph_module, assignment, device_of, plan.topology)
    seconds += sum(uses.load_seconds(offloaded).values())
    nodes = {str(part): len(members) for part, members in assignment.partitions.items()}
    with clock.step("split"):
        constants = _where_constants_live(graph_module, assignment, device_of, uses.loaded_tensors(offloaded))
        parts = split(graph_module, assignment, names=_attribute_name, constants=constants)
    with clock.step("move and copy"):
        by_submodule = {parts.part_names[part]: device_of[str(part)] for part in assignment.order}
        submodules = tuple(parts.part_names[part] for part in assignment.order if str(part) in offloaded)
        PlaceOnDevices(by_submodule, offloaded=submodules, spare_bytes=_spare(memory, plan))(parts.graph_module)
    lowered = lowered_module(parts, program, offloads=bool(offloaded))
    compiled = {name: device.backend for name, device in by_submodule.items() if device.backend != "eager"}
    if compiled:
        with clock.step("compile"):
            for name, backend in compiled.items():
                compile_part(lowered, name, backend)
    copies = copy_rows(lowered, plan.topology)
    rows = device_rows(plan, nodes, memory, load)
    lowered.program = program
    lowered.plan = attrs.evolve(
        plan,
        copies=tuple(
            attrs.asdict(row, filter=lambda a, _v: a.name in ("value", "source", "target", "size")) for row in copies
        ),
        predicted={"seconds": seconds, "devices": {row.name: predicted_figures(row) for row in rows}},
    )
    lowered.report = Summary(
        plan.model,
        plan.objective,
        sum(nodes.values()),
        tuple(clock.rows),
        tuple(passes),
        rows,
        copies,
        seconds * 1e3,
        None,
        why,
    )
    return lowered


def _where_constants_live(
    graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Device], loaded: Container[int]
) -> Callable[[str, Any, Sequence[str]], Policy]:
    """A tensor that parts on several torch devices use stays one tensor: it is held at the top and copied in each run.

    So tied weights stay tied when they are trained. Parts on one torch device share the tensor itself; constants of the
    program, which nobody can change, are on each device. What offloaded parts load is held at the top, too.
    """
    effects = analyze_effects(graph_module)
    used_on: dict[int, set[str]] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        attribute = find_attribute(graph_module, str(node.target))
        value = attribute.value
        if attribute.kind == "constant" and effects.written_storages.isdisjoint(effects.storages(node)):
            continue
        for user in node.users:
            if user in assignment.partition_of:
                device = device_of[str(assignment.partition_of[user])]
                used_on.setdefault(id(value), set()).add(device.torch_device)

    def policy(_name: str, value: Any, _parts: Sequence[str]) -> Policy:
        is_passed = len(used_on.get(id(value), ())) > 1 or id(value) in loaded
        return "pass_in" if is_passed and isinstance(value, torch.Tensor) else "share"

    return policy


def _spare(memory: Mapping[str, LoadedMemory], plan: Plan) -> dict[str, float]:
    """What each device has left at its fullest, for copies that start early."""
    return {name: device.memory - memory[name].peak for name in memory for device in [plan.topology[name]]}


def _attribute_name(part: object) -> str:
    """A part is held under its own name, unless every module has an attribute of that name (``cpu``, ``half``)."""
    return f"on_{part}" if hasattr(GraphModule, str(part)) else str(part)
