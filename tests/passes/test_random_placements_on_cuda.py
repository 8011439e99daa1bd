"""Random programs with effects, on a GPU and the CPU: they mean what they meant."""

from __future__ import annotations

import pytest
import torch
from test_random_placements import check_memories

from fxpasses import Device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICES = (Device("gpu", torch_device="cuda:0"), Device("host"), Device("again", torch_device="cuda:0"))


@pytest.mark.parametrize("begin", range(0, 400, 50))
def test_a_random_program_means_the_same_on_a_gpu_and_the_cpu(begin: int) -> None:
    assert sum(check_memories(seed, DEVICES) for seed in range(begin, begin + 50))
