"""What a lowering did, as plain values: the one source of the terminal tables, the JSON and the HTML page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import attrs

from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.placing.objective_values import objective_text
from fxpasses.partitioners.solvers.gaps import gap_above
from fxpasses.simulation.advice import Advice
from fxpasses.timeline import Timeline
from fxpasses.units import format_bytes, format_percent, format_seconds
from fxpasses.wording import listed

__all__ = ["CheckRow", "CopyRow", "DeviceRow", "PassRow", "PathRow", "ReplicaRow", "StepRow", "Summary"]


@attrs.frozen
class StepRow:
    """One step of the main job and how many seconds it took."""

    name: str
    seconds: float


@attrs.frozen
class PassRow:
    """One pass: seconds, nodes before and after, and what changed in words."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int
    changed: str


@attrs.frozen
class DeviceRow:
    """One device: what it runs and holds.

    Args:
        name: The device.
        torch_device: Where its tensors are.
        nodes: Operators it runs.
        parameter_bytes: Parameters, buffers and constants on it.
        activation_bytes: Most bytes of activations and received copies at one time; in training those at the moment at
            which most is held, saved ones included.
        copy_bytes: Most bytes at one time of what it received: copies, and inputs of the model.
        peak_bytes: What has to fit the budget.
        budget_bytes: The budget; None for no limit.
        estimated_ms: Its load: predicted milliseconds of one run for its operators, for each value that enters it, each
            value that leaves it (once, over the slowest link that it takes), and each parameter that it loads.
        parts: The parts it runs, in execution order.
        loaded_bytes: Most bytes of offloaded parameters on it at one time; the peak counts them.
        traffic_bytes: Bytes of parameters that it loads in one run; in a training step those that it loads again for
            the backward, and gradients that it sends back, count as well.
        state_bytes: Of the parameters, those that are buffers and constants.
        peak_copy_bytes: What it received at the moment at which most is held.
        peak_op: The operator at which most is held.
        loading_ms: Of its load, the milliseconds that this traffic takes.
        peak_when: In training, in what of the step that is.
        gradient_bytes: Gradients of parameters at that moment.
        optimizer_bytes: What the optimizer keeps, and makes while it steps, at that moment.
        saved_bytes: Of the activations, those that the device made itself and keeps for the backward.
        most_saved_bytes: The most that it so keeps at any one time of the step.
        idle_ms: Milliseconds in which it does nothing: of one run, or for ``throughput`` of the busiest device's time.
    """

    name: str
    torch_device: str
    nodes: int
    parameter_bytes: int
    activation_bytes: int
    copy_bytes: int
    peak_bytes: int
    budget_bytes: int | None
    estimated_ms: float
    parts: tuple[str, ...]
    loaded_bytes: int = 0
    traffic_bytes: int = 0
    state_bytes: int = 0
    peak_copy_bytes: int = 0
    peak_op: str = ""
    idle_ms: float = 0.0
    loading_ms: float = 0.0
    peak_when: str = ""
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    saved_bytes: int = 0
    most_saved_bytes: int = 0

    @property
    def own_bytes(self) -> int:
        """Activations that the device made itself and does not keep for a backward, when most is held."""
        return self.activation_bytes - self.peak_copy_bytes - self.saved_bytes


@attrs.frozen
class PathRow:
    """One step of the critical path.

    Args:
        name: The part, the value that is copied, or the parameter that is loaded.
        kind: ``compute``, ``copy`` or ``load``; in training ``forward``, ``backward``, ``copy`` or ``gradient``.
        where: The device, or the two ends of the link.
        start_ms: When it begins.
        estimated_ms: How long it takes.
        waited_for: What it had to wait for.
        heaviest: The operators in it that take longest, with their milliseconds.
    """

    name: str
    kind: str
    where: str
    start_ms: float
    estimated_ms: float
    waited_for: str
    heaviest: tuple[tuple[str, float], ...] = ()


@attrs.frozen
class CopyRow:
    """One value that crosses: which, from where to where, its bytes, its shape, predicted milliseconds, and why."""

    value: str
    source: str
    target: str
    size: int
    shape: str
    estimated_ms: float
    why: str


@attrs.frozen
class ReplicaRow:
    """What a part computes again instead of having it sent.

    Args:
        part: The part.
        device: Its device.
        ops: The operators, by their keys.
        estimated_ms: Predicted milliseconds that this takes.
        saved_bytes: Bytes that cross less in one run; told with the first such part of a device.
    """

    part: str
    device: str
    ops: tuple[str, ...]
    estimated_ms: float
    saved_bytes: int

    def sentence(self) -> str:
        """What and why, in words."""
        less = f", so that {format_bytes(self.saved_bytes)} less are sent there" if self.saved_bytes > 0 else ""
        took = format_seconds(self.estimated_ms / 1e3)
        return f"{self.part} on {self.device} computes {listed(self.ops)} again ({took}){less}."


