"""Predict how many bytes each device holds at most in a training step: forward, backward, optimizer.

The schedule is twice as long: the backward of a node runs at the mirrored position. What autograd saves and makes is
not guessed: the graph runs once, forward and backward, on tensors without data, and autograd says which storages it
keeps and when it frees what it makes. Saved values stay to the backward of the first node that saved them; a gradient
lives on the device of the node whose backward makes it, and on each other device whose backward reads it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping

import attrs
import numpy as np
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import PlacementError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.backward_traces import BackwardNeeds, Stay, trace_backward
from fxpasses.partitioners.costs.graph_figures import value_bytes
from fxpasses.partitioners.costs.memory import DeviceMemory, Life, MemoryCourse, follow_memory

__all__ = ["Training", "predict_training_memory"]


@attrs.frozen
class Training:
    """What a training step holds besides the model.

    Args:
        optimizer_slots: Values that the optimizer keeps for each trained element, in its type: 2 for Adam, 1 for SGD
            with momentum, 0 for SGD.
        step_slots: Values that it makes besides for each trained element while it steps: 1 for Adam and AdamW over all
            parameters at once (``foreach``, torch's choice on accelerators), 0 for those that are ``fused``. By default
            what either way needs if the optimizer keeps anything: 1 for each, or 3 for those of the largest parameter.

    Raises:
        PlacementError: A negative number.
    """

    optimizer_slots: float = attrs.field(default=2.0)
    step_slots: float | None = attrs.field(default=None, kw_only=True)

    @optimizer_slots.validator
    def _not_negative(self, _attribute: attrs.Attribute[float], value: float) -> None:
        if isinstance(value, bool) or not 0 <= value < math.inf:
            raise PlacementError(f"optimizer_slots is the number of values kept for each element, not {value!r}.")

    @step_slots.validator
    def _not_negative_either(self, _attribute: attrs.Attribute[float | None], value: float | None) -> None:
        if value is not None and (isinstance(value, bool) or not 0 <= value < math.inf):
            raise PlacementError(f"step_slots is the number of values made for each element, not {value!r}.")

    def step_bytes(self, sizes: Collection[int]) -> int:
        """What the optimizer makes while it steps, for parameters of these sizes."""
        if self.step_slots is not None:
            return int(self.step_slots * sum(sizes))
        return max(sum(sizes), 3 * max(sizes, default=0)) if self.optimizer_slots else 0


def predict_training_memory(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    training: Training,
    effects: EffectAnalysis | None = None,
    needs: BackwardNeeds | None = None,
) -> dict[str, DeviceMemory]:
    """Add up what is alive on each device through forward, backward and optimizer step.

    Args:
        graph_module: The unsplit forward graph with its parameters, its nodes with ``val``.
        assignment: Which node is in which part.
        device_of: The device of each part.
        training: What the optimizer keeps.
        effects: The effects of the graph, if they are known already.
        needs: What its backward keeps, if that is known already.

    Returns:
        For each device by name; ``activations`` are all values alive at the worst moment, saved ones and gradients of
        values included. Gradients of the outputs count; what a loss function outside of the graph holds does not.

    Raises:
        PlacementError: An operator cannot run without data.
    """
    effects = effects or analyze_effects(graph_module)
    course = follow_memory(graph_module, assignment, device_of, effects)
    needs = needs or trace_backward(graph_module)
    home = {node: device_of[str(part)].name for node, part in assignment.partition_of.items()}
    step = _Step(graph_module, course, needs, home, {node: at for at, node in enumerate(course.schedule)}, effects)
    return {name: step.memory(name, training) for name in course.held}


@attrs.frozen(eq=False)
class _Step:
    """One training step: positions from 0 to 2n, the backward of node ``i`` at ``2n - 1 - i``."""

    graph_module: GraphModule
    course: MemoryCourse
    needs: BackwardNeeds
    home: Mapping[Node, str]
    position: Mapping[Node, int]
    effects: EffectAnalysis

    @property
    def end(self) -> int:
        return 2 * len(self.course.schedule)

    def backward(self, node: Node) -> int:
        """When the backward of a node runs; that of an input, which has none, last of all."""
        return self.end - 1 - self.position.get(node, 0)

    def memory(self, device: str, training: Training) -> DeviceMemory:
        change = np.zeros(self.end + 2, dtype=np.int64)
        held = (self._values(device), self._workspaces(device), self._stays(device), self._second_gradients(device))
        for start, stop, size in itertools.chain(*held):
            change[start] += size
            change[min(stop, self.end) + 1] -= size
        trained = self._trained(device).values()
        change[self.end] += training.step_bytes(trained)
        gradients = sum(trained)
        peak = int(np.cumsum(change).max(initial=0))
        copies = self.course.memory(device).copies
        return DeviceMemory(
            self.course.held[device], peak - gradients, copies, gradients, int(gradients * training.optimizer_slots)
        )

    def _values(self, device: str) -> Iterator[tuple[int, int, int]]:
        """What the forward makes or receives, kept as long as somebody on the device has saved it."""
        until: dict[int, int] = {}
        for node, owners in self.needs.saved.items():
            if self.home.get(node) == device:
                for storage in (storage for owner in owners for storage in self.course.storages[owner]):
                    until[storage] = max(until.get(storage, 0), self.backward(node))
        for life in self.course.lives[device]:
            if life.inside:  # what a forward needs that keeps something is known better
                continue
            saved = max((until.get(storage, 0) for storage in self.course.storages[life.value]), default=0)
            yield life.start, max(self._forward_stop(life), saved), life.size

    def _forward_stop(self, life: Life) -> int:
        """What the model returns is held by whoever asked for it."""
        forward = len(self.course.schedule)
        return self.end if life.stop >= forward else life.stop

    def _workspaces(self, device: str) -> Iterator[tuple[int, int, int]]:
        for node, size in self.needs.inside.items():
            if self.home.get(node) == device:
                yield self.position[node], self.position[node], size
        for node, size in self.needs.beside.items():
            if self.home.get(node) == device:
                yield self.backward(node), self.backward(node), size

    def _stays(self, device: str) -> Iterator[tuple[int, int, int]]:
        """What is kept besides, and what the backward makes: on the device where it is made, and where it is read."""
        for stay in self.needs.stays:
            start, stop = self._span(stay)
            ends = [self.backward(node) for node in stay.readers if self.home.get(node) == device]
            if self.home.get(stay.last or stay.made_by) == device:
                ends.append(stop)
            if self.home.get(stay.made_by) == device:
                ends.append(start)
            if ends:
                yield min(start, *ends), max(ends), stay.size

    def _span(self, stay: Stay) -> tuple[int, int]:
        """From when to when it is there: to the end what nobody frees."""
        starts = {"forward": self.position.get(stay.made_by, 0), "given": len(self.course.schedule)}
        start = starts.get(stay.begin, self.backward(stay.made_by))
        return start, self.end if stay.last is None else self.backward(stay.last)

    def _second_gradients(self, device: str) -> Iterator[tuple[int, int, int]]:
        """Of a parameter that several devices use: each has a gradient of its own."""
        for node, made_by in self.needs.trained.items():
            used = [self.position[user] for user in node.users if self.home.get(user) == device]
            if used and self.home.get(made_by) != device:
                yield self.end - 1 - max(used), self.end, value_bytes(node)

    def _trained(self, device: str) -> dict[tuple[int, ...], int]:
        """The bytes of each parameter with a gradient that the device uses, tied ones once."""
        return {
            self.effects.storages(node): value_bytes(node)
            for node in self.needs.differentiable
            if node.op == "get_attr" and any(self.home.get(user) == device for user in node.users)
        }
