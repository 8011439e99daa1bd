"""Run the stages of a pipe in one process: forward, and a backward for each stage on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxpasses.pipelining.stages import StageModule

__all__ = ["run_forward", "run_forward_and_backward"]


def run_forward(stages: Sequence[StageModule], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run all stages; the autograd graph goes through all of them."""
    first, *others = stages
    value = first(*args, **kwargs)
    for stage in others:
        value = stage(*value)
    return value


def run_forward_and_backward(
    stages: Sequence[StageModule],
    loss_of: Callable[[Any], torch.Tensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Run all stages, and then the backward of each from the last to the first; gradients are handed back in between.

    Returns:
        What the last stage gives.
    """
    first, *others = stages
    value = first(*args, **kwargs)
    hops: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = []
    for stage in others:
        received = tuple(sent.detach().requires_grad_() for sent in value)
        hops.append((value, received))
        value = stage(*received)
    loss_of(value).backward()  # type: ignore[no-untyped-call]  # torch's
    for sent, received in reversed(hops):
        pairs = [(made, taken.grad) for made, taken in zip(sent, received, strict=True)]
        known = [(made, gradient) for made, gradient in pairs if made.requires_grad and gradient is not None]
        torch.autograd.backward([made for made, _ in known], [gradient for _, gradient in known])
    return value
