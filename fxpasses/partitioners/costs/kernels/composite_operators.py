"""Which operators torch runs by calling others, so that what they cost and make is told by those."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

__all__ = ["is_composite"]


@lru_cache(maxsize=4096)
def is_composite(operator: Any) -> bool:
    """Whether an overload is written in terms of others; False for operators of TorchScript, which no dispatcher knows.

    >>> is_composite(torch.ops.aten.matmul.default), is_composite(torch.ops.aten.mm.default)
    (True, False)
    """
    try:
        return bool(operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))
    except RuntimeError:  # an operator of TorchScript alone, on numbers or lists
        return False
