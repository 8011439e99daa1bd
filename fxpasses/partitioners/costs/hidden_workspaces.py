"""Memory that a kernel hands to its backward, and of which torch's run without data says nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ShownWorkspaces", "with_workspace"]

_PAGE, _LINE, _BYTES = 4096, 16, 4  # floats in a cache line


class ShownWorkspaces(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not say
    """Operators have the workspaces while it is on."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return with_workspace(func, args, func(*args, **(kwargs or {})))


def with_workspace(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """The result of an operator on tensors without data, with a workspace as large as it would really have."""
    if func is torch.ops.aten.mkldnn_rnn_layer.default and torch.is_grad_enabled():
        *results, _empty = result
        size = lstm_workspace_bytes(args[0], hidden=args[10], batch_first=args[14])
        return (*results, torch.empty(size, dtype=torch.uint8, device=args[0].device))
    return result


def lstm_workspace_bytes(given: Tensor, *, hidden: int, batch_first: bool) -> int:
    """At least what oneDNN keeps of one layer of an LSTM in one direction: gates, states and their gradients.

    It is exact for most layers, and 1.1 times as much for narrow ones; in half the precision 1.5 times.

    Source: oneDNN, ``src/cpu/rnn/rnn_utils.hpp``: ``set_workspace_sizes`` and ``get_good_ld``.
    """
    batch, steps = (given.shape[0], given.shape[1]) if batch_first else (given.shape[1], given.shape[0])
    states = 2 * (steps + 1) * batch
    wide, narrow = _row(max(given.shape[2], hidden)), _row(hidden)
    sizes = (steps * batch * _row(4 * hidden), *3 * [states * wide], *2 * [states * narrow], steps * batch * narrow)
    return sum(-(-size // _PAGE) * _PAGE for size in sizes)


def _row(width: int) -> int:
    """Bytes of a row: whole cache lines, and no multiple of 256 elements, which would share places in the cache."""
    padded = -(-width // _LINE) * _LINE
    return _BYTES * (padded + _LINE if padded % 256 == 0 else padded)
