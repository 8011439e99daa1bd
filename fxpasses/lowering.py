"""The main job: lower a model onto devices and get one callable ``GraphModule`` that runs there.

Capture with ``torch.export``, clean up with passes, decide which device runs what, split, move, copy, report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.attributes import find_attribute
from fxpasses.backends import compile_part
from fxpasses.capture import capture
from fxpasses.devices import Device, Link, Topology
from fxpasses.effects import analyze_effects
from fxpasses.errors import InputError
from fxpasses.input_contract import InputContract
from fxpasses.outline_plan import Policy
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.by_device import Objective, place_by_device, predict_times
from fxpasses.partitioners.memory import DeviceMemory, predict_memory
from fxpasses.pass_manager import PassManager
from fxpasses.passes.placement import COPY_OF, PlaceOnDevices
from fxpasses.passes.splitting import Split, split
from fxpasses.plan import Plan, stable_keys
from fxpasses.registry import parse_pipeline
from fxpasses.report.summary import CopyRow, DeviceRow, PassRow, StepRow, Summary
from fxpasses.verification import compare_with_model

__all__ = ["DEFAULT_PIPELINE", "LoweredModule", "lower", "lower_with_plan"]

DEFAULT_PIPELINE = "remove-detach,remove-no-ops,eliminate-dead-code"

Progress = Callable[[str], None]


class LoweredModule(GraphModule):
    """A model on its devices: call it like the model.

    Attributes:
        plan: Which operator runs where; a file when saved.
        report: What each pass did, and seconds and bytes per device.
        program: The captured program after the passes, before it was split.
        qualified_names: The model's own name of each parameter and buffer, by its name here.
        submodule_of: The submodule that holds each part of the plan.
    """

    plan: Plan
    report: Summary
    program: ExportedProgram
    qualified_names: Mapping[str, str]
    submodule_of: Mapping[str, str]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Parameters and buffers under the model's own names."""
        own = super().state_dict(*args, **kwargs)
        names = self.qualified_names
        renamed = type(own)((names.get(key, key), value) for key, value in own.items())
        if hasattr(own, "_metadata"):
            renamed._metadata = own._metadata
        return renamed

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a checkpoint of the model; its own names are expected."""
        own = super().state_dict()
        names = {key: self.qualified_names.get(key, key) for key in own}
        renamed = {key: state_dict[name] for key, name in names.items() if name in state_dict}
        renamed |= {key: value for key, value in state_dict.items() if key not in set(names.values())}
        return super().load_state_dict(renamed, strict=strict, assign=assign)


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
    devices: Iterable[Device] | Topology,
    links: Iterable[Link] = (),
    objective: Objective = "latency",
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
        devices: Where it may run; their memory is kept.
        links: Connections between devices; pairs without one use the default.
        objective: ``latency``, ``throughput`` or ``memory``.
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
        InfeasibleError: the model does not fit the devices.
    """
    topology = Topology.of(devices, links)
    clock = _Clock(progress)
    with clock.step("capture"):
        program = capture(model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    if args is not None or kwargs is not None:
        InputContract.of(program).bind(tuple(args or ()), dict(kwargs or {}))
    with clock.step("passes"):
        cleaned, rows = _run_passes(program, pipeline)
    with clock.step("place"):
        graph_module = _stateful(cleaned)
        placement = place_by_device(graph_module, topology, objective=objective)
        plan = Plan.of(name or _name_of(model), objective, topology, placement.assignment, placement.device_of)
    reasons = dict(placement.reasons)
    lowered = _build(cleaned, graph_module, placement.assignment, plan, clock, rows, reasons)
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
    why = {key: _why(node, assignment, device_of, reasons) for node, key in keys.items()}
    memory = predict_memory(graph_module, assignment, device_of)
    seconds, load = predict_times(graph_module, assignment, device_of, plan.topology)
    nodes = {str(part): len(members) for part, members in assignment.partitions.items()}
    with clock.step("split"):
        constants = _where_constants_live(graph_module, assignment, device_of)
        parts = split(graph_module, assignment, names=_attribute_name, constants=constants)
    with clock.step("move and copy"):
        by_submodule = {parts.part_names[part]: device_of[str(part)] for part in assignment.order}
        PlaceOnDevices(by_submodule)(parts.graph_module)
    lowered = _lowered_module(parts, program)
    compiled = {name: device.backend for name, device in by_submodule.items() if device.backend != "eager"}
    if compiled:
        with clock.step("compile"):
            for name, backend in compiled.items():
                compile_part(lowered, name, backend)
    copies = _copy_rows(lowered, plan.topology)
    rows = _device_rows(plan, nodes, memory, load)
    lowered.program = program
    lowered.plan = attrs.evolve(
        plan,
        copies=tuple(
            attrs.asdict(row, filter=lambda a, _v: a.name in ("value", "source", "target", "size")) for row in copies
        ),
        predicted={"seconds": seconds, "devices": {row.name: _predicted(row) for row in rows}},
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
    graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Device]
) -> Callable[[str, Any, Sequence[str]], Policy]:
    """A tensor that parts on several torch devices use stays one tensor: it is held at the top and copied in each run.

    So tied weights stay tied when they are trained. Parts on one torch device share the tensor itself.
    """
    used_on: dict[int, set[str]] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        value = find_attribute(graph_module, str(node.target)).value
        for user in node.users:
            if user in assignment.partition_of:
                device = device_of[str(assignment.partition_of[user])]
                used_on.setdefault(id(value), set()).add(device.torch_device)

    def policy(_name: str, value: Any, _parts: Sequence[str]) -> Policy:
        several = len(used_on.get(id(value), ())) > 1
        return "pass_in" if several and isinstance(value, torch.Tensor) else "share"

    return policy


