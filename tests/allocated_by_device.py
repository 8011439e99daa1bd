"""Bytes that a training step of a lowered model really allocates, for each of its devices, though all are the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses import LoweredModule
from fxpasses.partitioners.costs.kernels.kernel_scratch import scratch_bytes
from fxpasses.partitioners.costs.training.added_gradients import AddedGradients


class AllocatedByDevice(TorchDispatchMode):
    """Follows every storage until it is freed; ``peak`` is the most bytes of each device at one time.

    In the forward a storage is of the part that runs, a copy of the part that it is made for; in the backward of the
    part whose function runs; and while the optimizer steps of the parameter that it is made for. Gradients that go back
    to another device are copied, as between real ones.
    """

    def __init__(self, lowered: LoweredModule, args: tuple[Tensor, ...], optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.device: str | None = None
        self.before: tuple[Tensor, ...] = args
        self.added = AddedGradients(with_data=True)
        self.alive: dict[int, tuple[StorageWeakRef, int, str | None]] = {}
        self.known = {device.name for device in lowered.plan.devices if device.has_known_kernels}
        self.home: dict[int, str] = {}  # of what is there before, by address
        self.held: dict[str, dict[int, int]] = {}
        for part, name in lowered.submodule_of.items():
            device, module = lowered.plan.device_of[part].name, lowered.get_submodule(name)
            module.register_forward_pre_hook(lambda _module, given, device=device: self._enter(device, given))
            module.register_forward_hook(lambda _module, _given, made: self._leave(made))
            self.held.setdefault(device, {})
            for tensor in (*module.parameters(), *module.buffers()):
                is_copy = tensor.untyped_storage().data_ptr() in self.home
                self._hold(device, tensor)
                if is_copy and self.home[tensor.untyped_storage().data_ptr()] != device:  # no optimizer sees it
                    continue
                for state in pytree.tree_leaves(optimizer.state.get(tensor, {})):
                    if isinstance(state, Tensor) and state.numel() == tensor.numel() > 1:
                        self._hold(device, state)
        self.peak = dict.fromkeys(self.held, 0)

    def _hold(self, device: str, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.held[device][storage.data_ptr()] = storage.nbytes()
        self.home.setdefault(storage.data_ptr(), device)

    def _enter(self, device: str, given: Any) -> None:
        self.device = device
        for leaf in (leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)):
            if (key := leaf.untyped_storage()._cdata) in self.alive:
                reference, size, where = self.alive[key]
                self.alive[key] = (reference, size, where or device)
        for tensor in (leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)):
            if any(tensor is each for each in self.before):
                self._hold(device, tensor)
            for function in self._fresh(tensor.grad_fn):  # a copy: its gradient goes back to where it came from
                _tell(function, _told(function.next_functions[0][0]))
                self.added.watch([function])
                function.register_prehook(_copied)
        self._count()

    def _leave(self, made: Any) -> None:
        for tensor in (leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)):
            fresh = list(self._fresh(tensor.grad_fn))
            self.added.watch(fresh)
            for function in fresh:
                _tell(function, self.device)
        self.device = None

    def _fresh(self, function: Any) -> Iterator[Any]:
        waiting, seen = [function], set()
        while waiting:
            function = waiting.pop()
            if function is None or _DEVICE in function.metadata or function in seen:
                continue
            if not function.next_functions:  # it hands a gradient to a parameter, and makes nothing
                continue
            seen.add(function)
            yield function
            waiting += [before for before, _ in function.next_functions]

    def _where(self, operands: Any, is_copy: bool = False) -> str | None:
        if self.device is not None:
            return self.device
        if (function := torch._C._current_autograd_node()) is not None:
            return _told(function)
        if is_copy:  # of the part that is entered with it
            return None
        for leaf in pytree.tree_leaves(operands):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() in self.home:
                return self.home[leaf.untyped_storage().data_ptr()]
        return None

    def _count(self, device: str | None = None, scratch: int = 0) -> None:
        """``scratch`` is what a kernel had for itself; that it is right is tried against the allocator elsewhere."""
        now = dict.fromkeys(self.peak, 0)
        if device in self.known:
            now[device] += scratch
        for _, size, where in self.alive.values():
            if where is not None:
                now[where] += size
        self.peak = {device: max(most, now[device]) for device, most in self.peak.items()}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        where = self._where(args, function is torch.ops.aten._to_copy.default)
        if self.added.is_in_place(function, args):  # as torch does where no mode looks on
            function = torch.ops.aten.add_.Tensor
        is_backward = torch._C._current_autograd_node() is not None
        if function is torch.ops.aten.index_put.default and is_backward and where in self.known:
            function = torch.ops.aten.index_put_.default  # likewise, into zeros that are made for it
        result = function(*args, **(kwargs or {}))
        self.alive = {key: each for key, each in self.alive.items() if not each[0].expired()}
        owners = [where] * len(result) if isinstance(result, (list, tuple)) else [where]
        if self.device is None and isinstance(args[0] if args else None, (list, tuple)):  # many parameters at once
            owners = [self._where((each,)) or where for each in args[0]]
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        for index, leaf in enumerate(leaves):
            storage = leaf.untyped_storage()
            if storage.data_ptr() not in self.home and storage._cdata not in self.alive:
                owner = owners[index] if index < len(owners) else where
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes(), owner)
        self._count(where, scratch_bytes(function, args, result))
        return result

    @property
    def total(self) -> dict[str, int]:
        """What was there before, and the peak of what came and went."""
        return {device: sum(self.held[device].values()) + most for device, most in self.peak.items()}


def _copied(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """What two real devices would do, and the CPU leaves out."""
    return tuple(None if each is None else each.clone() for each in gradients)


_DEVICE = "allocated by"


def _tell(function: Any, device: str | None) -> None:
    """With the function itself, which this does not keep alive."""
    function.metadata[_DEVICE] = device


def _told(function: Any) -> str | None:
    device: str | None = function.metadata.get(_DEVICE)
    return device
