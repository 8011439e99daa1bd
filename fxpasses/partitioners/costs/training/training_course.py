"""What a training step holds besides the model, and how it comes and goes on each device."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.errors import PlacementError
from fxpasses.partitioners.costs.memory_courses import DeviceMemory, Life, MemoryCourse

__all__ = ["Kind", "ParameterSizes", "StepLife", "Training", "TrainingCourse"]

_Floats = NDArray[np.float64]

Kind = Literal["gradients", "optimizer", "saved", "activations", "copies", "loaded"]
"""Of what kind something is that comes and goes in a training step: see :class:`StepLife`."""

STEP_BYTES = 4
"""What optimizers count steps in, one number for each parameter (Adam, AdamW, RMSprop, Adagrad)."""

_RATE_BYTES = 12
"""The rate of learning as a number and in the type of a parameter, while one is changed; or a number of steps."""


def _is_number(value: Any) -> bool:
    """A finite one that is not negative; a whole number may be too large for a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


@attrs.frozen
class ParameterSizes:
    """What an optimizer needs depends on: how many parameters there are, their bytes, and those of the two largest."""

    count: int = 0
    total: int = 0
    largest: tuple[int, ...] = ()

    def with_these(self, sizes: Collection[int]) -> ParameterSizes:
        """With some more parameters."""
        largest = heapq.nlargest(2, (*self.largest, *sizes))
        return ParameterSizes(self.count + len(sizes), self.total + sum(sizes), tuple(largest))


@attrs.frozen
class Training:
    """What a training step holds besides the model.

    Args:
        optimizer_slots: Values that the optimizer keeps for each trained element, in its type: 2 for Adam, 1 for SGD
            with momentum, 0 for SGD.
        step_slots: Values that it makes besides for each trained element while it steps: 1 for Adam and AdamW over all
            parameters at once (``foreach``, torch's choice on accelerators), 0 for those that are ``fused``. By default
            what either way needs if the optimizer keeps anything: 1 for each, or, one parameter after the other, as
            many as it keeps for those of the largest one, and 1 for those of the next, which may still be there.
            Weight decay that is added to gradients (Adam's, not AdamW's) and ``maximize`` are not counted.
        counts_steps: Whether an optimizer that keeps anything keeps the number of its steps, too, for each parameter;
            SGD with momentum does not.

    Raises:
        PlacementError: A negative number.
    """

    optimizer_slots: float = attrs.field(default=2.0)
    step_slots: float | None = attrs.field(default=None, kw_only=True)
    counts_steps: bool = attrs.field(default=True, kw_only=True)

    @optimizer_slots.validator
    def _not_negative(self, _attribute: attrs.Attribute[float], value: float) -> None:
        if not _is_number(value):
            raise PlacementError(f"optimizer_slots is the number of values kept for each element, not {value!r}.")

    @step_slots.validator
    def _not_negative_either(self, _attribute: attrs.Attribute[float | None], value: float | None) -> None:
        if value is not None and not _is_number(value):
            raise PlacementError(f"step_slots is the number of values made for each element, not {value!r}.")

    @counts_steps.validator
    def _yes_or_no(self, _attribute: attrs.Attribute[bool], value: bool) -> None:
        if not isinstance(value, bool):
            raise PlacementError(f"counts_steps is true or false, not {value!r}.")

    @property
    def times_in_step(self) -> float:
        """How many times its bytes a trained parameter has at least while the optimizer steps, its gradient and all."""
        made = float(self.optimizer_slots > 0) if self.step_slots is None else self.step_slots
        return 2 + self.optimizer_slots + made

    def step_bytes(self, sizes: Collection[int]) -> int:
        """What the optimizer makes while it steps, for parameters of these sizes."""
        return self.made_for(ParameterSizes().with_these(sizes))

    def made_for(self, sizes: ParameterSizes) -> int:
        """The same, of sizes that are summed up."""
        largest, second = (*sizes.largest, 0, 0)[:2]
        return int(self.made_of(*(np.array(float(each)) for each in (sizes.total, largest, second))))

    def made_of(self, total: _Floats, largest: _Floats, second: _Floats) -> _Floats:
        """The same, of many sets of parameters: the bytes of all of each, and of the two largest."""
        if self.step_slots is None:
            one_by_one = math.ceil(self.optimizer_slots) * largest + second
            made = np.maximum(total, one_by_one) if self.optimizer_slots else np.zeros_like(total)
        else:
            made = self.step_slots * total
        return made + np.where(made > 0, _RATE_BYTES, 0.0)

    def kept_bytes(self, sizes: Collection[int]) -> int:
        """What the optimizer keeps from step to step, for parameters of these sizes."""
        return self.kept_for(ParameterSizes().with_these(sizes))

    def kept_for(self, sizes: ParameterSizes) -> int:
        """The same, of sizes that are summed up."""
        steps = STEP_BYTES * sizes.count if self.optimizer_slots and self.counts_steps else 0
        return int(self.optimizer_slots * sizes.total) + steps

    def __str__(self) -> str:
        """What the optimizer keeps, in words."""
        kept = f"{self.optimizer_slots:g} value{'' if self.optimizer_slots == 1 else 's'} kept for each trained element"
        return kept if self.step_slots is None else f"{kept}, {self.step_slots:g} made while the optimizer steps"


