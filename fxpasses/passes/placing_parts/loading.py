"""Load parameters of offloaded parts right before they are used, one part ahead, in forward and in backward.

The parameters stay in main memory, so an optimizer, a checkpoint and ``.grad`` see the parameters themselves. A load is
a node of the graph like any copy: gradients flow back through it, and it is freed after its last use. What autograd
would keep of a loaded parameter is loaded again when the backward pass needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import attrs
import torch
from torch.fx import GraphModule, Node, Proxy
from torch.multiprocessing.reductions import StorageWeakRef

from fxpasses.devices import MAIN_MEMORY, Device, same_torch_device
from fxpasses.errors import PlacementError
from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.passes.placing_parts.copies import COPY, DEVICE, LOAD_OF, copy_node

__all__ = ["call_loads", "insert_loads", "load", "loading_again", "note_load", "under_functorch"]


def insert_loads(graph_module: GraphModule, device_of: Mapping[str, Device], offloaded: Container[str]) -> None:
    """Load what each offloaded part takes of the state, before the part that runs before it.

    A parameter that the offloaded part before it on the same device uses as well is loaded once for both.

    Args:
        graph_module: The top level of a split; parameters of offloaded parts are inputs of these.
        device_of: The device of each part, by the name of its submodule.
        offloaded: The names of the offloaded parts.
    """
    parts = [node for node in graph_module.graph.nodes if node.op == "call_module" and str(node.target) in device_of]
    last: dict[str, dict[Node, Node]] = {}
    for part, anchor in zip(parts, [None, *parts], strict=False):
        device = device_of[str(part.target)]
        before = last.pop(device.name, {})
        if str(part.target) not in offloaded:
            continue
        now: dict[Node, Node] = {}
        for value in dict.fromkeys(part.all_input_nodes):
            if value.op == "get_attr" and _is_elsewhere(value, device):
                now[value] = before.get(value) or _load_node(graph_module, value, device, anchor or part)
                part.replace_input_with(value, now[value])
        last[device.name] = now


def _is_elsewhere(value: Node, device: Device) -> bool:
    tensors = tensors_in(value.meta.get("val"))
    if not tensors:
        return False
    is_offloaded = DEVICE.has(value) and DEVICE.read(value) == MAIN_MEMORY
    return is_offloaded or not same_torch_device(tensors[0].device, torch.device(device.torch_device))


def _load_node(graph_module: GraphModule, value: Node, device: Device, anchor: Node) -> Node:
    with graph_module.graph.inserting_before(anchor):
        node = copy_node(graph_module, value, device, key=LOAD_OF)
    if not value < node:  # it was read right before its part
        node.prepend(value)
    return node


def call_loads(graph_module: GraphModule) -> None:
    """Let the loads that are still plain copies call :func:`load`; last, because nobody knows what that does."""
    for node in graph_module.graph.find_nodes(op="call_function", target=COPY):
        if LOAD_OF.has(node):
            node.target, node.args, node.kwargs = load, (node.args[0], node.kwargs["device"]), {}


def load(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """In a graph: a copy of a parameter on a device, which the backward pass loads again.

    It requires a gradient where the parameter does, also where none is recorded: by that torch chooses how to multiply.
    Traced symbolically it stays a call of this.
    """
    given: Any = value
    if isinstance(given, Proxy):
        return cast("torch.Tensor", given.tracer.create_proxy("call_function", load, (given, device), {}))
    if value.requires_grad and not (torch.compiler.is_compiling() or under_functorch()):
        with torch.inference_mode(False), torch.enable_grad():
            loaded: torch.Tensor = _Load.apply(value, device)  # type: ignore[no-untyped-call]  # torch's
    else:
        loaded = COPY(value, device=device)
    if not torch.compiler.is_compiling():  # what is compiled or exported has no call that could remember it
        note_load(loaded, value)
    return loaded


class _Load(torch.autograd.Function):
    """A copy whose gradient goes home as it is; that of torch's own has to be dense, and an embedding's may not be."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, device: torch.device) -> torch.Tensor:
        ctx.home, ctx.device = value.device, device
        loaded: torch.Tensor = COPY(value, device=device)
        return loaded

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(ctx.home), None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _device: None) -> torch.Tensor:
        loaded: torch.Tensor = COPY(tangent, device=ctx.device)
        return loaded


