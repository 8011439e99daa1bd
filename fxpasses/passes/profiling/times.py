"""Time a call on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["median_seconds"]

_SHORTEST = 200e-6
"""Seconds below which a clock says little: shorter calls are timed several at once."""
_MOST_CALLS = 100


def median_seconds(call: Callable[[], Any], device: torch.device, warmup: int, repeats: int) -> float:
    """The median seconds of a call, after some that do not count."""
    for _ in range(warmup):
        call()
    once = _timed(call, device, 1)
    calls = max(1, min(_MOST_CALLS, int(_SHORTEST / max(once, 1e-9))))
    return statistics.median(_timed(call, device, calls) for _ in range(repeats))


def _timed(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    _wait_for(device)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    _wait_for(device)
    return (time.perf_counter() - begin) / calls


def _wait_for(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)
