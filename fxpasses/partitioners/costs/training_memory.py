"""Predict how many bytes each device holds at most in a training step: forward, backward, optimizer.

The schedule is twice as long: the backward of a node runs at the mirrored position. What autograd saves is not guessed:
the graph runs once, node by node, on tensors without data, and autograd says which storages it keeps. Saved values stay
to the backward of the first node that saved them; the gradient of a value lives from the backward of its last user to
that of its maker; the gradient of a parameter stays from there on. What a backward needs for itself while it runs is
learnt by running that of each operator once, without data too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from fxpasses.devices import Device
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.errors import PlacementError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.dry_runs import backward_bytes
from fxpasses.partitioners.costs.memory import DeviceMemory, Life, MemoryCourse, follow_memory
from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes, tensors_in

__all__ = ["BackwardNeeds", "Training", "predict_training_memory", "trace_backward"]


@attrs.frozen
class Training:
    """What a training step holds besides the model.

    Args:
        optimizer_slots: Values that the optimizer keeps for each trained element, in its type: 2 for Adam, 1 for SGD
            with momentum, 0 for SGD.

    Raises:
        PlacementError: A negative number.
    """

    optimizer_slots: float = attrs.field(default=2.0)

    @optimizer_slots.validator
    def _not_negative(self, _attribute: attrs.Attribute[float], value: float) -> None:
        if isinstance(value, bool) or not 0 <= value < math.inf:
            raise PlacementError(f"optimizer_slots is the number of values kept for each element, not {value!r}.")


@attrs.frozen(eq=False)
class BackwardNeeds:
    """What autograd does with one forward graph.

    Args:
        saved: For each node the nodes whose storage it keeps for its backward: its inputs, itself, or older bases.
        extra: For each node the bytes that it keeps besides: masks, statistics, converted copies.
        differentiable: The nodes whose value gets a gradient.
        inside: For each node the bytes that its backward needs for itself while it runs.
    """

    saved: Mapping[Node, tuple[Node, ...]]
    extra: Mapping[Node, int]
    differentiable: Mapping[Node, None]
    inside: Mapping[Node, int] = attrs.field(factory=dict)


class _Tracer(Interpreter):
    """Runs a graph without data and notes, for each node, the storages that autograd saves."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.owner: dict[int, Node] = {}  # by storage: the first node whose value is in it
        self.kept: list[Any] = []  # storages stay alive, so that none gets the address of another
        self.saved: dict[Node, dict[Node, None]] = {}
        self.extra: dict[Node, dict[int, int]] = {}
        self.differentiable: dict[Node, None] = {}
        self.device: torch.device | None = None  # where the value of the current node was recorded

    def run_node(self, n: Node) -> Any:
        packed: list[Tensor] = []
        self.device = next((tensor.device for tensor in tensors_in(n.meta.get("val"))), None)
        with torch.autograd.graph.saved_tensors_hooks(lambda value: packed.append(value) or value, lambda value: value):  # type: ignore[func-returns-value]  # append gives None
            result = super().run_node(n)
        tensors = tensors_in(result) if n.op != "output" else []
        for tensor in tensors:
            self.owner.setdefault(_storage(tensor), n)
        self.kept += [*tensors, *packed]
        if any(tensor.requires_grad for tensor in tensors):
            self.differentiable[n] = None
        for tensor in packed:
            self._note(n, tensor)
        return result

    def _note(self, n: Node, tensor: Tensor) -> None:
        owner = self.owner.get(_storage(tensor))
        if owner is not None:
            self.saved.setdefault(n, {})[owner] = None
        else:
            self.extra.setdefault(n, {})[_storage(tensor)] = concrete_size(tensor.untyped_storage().nbytes())

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if not isinstance(value, Tensor):
            return value
        fake = self.mode.from_tensor(value, static_shapes=True).detach()
        if value.is_meta and self.device is not None:  # captured as if its memory were there
            fake = torch.empty_like(fake, device=self.device)
        return fake.requires_grad_(isinstance(value, torch.nn.Parameter) and value.requires_grad)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def trace_backward(graph_module: GraphModule, *, inputs_need_gradients: bool = False) -> BackwardNeeds:
    """Ask autograd what it keeps for the backward of a graph. One run without data, about 0.3 ms a node.

    Args:
        graph_module: A forward graph that holds its parameters; its inputs have recorded values.
        inputs_need_gradients: Whether the gradients of floating-point inputs are wanted, too.

    Raises:
        PlacementError: An operator cannot run without data, so that nobody knows what it keeps.
    """
    tracer = _Tracer(graph_module)
    with torch.enable_grad(), tracer.mode:
        inputs = [_example(node) for node in graph_module.graph.find_nodes(op="placeholder")]
        for tensor in tensors_in(inputs) if inputs_need_gradients else ():
            tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())
        try:
            tracer.run(*inputs, enable_io_processing=False)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            raise PlacementError(f"what the backward needs is not known: {error}") from error
    saved = {node: tuple(owners) for node, owners in tracer.saved.items()}
    extra = {node: sum(sizes.values()) for node, sizes in tracer.extra.items()}
    inside = {node: backward_bytes(node, tracer.differentiable) for node in tracer.differentiable}
    return BackwardNeeds(saved, extra, tracer.differentiable, {node: size for node, size in inside.items() if size})


