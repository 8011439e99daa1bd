"""Operators that stand for small fused kernels, so that a graph can say what a backend may run as one.

Each is composed of ATen operators: it runs anywhere, on fake tensors too, is differentiable, and decomposes back when
it is traced. ``torch.ops.fxpasses.silu_mul(gate, up)`` is ``silu(gate) * up``;
``torch.ops.fxpasses.linear_gelu(x, weight, bias, approximate)`` is ``gelu(linear(x, weight, bias), approximate)``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

__all__ = ["linear_gelu", "silu_mul"]

_LIBRARY: Any = torch.library.Library("fxpasses", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("silu_mul(Tensor gate, Tensor up) -> Tensor")
_LIBRARY.define('linear_gelu(Tensor input, Tensor weight, Tensor? bias=None, str approximate="none") -> Tensor')


def _silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def _linear_gelu(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    approximate: str = "none",
) -> torch.Tensor:
    return F.gelu(F.linear(input, weight, bias), approximate=approximate)


for _name, _function in (("silu_mul", _silu_mul), ("linear_gelu", _linear_gelu)):
    _LIBRARY.impl(_name, _function, "CompositeImplicitAutograd")

silu_mul: Any = torch.ops.fxpasses.silu_mul.default
linear_gelu: Any = torch.ops.fxpasses.linear_gelu.default
