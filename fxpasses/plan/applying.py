"""Apply a plan to a graph: the assignment that it describes, or what keeps it from being one."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from fxpasses.errors import CycleError, PartitionError, PlanError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.plan.explaining import misfit, waiting
from fxpasses.plan.faults import not_replicable, torn_apart
from fxpasses.plan.fitting import Fit, fit
from fxpasses.plan.keys import stable_keys
from fxpasses.plan.parts import PartPlan

__all__ = ["apply_parts", "assignment_of"]


def apply_parts(model: str, parts: Sequence[PartPlan], graph_module: GraphModule) -> Assignment:
    """Give each operator of a graph the part that names it.

    Args:
        model: What messages call the model of the plan.
        parts: The parts of a plan, in execution order.
        graph_module: The model, exported again or the same.

    Raises:
        PlanError: an operator has no part, or the parts name what is not there; a part tears apart what must stay
            together, or must not compute again what it shall; parts would wait for each other, or stand in an order in
            which they cannot run.
    """
    given = fit(parts, stable_keys(graph_module))
    if not given.is_complete:
        node = next((node for node, key in given.keys.items() if key in given.homeless), None)
        raise PlanError(misfit(model, parts, given), node=node)
    device_of = {part.name: part.device for part in parts}
    home = {node: device_of[part] for node, part in given.part_of.items()}
    for torn in torn_apart(graph_module, home):
        raise PlanError(
            f"The plan for {model} puts {given.keys[torn.first]} on {home[torn.first]} and "
            f"{given.keys[torn.second]} on {home[torn.second]}, but {torn.why}; keep them on one device.",
            node=torn.second,
        )
    for refused in not_replicable(parts, graph_module, given):
        raise PlanError(
            f"The plan for {model} lets {refused.part} compute {refused.name} again, but {refused.why}; "
            "take it out of `again`.",
            node=refused.node,
        )
    try:
        return assignment_of(parts, graph_module, given)
    except PartitionError as error:
        raise PlanError(
            f"The parts of the plan for {model} stand in an order in which they cannot run: {error}."
        ) from error
    except CycleError as error:
        raise PlanError(f"In the plan for {model}, {waiting(error, given)}", node=error.path[0]) from error


def assignment_of(parts: Sequence[PartPlan], graph_module: GraphModule, given: Fit) -> Assignment:
    """Make a fit without gaps an Assignment, parts in the order of the plan.

    Raises:
        PartitionError: the parts stand in an order in which they cannot run.
        CycleError: parts would wait for each other.
    """
    used = set(given.part_of.values())
    order = [part.name for part in parts if part.name in used]
    return Assignment.of(graph_module, given.part_of, order=order, replicas=given.again)