def _example(node: Node) -> Any:
    def like(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return concrete_size(leaf) if isinstance(leaf, torch.SymInt) else leaf
        shape, stride = ([concrete_size(size) for size in sizes] for sizes in (leaf.shape, leaf.stride()))
        return torch.empty_strided(shape, stride, dtype=leaf.dtype, device=leaf.device)

    return pytree.tree_map(like, node.meta.get("val"))


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
        held = (self._values(device), self._extras(device), self._gradients(device), self._added(device))
        for start, stop, size in itertools.chain(*held):
            change[start] += size
            change[min(stop, self.end) + 1] -= size
        trained = dict(self._trained(device))
        for start, size in trained.values():
            change[start] += size
        gradients = sum(size for _start, size in trained.values())
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
            saved = max((until.get(storage, 0) for storage in self.course.storages[life.value]), default=0)
            saved = 0 if life.inside else saved
            yield life.start, max(self._forward_stop(life), saved), life.size

    def _forward_stop(self, life: Life) -> int:
        """What the model returns is held by whoever asked for it."""
        forward = len(self.course.schedule)
        return self.end if life.stop >= forward else life.stop

    def _extras(self, device: str) -> Iterator[tuple[int, int, int]]:
        for node, size in self.needs.extra.items():
            if self.home.get(node) == device:
                yield self.position[node], self.backward(node), size
        for node, size in self.needs.inside.items():
            if self.home.get(node) == device:
                yield self.backward(node), self.backward(node), size

    def _gradients(self, device: str) -> Iterator[tuple[int, int, int]]:
        """Of each value: from the backward of its last user to that of its maker, and a second one where two add up."""
        for node in self.needs.differentiable:
            size = sum(map(tensor_bytes, tensors_in(node.meta.get("val"))))
            if node.op == "get_attr" or not size:
                continue
            users = sorted({self._used_at(user) for user in node.users if self._passes_back(user)}, reverse=True)
            here = self.home.get(node)
            if here == device and users:
                returned = any(user.op == "output" for user in node.users)  # whoever gave its gradient holds it
                yield self.end - 1 - users[0], self.end if returned else self.backward(node), size
                yield from ((self.end - 1 - at, self.end - 1 - at, size) for at in users[1:])
            elsewhere = [at for user in node.users if (at := self._arrives(user, here, device)) is not None]
            if elsewhere:
                yield self.end - 1 - max(elsewhere), self.end - 1 - min(elsewhere), size

    def _arrives(self, user: Node, here: str | None, device: str) -> int | None:
        return self.position[user] if here != device and self.home.get(user) == device else None

    def _used_at(self, user: Node) -> int:
        return self.position.get(user, len(self.course.schedule) - 1)

    def _passes_back(self, user: Node) -> bool:
        return user.op == "output" or user in self.needs.differentiable

    def _added(self, device: str) -> Iterator[tuple[int, int, int]]:
        """Of each further use of a parameter its gradient, and the sum with those before: it is not made in place."""
        for node in self.needs.differentiable:
            used = [self.position[user] for user in node.users if self.home.get(user) == device]
            if node.op == "get_attr" and len(used) > 1:
                size = sum(map(tensor_bytes, tensors_in(node.meta.get("val"))))
                yield from ((self.end - 1 - at, self.end - 1 - at, 2 * size) for at in sorted(used)[:-1])

    def _trained(self, device: str) -> Iterator[tuple[tuple[int, ...], tuple[int, int]]]:
        """For each parameter with a gradient: when its gradient first comes, and its bytes; tied ones once."""
        for node in self.needs.differentiable:
            if node.op != "get_attr":
                continue
            used = [self.position[user] for user in node.users if self.home.get(user) == device]
            if used:
                size = sum(map(tensor_bytes, tensors_in(node.meta.get("val"))))
                yield self.effects.storages(node), (self.end - 1 - max(used), size)
