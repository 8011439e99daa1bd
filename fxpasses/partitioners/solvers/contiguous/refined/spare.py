"""How much weight of units left out the devices can take along at most, up to each ideal of a core and from it on.

By the prices a device pays for its load and its bytes (see :mod:`~fxpasses.partitioners.solvers.proofs.bounds`). What
units of the core leave of that, under a threshold on the load, is there for units left out, as if they were a fluid:
they may go to any device, and what they share or need while they run is not charged. Four things hold them back. A unit
left out is not taken before what it needs, nor after what needs it. A device takes no more than what some of them weigh
together (:mod:`~fxpasses.partitioners.solvers.contiguous.refined.subset_sums`). And if it takes any through which a
value of the core goes that passes it by, it pays a toll
(:mod:`~fxpasses.partitioners.solvers.contiguous.refined.stand_ins`), here in proportion to what it takes of them.

The most that is taken up to an ideal and the most from it on are dynamic programs over pairs of ideals, as the best
pipeline is. Where both together are less than all that is left out, no pipeline under the threshold cuts at ideals with
these units of the core. The same sum for a device that runs from one ideal to another says which pairs are left; when
units join the core, only pairs that come from these are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.lifetimes import Lifetimes
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.refined.subset_sums import SubsetSums
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["NOTHING", "Fluid", "Payment", "Question"]

NOTHING = -np.inf
"""What is taken along where no pipeline comes, and left where a device cannot run what is there."""


@attrs.frozen(eq=False)
class Payment:
    """What a device of each class pays: ``room`` at most, ``load`` for a second and ``byte`` for a byte at least."""

    room: Floats
    load: Floats
    byte: Floats


@attrs.frozen(eq=False)
class Fluid:
    """What is left out of a core.

    Args:
        needed: The weight of units left out that each ideal needs, ``(f,)``.
        ready: The weight of those that each ideal allows, ``(f,)``.
        total: The weight of all of them.
        slack: What sums of weights may be off by.
        passing: The values of the core that go through units left out, ``(t,)``, rising.
        along: The weight of those that each ideal allows and does not need, for each of these values, ``(t, f)``.
        toll: What a device of each class pays for any of these while the value passes it by, ``(k, q)``.
        sums: What some of all units left out weigh together.
    """

    needed: Floats
    ready: Floats
    total: float
    slack: float
    passing: Ints
    along: Floats
    toll: Floats
    sums: SubsetSums

    @property
    def enough(self) -> float:
        """What both sides of an ideal take together at least."""
        return self.total - self.slack


@attrs.frozen(eq=False)
class Question:
    """How much the devices can take along by way of each ideal of a core, and between which of them one can run.

    Args:
        spans: The ideals.
        states: How many devices of each class are used.
        allowed: In which states each ideal may be, ``(f, s)``.
        pays: What the devices pay.
        below: The threshold on the load.
        fluid: What they take along.
        coarse: Between which ideals of a coarser core a device can run, ``(g, g)``; None: between all.
        parent: The ideal of the coarser core that each ideal comes from, ``(f,)``.
        lives: What is on a device while it runs units of the core, where that is known.
    """

    spans: Spans
    states: States
    allowed: csr_array[np.int8]
    pays: Payment
    below: float
    fluid: Fluid
    coarse: csr_array[np.int8] | None
    parent: Ints
    lives: Lifetimes | None = None

    @property
    def reach(self) -> float:
        """How much more than the first ideal of a pair the last one weighs at most."""
        return float(self.pays.room.max()) + self.fluid.slack
