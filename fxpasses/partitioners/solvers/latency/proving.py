"""Latency as an integer program: which device runs a unit, when each node starts, which of two nodes goes first."""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import ArrayLike

from fxpasses.partitioners.solvers.latency.heads import Heads
from fxpasses.partitioners.solvers.latency.scheduling import Scheduler
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, Extra, add_assignments, add_budgets
from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["LatencyProgram"]


@attrs.frozen(eq=False)
class LatencyProgram:
    """The program for nodes in units, or its linear relaxation.

    Args:
        model: What units need, and where they may be.
        scheduler: The nodes.
        unit_of: The unit of each node.
        heads: When each node can start at the earliest, and what has to follow it.
    """

    model: LoadModel
    scheduler: Scheduler
    unit_of: Ints
    heads: Heads

    @property
    def size(self) -> int:
        """About how many variables there are."""
        edges = int((self.scheduler.before < len(self.unit_of)).sum())
        return int(self.model.size * self.model.devices + len(self.unit_of) + edges + len(self._unrelated()))

    def solve(self, below: float, *, seconds: float, extra: Extra = None) -> tuple[Ints | None, Floats | None, float]:
        """The devices of units and the starts of nodes, None if none was found, and the proven bound.

        ``below`` is a makespan that is reached already; ``inf`` when none is known. ``extra`` adds rows, for pipelines
        or convex sets.
        """
        program, runs, start, top, scale = self._under(below)._built(below, whole=True, extra=extra)
        answer = program.minimize((1.0, top), seconds=seconds)
        if answer.x is None:
            return None, None, answer.bound * scale
        return np.argmax(answer.x[runs], axis=1), answer.x[start] * scale, answer.bound * scale

    def relaxed(self) -> float:
        """What no schedule can be below: units in fractions, devices that run several nodes at once."""
        program, _runs, _start, top, scale = self._built(math.inf, whole=False)
        answer = program.minimize((1.0, top), seconds=math.inf)
        return answer.bound * scale if np.isfinite(answer.bound) else 0.0

    def _under(self, below: float) -> LatencyProgram:
        """The same for makespans up to ``below``, see :meth:`LoadModel.under`: a device runs a unit's nodes in turn."""
        if not np.isfinite(below):
            return self
        most, scheduler, heads = below * (1 + ROUNDING), self.scheduler, self.heads
        model = self.model.under(most)
        seconds = np.where(model.banned[self.unit_of], 0.0, scheduler.seconds)
        return attrs.evolve(
            self,
            model=model,
            scheduler=attrs.evolve(scheduler, seconds=seconds, send=np.minimum(scheduler.send, 2 * most)),
            heads=attrs.evolve(heads, head=np.minimum(heads.head, 2 * most), tail=np.minimum(heads.tail, 2 * most)),
        )

    def _built(self, below: float, *, whole: bool, extra: Extra = None) -> tuple[Program, Ints, Ints, Ints, float]:
        seconds, unit_of = self.scheduler.seconds, self.unit_of
        fastest = np.where(self.model.banned[unit_of], np.inf, seconds).min(axis=1)
        fastest = fastest[np.isfinite(fastest)]
        scale = float(fastest.max(initial=0.0)) or float(self.scheduler.send.max()) or 1.0
        slowest = float(seconds.max(axis=1).sum() + self.scheduler.send.max(axis=(1, 2)).sum())
        horizon = min(below, slowest) / scale * (1 + ROUNDING)
        program, runs = add_assignments(self.model, whole=whole, extra=extra)
        low = np.minimum(self.heads.head.min(axis=1) / scale * (1 - ROUNDING), horizon)
        start, top = program.add(len(unit_of), low, horizon), program.add(1, 0.0, horizon)
        add_budgets(program, self.model, runs)
        none = np.zeros(len(unit_of))
        with np.errstate(over="ignore"):  # numbers of which the program takes none
            behind = (seconds + self.heads.tail) / scale * (1 - ROUNDING)  # (n, k): what each takes, and then the rest
        last = np.broadcast_to(top, (len(unit_of), 1))
        program.at_most(none, (behind, runs[unit_of]), (1.0, start[:, None]), (-1.0, last))
        program.at_most(none, (self.heads.head / scale * (1 - ROUNDING), runs[unit_of]), (-1.0, start[:, None]))
        each = np.broadcast_to(top, self.model.devices)
        program.at_most(np.zeros(self.model.devices), (seconds.T / scale, runs[unit_of].T), (-1.0, each))
        self._edges(program, runs, start, scale, crossing=whole)
        if whole:
            self._one_at_a_time(program, runs, start, scale, horizon)
            if self._alike() and self.model.devices > 1:  # which device is called the first does not matter
                heaviest = int(np.argmax(self.model.weight[:, 0]))
                program.at_most(0.0, (1.0, runs[heaviest, None, 1:]))
        return program, runs, start, top, scale

    def _edges(self, program: Program, runs: Ints, start: Ints, scale: float, *, crossing: bool) -> None:
        """A node starts after what it needs, and after the copy where they are on two devices."""
        node, column = np.nonzero(self.scheduler.before < len(self.unit_of))
        need = self.scheduler.before[node, column]
        if not len(node):
            return
        seconds, kinds = self.scheduler.seconds / scale, self.model.devices
        terms: list[tuple[ArrayLike, Ints]] = [
            (seconds[need], runs[self.unit_of[need]]),
            (1.0, start[need]),
            (-1.0, start[node]),
        ]
        if not crossing or kinds < 2:
            program.at_most(np.zeros(len(node)), *terms)
            return
        sent = program.add(len(node), 0.0, np.inf)
        program.at_most(np.zeros(len(node)), *terms, (1.0, sent))
        for source in range(kinds):
            for target in range(kinds):
                if source != target:
                    taken = self.scheduler.send[need, source, target] / scale
                    here, there = runs[self.unit_of[need], source], runs[self.unit_of[node], target]
                    program.at_most(taken, (taken, here), (taken, there), (-1.0, sent))

    def _unrelated(self) -> list[tuple[int, int]]:
        """Pairs of nodes that take time and that no path connects."""
        count = len(self.unit_of)
        reach = np.zeros((count, count), dtype=bool)
        for node in self.scheduler.topological.tolist():
            needs = self.scheduler.before[node][self.scheduler.before[node] < count]
            reach[node] = np.any(reach[needs], axis=0)
            reach[node, needs] = True
        busy = (self.scheduler.seconds > 0).any(axis=1)
        apart = np.logical_not(reach | reach.T) & np.outer(busy, busy)
        pairs = np.argwhere(np.triu(apart, 1)).tolist()
        return [(first, second) for first, second in pairs]

    def _one_at_a_time(self, program: Program, runs: Ints, start: Ints, scale: float, horizon: float) -> None:
        pairs = np.array(self._unrelated(), dtype=np.int64).reshape(-1, 2)
        first, last = self._windows(scale, horizon)
        pairs = pairs[(last[pairs] > first[pairs[:, ::-1]]).all(axis=1)]
        if not len(pairs):
            return
        goes_first = program.add(len(pairs), 0.0, 1.0, whole=True)
        for device in range(self.model.devices):
            for (one, other), sign, right in (((0, 1), 1.0, 3.0), ((1, 0), -1.0, 2.0)):
                early, late = pairs[:, one], pairs[:, other]
                taken = self.scheduler.seconds[early, device] / scale
                both = np.stack([runs[self.unit_of[early], device], runs[self.unit_of[late], device]], axis=1)
                relevant = np.flatnonzero((taken > 0) & (self.scheduler.seconds[late, device] > 0))
                if relevant.size:
                    most = np.maximum(last[early[relevant]] - first[late[relevant]], 0.0)  # how much later it can end
                    elsewhere = most + taken[relevant]  # where it may take no time at all
                    program.at_most(
                        right * most,
                        (1.0, start[early[relevant]]),
                        (-1.0, start[late[relevant]]),
                        (np.stack([elsewhere, most], axis=1), both[relevant]),
                        (sign * most, goes_first[relevant]),
                    )

    def _alike(self) -> bool:
        """Whether nothing sees which device it is on, and which link it takes."""
        model, apart = self.model, ~np.eye(self.model.devices, dtype=bool)
        seconds, send = self.scheduler.seconds, self.scheduler.send[:, apart]
        same = (seconds == seconds[:, :1]).all() and (model.memory == model.memory[0]).all()
        return bool(same and not model.banned.any() and (send == send[:, :1]).all())

    def _windows(self, scale: float, horizon: float) -> tuple[Floats, Floats]:
        """When each node can start at the earliest, and has to end at the latest."""
        head, tail = self.heads.head.min(axis=1), self.heads.tail.min(axis=1)
        return head / scale * (1 - ROUNDING), horizon - tail / scale * (1 - ROUNDING)
