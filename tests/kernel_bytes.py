"""Bytes that kernels on the CPU ask torch's allocator for beside their operands and results, against predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from allocations import allocated_peak

from fxpasses.partitioners.costs.kernels.kernel_scratch import scratch_bytes
from fxpasses.partitioners.tensor_sizes import tensors_in


def beside_its_result(run: Callable[[], Any]) -> int:
    """What was allocated beside what came out."""
    with torch.no_grad():
        made = sum(tensor.nbytes for tensor in tensors_in(run()))
        return allocated_peak(run) - made


def assert_near(func: Any, args: Sequence[Any], more: float = 1.1, tables: int = 512, short: int | None = None) -> None:
    """Never less than the kernel asks for, and hardly more, beside its operands and its result.

    ``tables`` are bytes of what kernels have whatever the sizes are; ``short`` is how many of them may be missing.
    """
    with torch.no_grad():
        result = func(*args)
    predicted, real = scratch_bytes(func, args, result), beside_its_result(lambda: func(*args))
    around = sum(tensor.nbytes for tensor in tensors_in([args, result]))
    assert real <= predicted + (tables if short is None else short)
    assert around + predicted <= more * (around + real) + tables


def has_instructions_for(dtype: torch.dtype) -> bool:
    """Whether this processor computes in a type of half precision; others multiply as floats, with other blocks."""
    if dtype is torch.bfloat16:
        return torch.cpu._is_avx512_bf16_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
