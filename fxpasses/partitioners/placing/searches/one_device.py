"""The whole model on one device, where one holds it: nothing is sent then, and nothing waits."""

from __future__ import annotations

from fxpasses.partitioners.costs.device_times import critical_path
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.names.selectors import select
from fxpasses.partitioners.placing.requests import Request

__all__ = ["is_fastest_everywhere", "on_one_device"]


def on_one_device(figures: GraphFigures, request: Request) -> Found | None:
    """Everything on the fastest device that can run and hold it, if there is one and nothing says otherwise."""
    for selector in (selector for group in request.colocate for selector in group):
        select(figures, selector, "colocate")  # kept anyway, but a slip is told
    if request.pinned or request.forbidden or not figures.nodes:
        return None
    times = list(figures.seconds(request.topology.devices, request.supports))
    total = {
        device.name: sum(row[device.name] for row in times)
        for device in request.topology.devices
        if all(device.name in row for row in times)
    }
    for name in sorted(total, key=total.__getitem__):  # sorted() is stable: of equal ones the first
        homes = dict.fromkeys(figures.nodes, name)
        runs = runs_of(figures.graph_module, homes, figures.dependencies)
        if not check_budgets(figures, request.topology, runs, request.training).over:
            return Found(runs, "pipeline", total[name], min(total[name], critical_path(figures, request.topology)))
    return None


def is_fastest_everywhere(figures: GraphFigures, request: Request, alone: Found) -> bool:
    """Whether no device is faster at any operator than the one that has them all."""
    (name,) = alone.runs.device_of.values()
    return all(row[name] <= min(row.values()) for row in figures.seconds(request.topology.devices, request.supports))
