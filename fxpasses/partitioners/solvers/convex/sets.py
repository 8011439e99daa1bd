"""Sets of units that are convex, one for each device: which they are, and moves that keep them so.

A set is convex if no path leaves it and comes back. Every pipeline is such a placement, but not the other way round:
two convex sets can each need a value of the other, so a device has to run its nodes one by one and wait in between; if
each set is one part that runs as a whole, the two wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reaching import Reach
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["ROWS", "ConvexSets"]

ROWS = 5000
"""Rows that keep sets convex up to which an integer program is asked."""


@attrs.frozen(eq=False)
class ConvexSets:
    """What units need and where they may be, and which units lead to which."""

    model: LoadModel
    reach: Reach

    def is_legal(self, home: Ints) -> bool:
        """Whether an assignment keeps the budgets, and each set is convex."""
        return bool(self.model.legal(home[None])[0]) and all(
            self.reach.is_convex(np.flatnonzero(home == device).tolist()) for device in np.unique(home).tolist()
        )

    def moves(self, home: Ints, among: Iterable[int]) -> Iterator[Ints]:
        """Take one of some units, and all that follows it (or all that it follows) on its device, to another device.

        Both sets stay convex; budgets are not looked at.
        """
        sets = [np.flatnonzero(home == device).tolist() for device in range(self.model.devices)]
        for unit in among:
            own = sets[int(home[unit])]
            for part in dict.fromkeys((self.reach.following(unit, own), self.reach.leading(unit, own))):
                rest = [other for other in own if other not in part]
                if not self.reach.is_convex(rest):
                    continue
                for device, there in enumerate(sets):
                    banned = self.model.banned[list(part), device].any()
                    if device != home[unit] and not banned and self.reach.is_convex([*there, *part]):
                        moved = home.copy()
                        moved[list(part)] = device
                        yield moved

    @property
    def row_count(self) -> int:
        """How many rows :meth:`rows` adds."""
        return len(self.reach.triples()) * self.model.devices

    def rows(self, program: Program, runs: Ints) -> None:
        """Whoever holds a unit and one that a path leads to holds the next one on that path."""
        triples = self.reach.triples()
        for device in range(self.model.devices if len(triples) else 0):
            first, middle, last = (runs[triples[:, place], device] for place in range(3))
            program.at_most(np.ones(len(triples)), (1.0, first), (1.0, last), (-1.0, middle))
