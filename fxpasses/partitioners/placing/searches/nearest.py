"""The nearest placement that a search looked at, where none keeps every budget: what is told to who asked for one."""

from __future__ import annotations

import math

import attrs

from fxpasses.partitioners.placing.budget_checks import Seen
from fxpasses.partitioners.placing.device_runs import Runs

__all__ = ["Nearest"]


@attrs.define(eq=False)
class Nearest:
    """Of the placements that pass budgets, the one that lacks the fewest bytes on the device that lacks most."""

    runs: Runs | None = None
    lacking: float = math.inf

    def look_at(self, runs: Runs, seen: Seen) -> None:
        """Note a placement that passes budgets if it is nearer than all before it."""
        lacking = max(seen.over.values(), default=math.inf)
        if lacking < self.lacking:
            self.runs, self.lacking = runs, lacking
