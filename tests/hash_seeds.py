"""What code prints in processes that hash texts differently, for tests that nothing depends on that."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["printed_under_two_hash_seeds"]


def printed_under_two_hash_seeds(code: str, *folders: str) -> list[str]:
    """What some code prints in two processes; it may import what is in ``tests`` and in the folders."""
    path = os.pathsep.join([*sys.path, "tests", *folders])
    environments = (os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path} for seed in ("1", "2"))
    return [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=each).stdout
        for each in environments
    ]
