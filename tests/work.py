"""How much a call does, told without a clock: the same on a busy machine as on an idle one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

from torch._subclasses import FakeTensorMode

__all__ = ["lines_run", "operators_run"]


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python run while ``work()`` does, each turn of a loop counted, here and in all that it calls.

    What C and numpy do inside one line counts as that line.
    """
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def operators_run(work: Callable[[], object]) -> int:
    """How many operators run on fake tensors while ``work()`` does."""
    count = 0
    dispatch = FakeTensorMode.dispatch

    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        count += 1
        return dispatch(*arguments, **keywords)

    with mock.patch.object(FakeTensorMode, "dispatch", counted):
        work()
    return count
