"""The rows of a report about a lowered model that its graph tells: what crosses, and why."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule, Node

from fxpasses.devices import Topology
from fxpasses.passes.placement import COPY_OF
from fxpasses.report.summary import CopyRow

__all__ = ["copy_rows"]


def copy_rows(lowered: GraphModule, topology: Topology, planned: Iterable[CopyRow] = ()) -> tuple[CopyRow, ...]:
    """A row for each transfer: first of state that is shared by parts on one torch device, then as the graph runs.

    Args:
        lowered: The placed graph. It has no copy where state is there already, which other devices would be sent.
        topology: The devices and links.
        planned: What was expected to cross; these rows know the operators that use a value.
    """
    expected = {(row.value, row.source, row.target): row for row in planned}
    rows = []
    for node in lowered.graph.nodes:
        if not COPY_OF.has(node):
            continue
        sent = COPY_OF.read(node)
        name = _operator_name(lowered, node, sent.value)
        users = ", ".join(str(user.target) for user in node.users if user.op == "call_module")
        value = node.meta.get("val")
        rows.append(
            CopyRow(
                name,
                sent.source,
                sent.target,
                sent.size,
                "x".join(str(size) for size in getattr(value, "shape", ())),
                _transfer_seconds(topology, sent.source, sent.target, sent.size) * 1e3,
                row.why
                if (row := expected.pop((name, sent.source, sent.target), None))
                else (f"{users} uses it" if users else "the result is wanted there"),
            )
        )
    return (*expected.values(), *rows)


def _operator_name(lowered: GraphModule, copy: Node, name: str) -> str:
    """The operator whose value is sent, where that is the only result of a part."""
    sender = next((used for used in copy.all_input_nodes if used.name == name), None)
    if sender is None or sender.op != "call_module":
        return name
    part = lowered.get_submodule(str(sender.target))
    result = part.graph.output_node().args[0] if isinstance(part, GraphModule) else None
    return result.name if isinstance(result, Node) else name


def _transfer_seconds(topology: Topology, source: str, target: str, size: int) -> float:
    known = {device.name for device in topology.devices}
    if source not in known or target not in known:
        return 0.0
    return topology.seconds(source, target, size)
