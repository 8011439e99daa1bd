"""What all tests share."""

from __future__ import annotations

import gc

import pytest
from fuzz import FUZZ
from hypothesis import settings

pytest_plugins = ["fxpasses.testing"]

# torch warns about itself; a marker wins over -W error on the command line.
TORCHS_OWN = (
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",  # 2.13: its deepcopy of tree specs
    "ignore:The given buffer is not writable:UserWarning",  # 2.11: torch.export.load, of the weights that it reads
    "ignore:Attempting to run cuBLAS:UserWarning",  # the thread of the backward when it begins with a product
)


# In CI the same examples in every run; new ones are for make fuzz.
settings.register_profile("fxpasses", derandomize=FUZZ == 1, deadline=None)
settings.load_profile("fxpasses")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for ignored in TORCHS_OWN:
            item.add_marker(pytest.mark.filterwarnings(ignored))


def pytest_collection_finish() -> None:
    """Collect seldom: with what torch and its graphs make, looking for circles took a fifteenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
