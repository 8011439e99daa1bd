"""Say why a placement is as it is, part by part, and why there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch.fx import Node

from fxpasses.devices import Device, Topology
from fxpasses.errors import InfeasibleError, user_line
from fxpasses.outlining.regions import is_region
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.graph_figures import GraphFigures, Support, value_bytes
from fxpasses.partitioners.placing.names.module_origins import has_body, in_words
from fxpasses.partitioners.placing.worthwhile_cuts import is_worth_cutting
from fxpasses.units import format_bytes, format_seconds
from fxpasses.wording import listed

__all__ = [
    "NONE_FOUND",
    "ONE_OPERATOR",
    "TOO_LARGE_TOGETHER",
    "alone_reason",
    "does_not_fit",
    "reasons_of",
    "refuse_impossible",
    "replica_reason",
]

ONE_OPERATOR = "a single op is too large for every device"
"""The reason of an error that is about one operator, whatever is done with the others."""

BESIDE_UNREAD = "the first op is too large for every device beside what no operator reads"
"""The same of the operator that counts with what no operator reads, but for which there is room."""

NONE_FOUND = "no placement was found"
"""The reason of an error that proves nothing."""

TOO_LARGE_TOGETHER = "the model is too large for all devices together"
"""The reason of an error that no way to divide the model helps."""


def refuse_impossible(figures: GraphFigures, topology: Topology, supports: Support | None) -> bool:
    """Refuse what no search is needed for; gives whether every device can run every node.

    Raises:
        InfeasibleError: an op that no device supports, or that is too large for every device that does.
    """
    memory = {device.name: device.memory for device in topology.devices}
    everywhere = True
    for index, (node, seconds) in enumerate(
        zip(figures.nodes, figures.seconds(topology.devices, supports), strict=True)
    ):
        if not seconds:
            raise InfeasibleError(
                f"No device supports {in_words(node)}; allow it on one of {', '.join(memory)}, or add a device that "
                "runs everything.",
                node=node,
            )
        everywhere &= len(seconds) == len(memory)
        need, largest = figures.bytes_needed(index), max(memory[name] for name in seconds)
        if need > largest:
            raise _too_large(figures, index, largest)
    return everywhere


def _too_large(figures: GraphFigures, index: int, largest: float) -> InfeasibleError:
    node, need, inside = figures.nodes[index], figures.bytes_needed(index), int(figures.inside[index])
    line, reason = user_line(node), ONE_OPERATOR
    if figures.trained:
        what = "its parameters, what the optimizer keeps, and what it saves"
    else:
        what = "what it reads and makes"
    if inside:
        what += f" ({format_bytes(inside)} of it only while it runs)"
    if index == 0 and figures.unread_bytes:
        what += f", and {format_bytes(figures.unread_bytes)} of parameters and buffers that no operator reads"
        reason = BESIDE_UNREAD if need - figures.unread_bytes <= largest else reason
    return InfeasibleError(
        f"{node.name} ({node.target}) needs {format_bytes(need)} on one device for {what}, "
        f"but the largest device that can run it has {format_bytes(largest)}: {format_bytes(need - largest)} "
        "are missing" + (f"; it comes from {line}." if line else ".") + _why_uncut(node),
        node=node,
        missing_bytes=int(need - largest),
        reason=reason,
    )


def _why_uncut(node: Node) -> str:
    """Why a node that holds operators is one operator, and what to do; "" for a node that holds none."""
    if not has_body(node):
        return ""
    name = str(node.target)
    if is_region(node) and is_worth_cutting(node):
        return (
            f" {name} is one operator because torch.export makes one of all that runs under autocast or a grad mode; "
            "lower() and place() take it apart, and so does OpenRegions() before any other placement."
        )
    return (
        f" {name} is one operator with all that its body runs, which is never cut: take layers out of the body, or "
        "give it a device that holds all of it."
    )


def does_not_fit(figures: GraphFigures, topology: Topology, cause: InfeasibleError, kind: str) -> InfeasibleError:
    """The model is too large: for all devices together, or for every way to divide it.

    Where more memory would not help, the cause is returned as it is.
    """
    if cause.missing_bytes is None:
        return cause
    need = figures.bytes_of(range(len(figures.nodes)))
    have = sum(device.memory for device in topology.devices)
    budgets = ", ".join(f"{device.name} {format_bytes(device.memory)}" for device in topology.devices)
    if need > have:
        node, told = cause.node, cause.first or str(cause)
        first = f"{node.name} ({node.target}) is the first operator that does not fit." if node else told
        what = "parameters, buffers and the largest set of live activations"
        if figures.trained:
            what = "parameters, buffers, what the optimizer keeps, and what the forward saves for the backward"
        return InfeasibleError(
            f"The model needs {format_bytes(need)} ({what}), but "
            f"all devices together have {format_bytes(have)} ({budgets}): {format_bytes(need - have)} are missing. "
            f"{first}".rstrip(),
            node=node,
            missing_bytes=int(need - have),
            reason=TOO_LARGE_TOGETHER,
        )
    what = "cut into runs of consecutive operators" if kind == "pipeline" else "placement"
    return InfeasibleError(
        f"The model needs {format_bytes(need)} and all devices together have {format_bytes(have)} ({budgets}), but no "
        f"{what} keeps every budget; give one device more memory. {cause}".rstrip(),
        node=cause.node,
        missing_bytes=cause.missing_bytes,
        reason="no placement keeps every budget",
    )


def alone_reason(device: Device, others: int, bound: float, is_optimal: bool) -> str:
    """Why a device runs a whole model alone, for latency, without a search."""
    if not others:
        return f"the whole model fits {device.name}, the only device"
    fits = f"the whole model fits {device.name}, the fastest device that holds it"
    if is_optimal:
        return f"{fits}, and no other choice has a smaller latency"
    return (
        f"{fits}; parts on several devices were not tried: they are quicker only where branches run side by side, in "
        f'{format_seconds(bound)} at best; contiguity="free" tries them'
    )


def reasons_of(
    assignment: Assignment,
    device_of: Mapping[str, Device],
    whole: int,
    objective: str,
    is_optimal: bool,
) -> Iterator[str]:
    """A sentence for each part: what forced it, or what it saves, and where it ends.

    Args:
        assignment: The parts.
        device_of: The device of each.
        whole: The bytes that one device would need for all of them.
        objective: What was made small.
        is_optimal: Whether nothing can be smaller.
    """
    parts = [str(part) for part in assignment.order]
    for index, part in enumerate(parts):
        device = device_of[part]
        ending = _ending(assignment, parts[index:], device_of)
        if len(parts) == 1:
            rest = "no other choice has" if is_optimal else "no choice was found that has"
            yield f"the whole model fits {device.name}, and {rest} a smaller {objective}"
        elif whole > device.memory:
            yield f"the whole model ({format_bytes(whole)}) does not fit {device.name}; {ending}"
        else:
            yield f"{device.name} runs these operators for the smallest {objective}; {ending}"


def _ending(assignment: Assignment, parts: Sequence[str], device_of: Mapping[str, Device]) -> str:
    if len(parts) == 1:
        return "it ends with the model"
    following, home = assignment.partitions[parts[1]][0], device_of[parts[0]].name
    users = (
        (node, assignment.partition_of.get(user)) for node in assignment.partitions[parts[0]] for user in node.users
    )
    sent = dict.fromkeys(node for node, part in users if part is not None and device_of[str(part)].name != home)
    return f"it ends before {following.name}, where {format_bytes(sum(map(value_bytes, sent)))} cross"


def replica_reason(nodes: Sequence[Node], saved: int) -> str:
    """Why a part computes operators of others again."""
    less = f", so that {format_bytes(saved)} less are sent there" if saved > 0 else ""
    return f"it computes {listed(node.name for node in nodes)} again{less}"
