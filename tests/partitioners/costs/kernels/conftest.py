"""How many threads kernels have."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def _threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)
