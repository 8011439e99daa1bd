"""Which sums of gradients autograd writes into the first one: it adds in place what nobody else holds.

On tensors without data, and where a mode looks on, it never does; so it has to be told from what there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["AddedGradients"]


class AddedGradients:
    """Tells, while a backward runs, the sums that autograd makes itself from those in its formulas.

    Args:
        with_data: Whether it runs on real tensors.

    Attributes:
        is_between: Whether one function has run, and what it gave is handed on to the next.
    """

    def __init__(self, *, with_data: bool = False) -> None:
        self._of_one = _holders_of_one(with_data)  # asked for before there is a mode in which autograd is off
        self.is_between = False

    def watch(self, functions: Iterable[Any]) -> None:
        """Look at when autograd's functions run; each is told once."""
        for function in functions:
            function.register_prehook(self._enters)
            function.register_hook(self._leaves)

    def _enters(self, _gradients: Any) -> None:
        self.is_between = False

    def _leaves(self, _given: Any, _gradients: Any) -> None:
        self.is_between = True

    def is_in_place(self, operator: Any, args: Any) -> bool:
        """Whether a sum takes no memory of its own, as its first operand is given up for it."""
        return self.is_sum(operator) and _holders(args[0]) == self._of_one and _is_dense(args[0])

    def is_sum(self, operator: Any) -> bool:
        """Whether it is autograd that adds."""
        return self.is_between and operator is torch.ops.aten.add.Tensor


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie together, in any order."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense.default(tensor))


def _holders(tensor: Tensor) -> tuple[int, int] | None:
    """Who holds a tensor, and who its memory."""
    if not hasattr(tensor, "_use_count"):
        return None
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class _FirstSum(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not say
    """Notes who holds the first operand of a sum."""

    holders: tuple[int, int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor:
            self.holders = _holders(args[0])
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=2)
def _holders_of_one(with_data: bool) -> tuple[int, int]:
    """What :func:`_holders` says of a gradient that is only there to be added to: found by one such sum."""
    without_data = nullcontext() if with_data else FakeTensorMode()
    with without_data, torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        given = torch.ones(2, 2, requires_grad=True)
        made = given.sin() @ given.cos()
        with _FirstSum() as first:  # type: ignore[no-untyped-call]  # torch does not say
            torch.autograd.backward([made], [torch.ones(2, 2)])
    return first.holders or (0, 0)
