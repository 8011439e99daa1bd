"""What an objective makes small, of parts as they run: links, shared parameters and memory as they are predicted."""

from __future__ import annotations

from typing import Literal

from fxpasses.devices import Topology
from fxpasses.partitioners.costs.device_times import makespan_of, times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.units import format_bytes, format_seconds

__all__ = ["Objective", "objective_text", "objective_value"]

Objective = Literal["latency", "throughput", "memory", "devices"]


def objective_text(objective: str, value: float) -> str:
    """What an objective makes small, in its unit.

    >>> objective_text("memory", 2048), objective_text("devices", 2.0), objective_text("latency", 0.002)
    ('2.00 KiB', '2 devices', '2.00 ms')
    """
    if objective == "devices":
        return f"{value:g} device{'' if value == 1 else 's'}"
    return format_bytes(value) if objective == "memory" else format_seconds(value)


def objective_value(
    figures: GraphFigures, topology: Topology, objective: Objective, runs: Runs, step: TrainingStep | None
) -> float:
    """Seconds of one sample (``latency``) or of the busiest device (``throughput``), bytes on the fullest one, devices.

    A problem for the solvers counts less memory than there is, and may hold a parameter where nobody uses it.
    """
    if objective == "memory":
        return float(check_budgets(figures, topology, runs, step, always=True).fullest)
    if objective == "devices":
        return float(len(set(runs.device_of.values())))
    device_of = runs.devices(topology)
    if objective == "latency":
        return makespan_of(figures, runs.assignment, device_of, topology)
    return max(times_of(figures, runs.assignment, device_of, topology)[1].values(), default=0.0)