def _attribute_name(part: object) -> str:
    """A part is held under its own name, unless every module has an attribute of that name (``cpu``, ``half``)."""
    return f"on_{part}" if hasattr(GraphModule, str(part)) else str(part)


def _predicted(row: DeviceRow) -> dict[str, float]:
    return {"seconds": row.estimated_ms / 1e3, "parameter_bytes": row.parameter_bytes, "peak_bytes": row.peak_bytes}


def _why(node: Node, assignment: Assignment, device_of: Mapping[str, Device], reasons: Mapping[str, str]) -> str:
    part = assignment.partition_of.get(node)
    if part is None:
        return f"outside of all parts: {assignment.why(node)}"
    reason = reasons.get(str(part))
    return f"{part} on {device_of[str(part)].name}" + (f": {reason}" if reason else "")


def _lowered_module(parts: Split, program: ExportedProgram) -> LoweredModule:
    placed = parts.graph_module
    lowered = LoweredModule(placed, placed.graph, "LoweredModule")
    _keep_persistence(placed, lowered)
    lowered.meta.update(placed.meta)
    lowered.qualified_names = parts.original_names
    lowered.submodule_of = {str(part): name for part, name in parts.part_names.items()}
    contract = InputContract.of(program)
    lowered.register_forward_pre_hook(lambda _module, args, kwargs: contract.bind(args, kwargs), with_kwargs=True)
    return lowered


def _keep_persistence(source: GraphModule, target: GraphModule) -> None:
    """``GraphModule(root, graph)`` registers every buffer as persistent; keep out of checkpoints what was out."""
    holders = dict(target.named_modules())
    for name, module in source.named_modules():
        if name in holders and (temporary := module._non_persistent_buffers_set):
            holders[name]._non_persistent_buffers_set |= temporary & set(holders[name]._buffers)


def _device_rows(
    plan: Plan, nodes: Mapping[str, int], memory: Mapping[str, DeviceMemory], load: Mapping[str, float]
) -> tuple[DeviceRow, ...]:
    rows = []
    for device in plan.devices:
        parts = tuple(part.name for part in plan.parts if part.device == device.name)
        held = memory.get(device.name, DeviceMemory())
        rows.append(
            DeviceRow(
                device.name,
                device.torch_device,
                sum(nodes.get(part, 0) for part in parts),
                held.parameters,
                held.activations,
                held.copies,
                held.peak,
                device.available_mem_bytes,
                load.get(device.name, 0.0) * 1e3,
                parts,
            )
        )
    return tuple(rows)


def _copy_rows(lowered: GraphModule, topology: Topology) -> tuple[CopyRow, ...]:
    rows = []
    for node in lowered.graph.nodes:
        if not COPY_OF.has(node):
            continue
        sent = COPY_OF.read(node)
        users = ", ".join(str(user.target) for user in node.users if user.op == "call_module")
        value = node.meta.get("val")
        rows.append(
            CopyRow(
                sent.value,
                sent.source,
                sent.target,
                sent.size,
                "x".join(str(size) for size in getattr(value, "shape", ())),
                _transfer_seconds(topology, sent.source, sent.target, sent.size) * 1e3,
                f"{users} uses it" if users else "the result is wanted there",
            )
        )
    return tuple(rows)


def _transfer_seconds(topology: Topology, source: str, target: str, size: int) -> float:
    known = {device.name for device in topology.devices}
    if source not in known or target not in known:
        return 0.0
    return topology.seconds(source, target, size)
