"""The rows of a report about a lowered model that its graph tells: what really crosses, and why."""

from __future__ import annotations

from torch.fx import GraphModule

from fxpasses.devices import Topology
from fxpasses.passes.placement import COPY_OF
from fxpasses.report.summary import CopyRow

__all__ = ["copy_rows"]


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