@attrs.frozen
class CheckRow:
    """The comparison with the model itself: whether outputs agree, the largest difference, and what buffers differ."""

    ok: bool
    exact: bool
    tensors: int
    max_difference: float
    tolerance: str
    stale: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The result in words."""
        if self.exact:
            return f"equal to the model itself, bit by bit ({self.tensors} tensors)"
        if self.stale:
            return (
                f"NOT equal to the model itself: a run leaves something else in {', '.join(map(repr, self.stale))}; "
                f"let forward write in place, as in self.{self.stale[0].rpartition('.')[2]}.copy_(...)"
            )
        verdict = "equal" if self.ok else "NOT equal"
        return f"{verdict} to the model itself within {self.tolerance}; largest difference {self.max_difference:.3g}"


_BETTER = {
    "latency": "is quicker",
    "throughput": "has a less busy busiest device",
    "memory": "has a less full fullest device",
    "devices": "needs fewer devices",
}

_CROWDED = {
    "latency": ("Where devices work at the same time", "where they take turns"),
    "throughput": ("While several samples are on their way", "for one at a time"),
}
"""Of runs that need more memory than budgets are kept for: when they do, and when budgets are kept."""


@attrs.frozen
class Summary:
    """A whole lowering.

    Args:
        model: What the model is called.
        objective: What was made small.
        nodes: Operators of the lowered graph.
        steps: The main job, step by step.
        passes: Each pass.
        devices: Each device.
        copies: Each transfer of one run.
        estimated_ms: Predicted milliseconds of one run.
        check: The comparison with the model, if it was asked for.
        reasons: Why each operator sits where it sits: part, device and reason by operator key.
        path: What determines the time of one run, step by step, where devices work at the same time.
        objective_value: The objective of the placement: seconds, bytes or devices; None where it is not known.
        bound: No placement of this kind has a smaller objective; None where it is not known.
        bound_once: The same of placements that compute nothing again, where this one does and they are worse.
        advice: What would help most, if somebody asked.
        timeline: One run on paper (several samples for ``throughput``).
        replicas: What parts compute again instead of having it sent.
        training: For which training; None for running the model.
    """

    model: str
    objective: str
    nodes: int
    steps: tuple[StepRow, ...]
    passes: tuple[PassRow, ...]
    devices: tuple[DeviceRow, ...]
    copies: tuple[CopyRow, ...]
    estimated_ms: float
    check: CheckRow | None = None
    reasons: Mapping[str, str] = attrs.field(factory=dict)
    path: tuple[PathRow, ...] = ()
    objective_value: float | None = None
    bound: float | None = None
    bound_once: float | None = None
    advice: tuple[Advice, ...] | None = None
    timeline: Timeline | None = attrs.field(default=None, eq=False, repr=False)
    replicas: tuple[ReplicaRow, ...] = ()
    training: Training | None = None

    def __str__(self) -> str:
        """The tables that ``fxpasses place`` prints, 120 columns wide."""
        from fxpasses.report.tables import summary_text

        return summary_text(self)

    @property
    def run(self) -> str:
        """What takes the predicted time, in words."""
        return "run" if self.training is None else "training step"

    @property
    def gap(self) -> float | None:
        """How far above the bound the placement is at most, as a share of it; None where that is not known."""
        if self.bound is None or self.objective_value is None:
            return None
        gap = gap_above(self.objective_value, self.bound)
        return gap if math.isfinite(gap) else None

    def optimality(self) -> str:
        """What is known about better placements, in words."""
        gap, bound, value = self.gap, self.bound, self.objective_value
        if gap is None or bound is None or value is None:
            return "How far it is from the best placement is not known."
        if gap <= 1e-9:
            return f"Proven optimal: no placement of this kind {_BETTER.get(self.objective, 'is better')}."
        once = "" if self.bound_once is None else objective_text(self.objective, self.bound_once)
        return (
            f"No placement of this kind can be below {objective_text(self.objective, bound)}; this one has "
            f"{objective_text(self.objective, value)}, {format_percent(gap)} more."
            + f" None that computes nothing again can be below {once}."
            * bool(once)
        )

    def crowded(self) -> list[str]:
        """Which devices hold more than their budget in the run that is counted on, in words.

        Budgets are kept by one sample at a time, whose parts and copies follow each other.
        """
        if self.timeline is None or self.objective not in _CROWDED or self.training is not None:
            return []
        when, kept = _CROWDED[self.objective]
        peaks = [(row, self.timeline.peak(row.name)) for row in self.devices]
        return [
            f"{when}, {row.name} holds {format_bytes(peak)} of its "
            f"{format_bytes(row.budget_bytes)}: budgets are kept {kept}; give it "
            f"{format_bytes(peak - row.budget_bytes)} more."
            for row, peak in peaks
            if row.budget_bytes is not None and peak > row.budget_bytes
        ]

    def reason_runs(self) -> list[tuple[list[str], str]]:
        """Why operators sit where they sit: those that follow each other with one sentence are one entry."""
        runs = itertools.groupby(self.reasons.items(), key=lambda entry: entry[1])
        return [([key for key, _ in group], why) for why, group in runs]

    def path_steps(self) -> list[PathRow]:
        """The critical path with copies or loads that follow each other on one link as one step."""
        steps: list[PathRow] = []
        for (kind, where), group in itertools.groupby(self.path, key=lambda row: (row.kind, row.where)):
            rows = list(group)
            if kind in ("compute", "forward", "backward") or len(rows) == 1:
                steps += rows
                continue
            total = sum(row.estimated_ms for row in rows)
            largest = sorted(((row.name, row.estimated_ms) for row in rows), key=lambda entry: -entry[1])[:3]
            name = f"{len(rows)} {'copies' if kind == 'copy' else kind + 's'}"
            steps.append(PathRow(name, kind, where, rows[0].start_ms, total, rows[0].waited_for, tuple(largest)))
        return steps

    def to_json(self) -> dict[str, Any]:
        """The summary as plain data; the timeline is a file of its own."""
        facts = attrs.asdict(
            self, recurse=True, filter=lambda attribute, _: attribute.name not in ("timeline", "advice")
        )
        advice = (
            None if self.advice is None else [{**attrs.asdict(each), "text": each.sentence()} for each in self.advice]
        )
        return {**facts, "gap": self.gap, "advice": advice}
