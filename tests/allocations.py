"""Bytes that are really allocated on the CPU, to compare predictions with."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode


def allocated_peak(run: Callable[[], object]) -> int:
    """The most bytes that torch's allocator has given at one time: also what kernels ask for, unseen by dispatchers.

    It runs twice: what kernels keep for good is there the second time.
    """
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes), default=0)


class AllocatedBytes(TorchDispatchMode):
    """Follows every storage that operators make until it is freed; ``peak`` is the most bytes at one time."""

    supports_higher_order_operators = True

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known = known
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is torch.ops.higher_order.cond:
            predicate, then, otherwise, operands = args
            with self:
                return (then if predicate else otherwise)(*operands)
        result = function(*args, **(kwargs or {}))
        self.alive = {key: each for key, each in self.alive.items() if not each[0].expired()}
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in self.known:
                storage = leaf.untyped_storage()
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result
