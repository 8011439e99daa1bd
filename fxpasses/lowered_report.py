"""The rows of a report about a lowered model: what each device holds and does, what crosses and why."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.memory import DeviceMemory
from fxpasses.partitioners.parameter_loads import LoadedMemory
from fxpasses.passes.placement import COPY_OF
from fxpasses.plan import Plan
from fxpasses.report.summary import CopyRow, DeviceRow

__all__ = ["copy_rows", "device_rows", "predicted_figures", "why_there"]


def device_rows(
    plan: Plan, nodes: Mapping[str, int], memory: Mapping[str, LoadedMemory], load: Mapping[str, float]
) -> tuple[DeviceRow, ...]:
    """A row for each device of a plan, used or not."""
    rows = []
    for device in plan.devices:
        parts = tuple(part.name for part in plan.parts if part.device == device.name)
        loads = memory.get(device.name, LoadedMemory(DeviceMemory()))
        held = loads.memory
        rows.append(
            DeviceRow(
                device.name,
                device.torch_device,
                sum(nodes.get(part, 0) for part in parts),
                held.parameters,
                held.activations,
                held.copies,
                loads.peak,
                device.available_mem_bytes,
                load.get(device.name, 0.0) * 1e3,
                parts,
                loads.loaded,
                loads.traffic,
            )
        )
    return tuple(rows)


def copy_rows(lowered: GraphModule, topology: Topology) -> tuple[CopyRow, ...]:
    """A row for each transfer of a placed graph, in execution order."""
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


def predicted_figures(row: DeviceRow) -> dict[str, float]:
    """What a plan file says about one device."""
    facts = {"seconds": row.estimated_ms / 1e3, "parameter_bytes": row.parameter_bytes, "peak_bytes": row.peak_bytes}
    if row.loaded_bytes:
        facts |= {"loaded_bytes": row.loaded_bytes, "traffic_bytes": row.traffic_bytes}
    return facts


def why_there(node: Node, assignment: Assignment, device_of: Mapping[str, Device], reasons: Mapping[str, str]) -> str:
    """Say in a sentence why an operator sits where it sits."""
    part = assignment.partition_of.get(node)
    if part is None:
        return f"outside of all parts: {assignment.why(node)}"
    reason = reasons.get(str(part))
    return f"{part} on {device_of[str(part)].name}" + (f": {reason}" if reason else "")