def under_functorch() -> bool:
    """Whether a transformation of ``torch.func`` runs, which has rules of its own for gradients."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@attrs.frozen(eq=False)
class _Source:
    """A parameter as it was when it was loaded.

    Args:
        parameter: The parameter.
        version: How often it had been changed in place.
        memory: Where its elements lay; while this is there, nothing else gets the address.
        again: What was loaded again last on each device, for as long as somebody has it.
    """

    parameter: torch.Tensor
    version: int
    memory: StorageWeakRef
    again: dict[torch.device, StorageWeakRef] = attrs.field(init=False, factory=dict)

    @classmethod
    def of(cls, parameter: torch.Tensor) -> _Source:
        memory = StorageWeakRef(parameter.untyped_storage())  # type: ignore[no-untyped-call]  # torch does not say
        return cls(parameter, parameter._version, memory)

    def loaded(self, device: torch.device) -> torch.UntypedStorage:
        """Its elements on a device; a backward that reads them by way of several values has them once."""
        last = self.again.get(device)
        there: torch.UntypedStorage | None = None
        if last is not None:
            there = torch.UntypedStorage._new_with_weak_ptr(last.cdata)
        if there is None:
            there = COPY(self.parameter.detach(), device=device).untyped_storage()
            self.again[device] = StorageWeakRef(there)  # type: ignore[no-untyped-call]  # torch does not say
        return there

    def check_as_before(self) -> None:
        """Refuse one that somebody has written to, or given other data."""
        there: int = self.parameter.untyped_storage()._cdata
        if self.parameter._version == self.version and there == self.memory.cdata:
            return
        what = "changed in place" if there == self.memory.cdata else "given other data"
        raise PlacementError(
            f"A parameter of an offloaded part was {what} between the forward pass and the backward pass that needs "
            "its old values; step the optimizer after backward()."
        )


@attrs.frozen(eq=False)
class _Kept:
    """What autograd keeps instead of a loaded parameter, or of a view of it: where to load it from, and how it lies."""

    source: _Source
    device: torch.device
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    is_conjugated: bool
    is_negated: bool

    @classmethod
    def of(cls, source: _Source, tensor: torch.Tensor) -> _Kept:
        lies = (tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return cls(source, tensor.device, tensor.dtype, *lies, tensor.is_conj(), tensor.is_neg())

    def loaded(self) -> torch.Tensor:
        self.source.check_as_before()
        memory = self.source.loaded(self.device)
        again = torch.empty(0, dtype=self.dtype, device=self.device).set_(memory, self.offset, self.size, self.stride)
        again = again.conj() if self.is_conjugated else again
        return torch._neg_view(again) if self.is_negated else again


@attrs.frozen(eq=False)
class _Saved:
    """What autograd keeps of any other tensor: not itself, as a result that keeps its own history is never freed."""

    value: torch.Tensor
    version: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Saved:
        return cls(tensor.detach(), tensor._version)

    def loaded(self) -> torch.Tensor:
        if self.value._version != self.version:
            raise PlacementError(
                f"A value of shape {tuple(self.value.shape)} that the backward pass needs was changed in place after "
                "its use, and its old values are gone; let the model clone it before the change."
            )
        return self.value


@attrs.frozen(eq=False)
class _Outer:
    """What the hooks around a lowered model keep of a tensor: checkpoints that compute it again, say."""

    packed: Any
    unpack: Callable[[Any], torch.Tensor]

    def loaded(self) -> torch.Tensor:
        return self.unpack(self.packed)


@attrs.frozen(eq=False)
class _Loaded:
    """What was loaded in a call: its memory, whose address nothing else gets, its version then, and from where."""

    memory: StorageWeakRef
    version: int
    source: _Source


@attrs.define(eq=False)
class _Loads:
    """The loads of one call, by the address of their memory.

    Args:
        outer: The hooks around the call, which torch does not ask beside those of the call.
    """

    outer: tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]] | None = None
    of_storage: dict[int, _Loaded] = attrs.field(factory=dict)

    def note(self, loaded: torch.Tensor, parameter: torch.Tensor) -> None:
        if loaded.layout == parameter.layout == torch.strided:  # a sparse buffer has no storage to be told by
            memory = StorageWeakRef(loaded.untyped_storage())  # type: ignore[no-untyped-call]  # torch does not say
            self.of_storage[memory.cdata] = _Loaded(memory, loaded._version, _Source.of(parameter))

    def keep(self, tensor: torch.Tensor) -> _Saved | _Kept | _Outer:
        """What autograd shall keep of a tensor: hooks around the call are asked about all but loaded parameters."""
        kept = self._kept(tensor)
        if isinstance(kept, _Kept) or self.outer is None:
            return kept
        pack, unpack = self.outer
        return _Outer(pack(tensor), unpack)

    def _kept(self, tensor: torch.Tensor) -> _Saved | _Kept:
        found = self.of_storage.get(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else None
        if found is None or tensor._version != found.version:  # what was written into what is loaded is nowhere else
            return _Saved.of(tensor)
        return _Kept.of(found.source, tensor)


_LOADS: ContextVar[_Loads | None] = ContextVar("fxpasses_loads", default=None)


def note_load(loaded: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Remember in the running call that a tensor is a loaded parameter; whether autograd will not keep it."""
    if (loads := _LOADS.get()) is not None:
        loads.note(loaded, parameter)
    return loads is not None


def _again(kept: _Saved | _Kept | _Outer) -> torch.Tensor:
    return kept.loaded()


@contextmanager
def loading_again() -> Iterator[None]:
    """Inside, autograd keeps no loaded parameter: the backward pass loads it again. Does nothing without autograd.

    Under ``torch.func`` neither, which has no hooks for what is saved: what is loaded stays there for the backward.
    """
    if not torch.is_grad_enabled() or under_functorch():
        yield
        return
    loads = _Loads(torch._C._autograd._top_saved_tensors_default_hooks(False))
    token = _LOADS.set(loads)
    try:
        with torch.autograd.graph.saved_tensors_hooks(loads.keep, _again):
            yield
    finally:
        _LOADS.reset(token)
