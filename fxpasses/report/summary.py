"""What a lowering did, as plain values: the one source of the terminal tables, the JSON and the HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["CheckRow", "CopyRow", "DeviceRow", "PassRow", "StepRow", "Summary"]


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
        activation_bytes: Most bytes of activations and received copies at one time.
        copy_bytes: Most bytes of received copies at one time.
        peak_bytes: What has to fit the budget.
        budget_bytes: The budget; None for no limit.
        estimated_ms: Predicted busy milliseconds of one run.
        parts: The parts it runs, in execution order.
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
class CheckRow:
    """The comparison with the model itself: whether outputs agree, and the largest difference."""

    ok: bool
    exact: bool
    tensors: int
    max_difference: float
    tolerance: str

    def sentence(self) -> str:
        """The result in words."""
        if self.exact:
            return f"equal to the model itself, bit by bit ({self.tensors} tensors)"
        verdict = "equal" if self.ok else "NOT equal"
        return f"{verdict} to the model itself within {self.tolerance}; largest difference {self.max_difference:.3g}"


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

    def to_json(self) -> dict[str, Any]:
        """The summary as plain data."""
        return attrs.asdict(self, recurse=True)
