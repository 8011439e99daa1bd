"""Measure what each node really takes on each device, once for all nodes that do the same, and keep it.

A node runs on made-up inputs of the recorded shapes, layouts and types: warm, then several times, and the median
counts. Nothing of the model runs on its own tensors, so no state changes and the random numbers stay where they were.
What kernels on the CPU need for themselves is known; of other devices the allocator is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology, is_here
from fxpasses.errors import InputError, PlacementError
from fxpasses.instruments.events import remark, statistic
from fxpasses.partitioners.costs.node_costs import (
    SECONDS,
    STEP_WORKSPACE,
    WORKSPACE,
    StepWorkspace,
    cost_of,
    require_value,
)
from fxpasses.partitioners.costs.training.gradients import differentiable_values
from fxpasses.partitioners.vmap_rows import note_rows, rows_of
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.passes.profiling.measurements import Measurements, hardware
from fxpasses.passes.profiling.running_alone import AloneCall, key_of, run_alone
from fxpasses.passes.profiling.taken_bytes import step_workspace, tells_bytes, workspace_bytes
from fxpasses.passes.profiling.times import median_seconds

__all__ = ["ProfileCosts", "profile_node"]


def profile_node(node: Node, torch_device: str, *, warmup: int = 2, repeats: int = 5) -> float:
    """Run one node on a device and time it.

    Args:
        node: A call whose arguments have recorded values; a part of a split graph too.
        torch_device: Where, as ``torch.device`` takes it.
        warmup: Runs that do not count.
        repeats: Runs whose median counts.

    Returns:
        Seconds of one run.

    Raises:
        PlacementError: The device cannot run the node on inputs of these shapes.
    """
    return run_alone(node, torch.device(torch_device), lambda call, on: median_seconds(call, on, warmup, repeats))


@attrs.frozen
class _Known:
    """What is known of one kind of hardware; bytes only where it tells them."""

    device: torch.device
    seconds: dict[str, float]
    workspaces: dict[str, int] | None
    steps: dict[str, StepWorkspace] | None

    @classmethod
    def of(cls, measurements: Measurements, torch_device: str) -> _Known:
        where, device = hardware(torch_device), torch.device(torch_device)
        seconds, tells = measurements.seconds.setdefault(where, {}), tells_bytes(device)
        workspaces = measurements.workspaces.setdefault(where, {}) if tells else None
        return cls(device, seconds, workspaces, measurements.steps.setdefault(where, {}) if tells else None)

    def has(self, key: str) -> bool:
        return key in self.seconds and (self.workspaces is None or key in self.workspaces)


def _as_devices(devices: Iterable[Device] | Device) -> tuple[Device, ...]:
    return (devices,) if isinstance(devices, Device) else tuple(devices)


def _only_devices(_pass: object, _field: object, devices: tuple[Any, ...]) -> None:
    if not devices:
        raise InputError("There is no device to measure on; give at least one, such as Device('cpu').")
    Topology(devices)  # refuses what is no device, and two of one name: seconds are written by name


def _as_path(file: str | os.PathLike[str] | None) -> str | None:
    if file is not None and not isinstance(file, (str, os.PathLike)):
        raise InputError(f"file is the path of a JSON file, not {file!r}.")
    return None if file is None else os.fspath(file)


def _runs(least: int) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_pass: object, field: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{field.name} is a number of runs from {least} on, not {value!r}.")

    return check


def _yes_or_no(_pass: object, field: attrs.Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{field.name} is True or False, not {value!r}.")


@attrs.frozen
class ProfileCosts(PassBase):
    """Write each node's measured seconds on each device under :data:`~fxpasses.partitioners.SECONDS`.

    And the bytes that it needs there for itself under :data:`~fxpasses.partitioners.WORKSPACE`; but not on the CPU,
    whose kernels are known. For training also those of a step, with autograd on, under
    :data:`~fxpasses.partitioners.STEP_WORKSPACE`.

    Args:
        devices: Where to measure; devices of one ``torch_device`` are measured once.
        file: A JSON file of earlier measurements: what it holds is not measured again, what is new is added.
        warmup: Runs that do not count.
        repeats: Runs whose median counts.
        training: Whether the bytes of a training step are measured, too: of each node through which gradients flow, its
            forward and its backward.

    A node that a device cannot run gets no seconds there: a remark says why, and the roofline of
    :func:`~fxpasses.partitioners.seconds_on` counts for it. If it cannot run with its backward, it needs in a training
    step what can be told without a device.
    """

    visit_nested: ClassVar[bool] = False  # a body is measured within the operator that runs it

    devices: tuple[Device, ...] = attrs.field(converter=_as_devices, validator=_only_devices)
    file: str | None = attrs.field(default=None, converter=_as_path)
    warmup: int = attrs.field(default=2, kw_only=True, validator=_runs(0))
    repeats: int = attrs.field(default=5, kw_only=True, validator=_runs(1))
    training: bool = attrs.field(default=False, kw_only=True, validator=_yes_or_no)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Measure every call of the graph."""
        for device in self.devices:
            if device.is_fake:
                raise PlacementError(
                    f"{device.name!r} is a fake device, and what it stands for is not here to be measured; leave it "
                    "out, and the roofline counts for it."
                )
            if not is_here(device.torch_device):
                raise PlacementError(
                    f"{device.name!r} is the torch device {device.torch_device}, and this machine has none to measure "
                    "on; leave it out, and the roofline counts for it."
                )
        if self.file is not None and not Path(self.file).parent.is_dir():
            raise InputError(f"{self.file} cannot be written: there is no folder {str(Path(self.file).parent)!r}.")
        note_rows(graph_module)
        measurements = Measurements() if self.file is None else Measurements.load(self.file)
        differentiable = differentiable_values(graph_module, of_inputs=False) if self.training else {}
        for device in self.devices:
            known = _Known.of(measurements, device.torch_device)
            self._profile(graph_module, device, known)
            if known.steps is not None:
                self._profile_steps(differentiable, device, known, known.steps)
        if self.file is not None:
            measurements.save(self.file)
        return PassResult(graph_module, False)

    def _profile(self, graph_module: GraphModule, device: Device, known: _Known) -> None:
        failed: dict[str, str] = {}
        for node in graph_module.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            require_value(node)
            if rows_of(node) > 1:
                remark(node, f"not measured on {device.name}, counted by its roofline: it runs inside of torch.vmap")
                continue
            if not _computes(node):
                SECONDS.write(node, {**SECONDS.get(node, {}), device.name: 0.0})
                continue
            key = key_of(node)
            if not known.has(key) and key not in failed:
                self._measure(node, key, known, failed)
            if key in failed:
                remark(node, f"not measured on {device.name}, counted by its roofline: {failed[key]}")
                continue
            SECONDS.write(node, {**SECONDS.get(node, {}), device.name: known.seconds[key]})
            if known.workspaces is not None:
                WORKSPACE.write(node, {**WORKSPACE.get(node, {}), device.name: known.workspaces[key]})

    def _measure(self, node: Node, key: str, known: _Known, failed: dict[str, str]) -> None:
        def measure(call: AloneCall, device: torch.device) -> None:
            seconds = median_seconds(call, device, self.warmup, self.repeats)
            if known.workspaces is not None:
                known.workspaces[key] = workspace_bytes(call, device)
            known.seconds[key] = seconds

        try:
            run_alone(node, known.device, measure)
        except PlacementError as error:
            failed[key] = str(error.__cause__)
        statistic("nodes measured")

    def _profile_steps(
        self, differentiable: Collection[Node], device: Device, known: _Known, steps: dict[str, StepWorkspace]
    ) -> None:
        """Each twice: what the libraries keep from call to call is taken the first time."""
        failed: dict[str, str] = {}
        for node in differentiable:
            if node.op in ("placeholder", "get_attr") or rows_of(node) > 1 or not _computes(node):
                continue
            key = key_of(node, differentiable)
            if key not in steps and key not in failed:
                try:
                    for _ in range(2):
                        steps[key] = run_alone(node, known.device, step_workspace, differentiable)
                except PlacementError as error:
                    failed[key] = str(error.__cause__)
                statistic("steps measured")
            if key in failed:
                remark(node, f"not measured on {device.name} in a training step: {failed[key]}")
                continue
            STEP_WORKSPACE.write(node, {**STEP_WORKSPACE.get(node, {}), device.name: steps[key]})


def _computes(node: Node) -> bool:
    """Whether a node is more than a view."""
    cost = cost_of(node)
    return bool(cost.flops or cost.bytes_written)
