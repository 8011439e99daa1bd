"""How many random examples a test tries: a number that suits CI, many times that under ``make fuzz``."""

from __future__ import annotations

import os

FUZZ = int(os.environ.get("FXPASSES_FUZZ", "1"))
"""1 in CI, where examples are the same in every run; larger under ``make fuzz``, where they are new in each."""


def examples(count: int) -> int:
    """``count`` in CI, ``FXPASSES_FUZZ`` times that under ``make fuzz``."""
    return count * FUZZ
