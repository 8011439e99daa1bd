"""Placement with replicas as an integer program over nodes: where each is computed, from where its value is sent."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, WIDER
from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["ReplicaProgram"]


@attrs.frozen(eq=False)
class ReplicaProgram:
    """The smallest largest load when some nodes, ``may``, can be computed on several devices."""

    problem: PlacementProblem
    tables: CostTables
    may: NDArray[np.bool_]

    @property
    def size(self) -> int:
        """About how many variables there are."""
        count, kinds = self.tables.seconds.shape
        return int(count * kinds * (kinds + 4))

    @property
    def is_known(self) -> bool:
        """Whether the program says all there is: a pipeline with backward nodes has two directions, and is left out."""
        return self.problem.contiguity == "free" or not np.any(self.tables.forward >= 0)

    def solve(self, below: float, *, seconds: float) -> tuple[Ints | None, NDArray[np.bool_] | None, float]:
        """Homes and presence of nodes whose largest load is at most ``below``, and the proven bound.

        Seconds are shares of ``below``, which is more than 0. What takes longer alone is left out, or sent in twice
        that: such numbers would leave no digits for the others.
        """
        tables = self.tables
        count, kinds = tables.seconds.shape
        allowed = tables.seconds <= below * (1 + ROUNDING)
        program = Program()
        here = program.add((count, kinds), 0.0, np.where(allowed, 1.0, 0.0), whole=True)
        home = program.add((count, kinds), 0.0, 1.0, whole=True)
        program.equal(np.ones(count), (1.0, home))
        program.at_most(np.zeros(count * kinds), (1.0, home.reshape(-1, 1)), (-1.0, here.reshape(-1, 1)))
        once = np.flatnonzero(~self.may)
        program.at_most(np.ones(len(once)), (1.0, here[once]))
        self._together(program, home)
        self._budgets(program, here)
        top = program.add(1, 0.0, 1 + ROUNDING)
        weights = np.where(allowed, tables.seconds, 0.0) / below
        terms = self._sent(program, here, home, below)
        program.at_most(
            np.zeros(kinds), (weights.T, here.T), *terms, (-1.0, np.broadcast_to(top, kinds).reshape(-1, 1))
        )
        answer = program.minimize((1.0, top), seconds=seconds)
        if answer.x is None:
            return None, None, answer.bound * below
        return np.argmax(answer.x[home], axis=1), answer.x[here] > 0.5, answer.bound * below

    def _together(self, program: Program, home: Ints) -> None:
        position = {node: index for index, node in enumerate(self.tables.nodes)}
        pairs = [(position[a], position[b]) for group in self.problem.colocate for a, b in itertools.pairwise(group)]
        pairs += [(int(node), int(self.tables.forward[node])) for node in np.flatnonzero(self.tables.forward >= 0)]
        for first, second in pairs:
            program.equal(np.zeros(home.shape[1]), (1.0, home[first]), (-1.0, home[second]))

    def _budgets(self, program: Program, here: Ints) -> None:
        tables = self.tables
        unit = float(max(tables.kept.max(initial=1), tables.shared.max(initial=1), tables.live.max(initial=1), 1))
        for device in np.flatnonzero(np.isfinite(tables.memory)).tolist():
            held, most = program.add(len(tables.shared), 0.0, 1.0), program.add(1, 0.0, np.inf)
            if len(tables.shares):
                key, node = tables.shares[:, 0], tables.shares[:, 1]
                program.at_most(np.zeros(len(key)), (1.0, here[node, device]), (-1.0, held[key]))
            live = np.flatnonzero(tables.live)
            if live.size:
                peak = np.repeat(most, len(live))
                program.at_most(np.zeros(len(live)), (tables.live[live] / unit, here[live, device]), (-1.0, peak))
            terms: list[tuple[ArrayLike, Ints]] = [(tables.kept[None, :] / unit, here[None, :, device]), (1.0, most)]
            if len(held):
                terms.append((tables.shared[None, :] / unit, held[None, :]))
            program.at_most(tables.memory[device] / unit * (1 + WIDER), *terms)

    def _sent(self, program: Program, here: Ints, home: Ints, below: float) -> list[tuple[Floats, Ints]]:
        """What is sent from a device to another, and what that adds to the loads of both."""
        tables = self.tables
        count, kinds = here.shape
        enters = program.add((count, kinds), 0.0, 1.0)
        sent = program.add((count, kinds, kinds), 0.0, 1.0)
        longest = program.add((count, kinds), 0.0, np.inf)
        seconds = np.zeros((count, kinds, kinds))
        need, user = tables.edges[:, 0], tables.edges[:, 1]
        ahead = self._ahead(program, kinds)
        for target in range(kinds):
            if len(need):
                program.at_most(
                    np.zeros(len(need)),
                    (1.0, here[user, target]),
                    (-1.0, here[need, target]),
                    (-1.0, enters[need, target]),
                )
            for source in range(kinds):
                if source == target:
                    continue
                over = sent[:, source, target]
                with np.errstate(over="ignore"):  # whatever takes more than twice as long takes twice
                    seconds[:, source, target] = np.minimum(tables.sending(source, target) / below, 2.0)
                program.at_most(np.ones(count), (1.0, home[:, source]), (1.0, enters[:, target]), (-1.0, over))
                program.at_most(np.zeros(count), (seconds[:, source, target], over), (-1.0, longest[:, source]))
                if ahead is not None:
                    allowed = np.full(count, ahead[source, target])
                    program.at_most(np.zeros(count), (1.0, over), (-1.0, allowed))
        return [
            (seconds.transpose(2, 0, 1).reshape(kinds, -1), sent.transpose(2, 0, 1).reshape(kinds, -1)),
            (np.ones((kinds, count)), longest.T),
        ]

    def _ahead(self, program: Program, kinds: int) -> Ints | None:
        """For pipelines, places of devices in one order: nothing is sent against it."""
        if self.problem.contiguity == "free":
            return None
        ahead = program.add((kinds, kinds), 0.0, 1.0, whole=True)
        place = program.add(kinds, 0.0, float(kinds))
        for first in range(kinds):
            for second in range(kinds):
                if first != second:
                    program.at_most(
                        float(kinds) - 1.0,
                        (1.0, place[first, None]),
                        (-1.0, place[second, None]),
                        (float(kinds), ahead[first, second, None]),
                    )
        return ahead
