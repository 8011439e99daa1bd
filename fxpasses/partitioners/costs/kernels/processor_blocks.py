"""What the processor computes with at once: vectors and tiles, in whole blocks of which kernels lay out memory."""

from __future__ import annotations

import os

import torch

__all__ = ["ALIGNMENT", "FLOAT", "LARGEST_VECTOR", "has_tiles", "lanes", "may_use_tiles", "round_up", "vector_size"]

ALIGNMENT = 128
FLOAT = 4
LARGEST_VECTOR = 16


def vector_size() -> int:
    """As many floats as the processor computes with at once."""
    return LARGEST_VECTOR if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else LARGEST_VECTOR // 2


def lanes(count: int, vector: int) -> int:
    """So many channels are computed at once: up to four vectors."""
    return next((some for some in (vector, 2 * vector) if count <= some), 4 * vector)


def has_tiles(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies tiles of a type."""
    return dtype is torch.bfloat16 and may_use_tiles()


def may_use_tiles() -> bool:
    """Whether this processor has tiles, and oneDNN is not told by the environment to do without."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL"
    is_allowed = limit.upper() in ("ALL", "DEFAULT") or "AMX" in limit.upper()
    return is_allowed and torch.cpu._is_amx_tile_supported()


def round_up(count: int, block: int) -> int:
    """The next multiple of ``block``."""
    return -(-count // block) * block