@attrs.define
class StepLife(Life):
    """From when to when something is on a device in a training step.

    Args:
        kind: ``saved`` is what the forward made and keeps for the backward; ``gradients`` are those of parameters;
            ``optimizer`` is what the optimizer makes while it steps; ``copies`` were received, saved or not; ``loaded``
            are parameters of offloaded parts; all else, gradients of values included, is ``activations``.
        gradient_of: The parameters of whose gradient it is a part, or the whole.
        is_sum: Whether it is a sum of several such.
    """

    kind: Kind = "activations"
    gradient_of: Collection[Node] = ()
    is_sum: bool = False


@attrs.frozen(eq=False)
class TrainingCourse(MemoryCourse):
    """What is on each device in a training step.

    The schedule has each node twice: its forward, and, mirrored, its backward. In the last position, after all of them,
    the optimizer steps. What the optimizer keeps is held all the time.

    Args:
        training: What the optimizer keeps.
        trained: On each device the bytes of each parameter that has a gradient there, by its storages.
        stepped: Of these the parameters that live there; the others are copies, which no optimizer sees.
        saved: For each node the nodes whose storage it keeps for its backward.
        held_to_end: Of these, for each node, those that its function holds to the end of the step.
        home: The device of each node.
    """

    training: Training = attrs.field(factory=Training, kw_only=True)
    trained: Mapping[str, Mapping[tuple[int, ...], int]] = attrs.field(factory=dict, kw_only=True)
    stepped: Mapping[str, Mapping[tuple[int, ...], int]] = attrs.field(factory=dict, kw_only=True)
    saved: Mapping[Node, Sequence[Node]] = attrs.field(factory=dict, kw_only=True)
    held_to_end: Mapping[Node, Sequence[Node]] = attrs.field(factory=dict, kw_only=True)
    home: Mapping[Node, str] = attrs.field(factory=dict, kw_only=True)

    @property
    def forward(self) -> tuple[Node, ...]:
        """The first half of the schedule."""
        return self.schedule[: len(self.schedule) // 2]

    def memory(self, device: str) -> DeviceMemory:
        """The most of everything on one device; gradients count whole, whenever it is fullest."""
        gradients, kept = sum(self.trained[device].values()), self.kept_bytes(device)
        peak = int(self.curve(device).max(initial=0))
        copies = int(self.curve(device, copies_only=True)[: len(self.forward) + 1].max(initial=0))
        return DeviceMemory(self.held[device] - kept, peak - gradients, copies, gradients, kept)

    def kept_bytes(self, device: str) -> int:
        """What the optimizer keeps there from step to step."""
        return self.training.kept_bytes(self.stepped[device].values())

    def node_at(self, position: int) -> Node | None:
        """The node whose forward or backward runs at a position; None where the optimizer steps."""
        return self.schedule[position] if position < len(self.schedule) else None

    def split(self, device: str) -> dict[str, int]:
        """What is on a device when most is there, by kind; the sum is the peak."""
        position = self.fullest(device)
        found = dict.fromkeys(get_args(Kind), 0)
        for life in self.lives[device]:
            if isinstance(life, StepLife) and life.start <= position <= life.stop:
                found[life.kind] += life.size
        if found["activations"] < 0:  # what a backward reads may be gone before the last of what it makes is there
            found["saved"] += found["activations"]
            found["activations"] = 0
        kept = self.kept_bytes(device)
        found["optimizer"] += kept
        return {"parameters": self.held[device] - kept, **found}

    def most_saved(self, device: str) -> int:
        """The most bytes that the device keeps for the backward at one time, received copies not counted."""
        change = np.zeros(len(self.schedule) + 2, dtype=np.int64)
        for life in self.lives[device]:
            if isinstance(life, StepLife) and life.kind == "saved":
                change[life.start] += life.size
                change[life.stop + 1] -= life.size
        return int(np.cumsum(change).max(initial=0))

    def moment(self, position: int) -> str:
        """A position in words, as the end of a sentence."""
        half = len(self.forward)
        if position >= 2 * half:
            return "while the optimizer steps"
        return "in the forward" if position < half else "in the backward"
