"""What all tests share."""

from __future__ import annotations

import pytest
from fuzz import FUZZ
from hypothesis import settings

pytest_plugins = ["fxpasses.testing"]

# torch 2.13 warns about its own deepcopy of tree specs; a marker wins over -W error on the command line.
TORCHS_OWN = "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning"


# In CI the same examples in every run; new ones are for make fuzz.
settings.register_profile("fxpasses", derandomize=FUZZ == 1, deadline=None)
settings.load_profile("fxpasses")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings(TORCHS_OWN))
