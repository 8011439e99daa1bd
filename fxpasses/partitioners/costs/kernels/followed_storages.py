"""Follow the storages that operators make, from the operator that makes one until nobody holds it any more."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.partitioners.costs.kernels.composite_operators import in_steps
from fxpasses.partitioners.costs.kernels.kernel_results import as_real
from fxpasses.partitioners.costs.kernels.kernel_scratch import scratch_bytes
from fxpasses.partitioners.tensor_sizes import concrete_size, tensors_in

__all__ = ["CANNOT_RUN", "FollowedStorages", "storages_in", "without_levels"]

CANNOT_RUN = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""What operators raise that cannot run on tensors without data."""


class FollowedStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not say
    """Counts the bytes of what is made while it is on; subclasses are told what comes and goes.

    Attributes:
        held: Bytes of what was made and is there.
        peak: The most of them at one time.
        most: The same with what kernels on the CPU need for themselves.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not say
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.known: dict[int, StorageWeakRef] = {}  # so that no other storage gets the address of one that goes
        self.held = self.peak = self.most = 0
        self._watched: dict[int, weakref.KeyedRef[int, torch.UntypedStorage]] = {}
        self._gone = gone = list[int]()  # told when it happens, so that nobody has to look through all that is there
        self._tell: Any = lambda reference: gone.append(reference.key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.higher_order.cond:
            return self._both_branches(*args)
        if getattr(func, "namespace", "") == "prim":  # a question about a tensor
            return func(*args, **(kwargs or {}))
        if func is torch.ops.aten.equal.default:  # ``istft`` asks so whether something is wrong
            return False
        if (steps := in_steps(func, args)) is not None:
            with self:
                return steps(*args, **(kwargs or {}))
        for storage in storages_in(args):
            if storage._cdata not in self.alive and storage._cdata not in self.known:
                self.known[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch does not say
        result = as_real(func, args, func(*args, **(kwargs or {})))
        made = [storage for storage in storages_in(result) if storage._cdata not in self.known]
        if any(storage._cdata not in self.alive for storage in made):  # only now may there be more than before
            self.forget_gone()
        for storage in made:
            if storage._cdata not in self.alive:
                self.follow(storage._cdata, StorageWeakRef(storage), concrete_size(storage.nbytes()))  # type: ignore[no-untyped-call]  # torch does not say
        scratch = scratch_bytes(func, args, result, kwargs)
        self.peak = max(self.peak, self.held)
        self.need(scratch)
        self.ran(args, scratch)
        return result

    def _both_branches(self, _predicate: Any, then: Any, otherwise: Any, operands: Any) -> Any:
        """What the hungrier one makes is seen."""
        with self:
            otherwise(*operands)
            return then(*operands)

    def forget_gone(self) -> None:
        """Let go of storages that are gone; asked whenever something is made."""
        while self._gone:
            key = self._gone.pop()
            self._watched.pop(key, None)
            self.held -= self.alive.pop(key)[1]
            self.goes(key)

    def follow(self, key: int, reference: StorageWeakRef, size: int) -> None:
        """Count a storage from now on."""
        storage: Any = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # the one object that Python has for it
        if storage is None:
            self._gone.append(key)
        else:
            self._watched[key] = weakref.KeyedRef(storage, self._tell, key)
        self.alive[key] = (reference, size)
        self.held += size
        self.comes(key, size)

    def need(self, scratch: int) -> None:
        """So many bytes were there for a kernel alone."""
        self.most = max(self.most, self.held + scratch)

    def restart(self) -> None:
        """Forget what there is: from now on only what is made later counts."""
        for each in (self.alive, self._watched, self._gone):
            each.clear()
        self.held = self.peak = self.most = 0

    def held_by(self, result: Any) -> int:
        """Bytes of what was made and is in the result."""
        made = dict.fromkeys(storage._cdata for storage in storages_in(result))
        return sum(self.alive[key][1] for key in made if key in self.alive)

    def comes(self, key: int, size: int) -> None:
        """A storage has been made."""

    def goes(self, key: int) -> None:
        """A storage was found to be gone: it was still there when the last operator that made one had run."""

    def ran(self, operands: Any, scratch: int) -> None:
        """An operator has run, and its kernel had so many bytes for itself."""


def storages_in(value: Any) -> Iterator[torch.UntypedStorage]:
    """The storages of the tensors in a value; sparse ones have none."""
    for tensor in map(without_levels, tensors_in(value)):
        if tensor.layout is torch.strided:
            yield tensor.untyped_storage()


def without_levels(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as kernels see it, inside of ``torch.vmap`` too."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
