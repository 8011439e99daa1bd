"""Draw the same random numbers each time, and leave everybody's own where they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["seeded"]


@contextlib.contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Inside, random numbers start from a seed; afterwards they go on as if none had been drawn.

    That holds for the CPU and, once somebody has used CUDA, for each GPU; before that nobody draws on one.

    Args:
        seed: Where they start.
    """
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    devices = range(torch.cuda.device_count() if used else 0)
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        yield
