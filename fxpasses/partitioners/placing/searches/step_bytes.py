"""About what a device needs in a training step that runs from one ideal of a graph to another.

What it has saved goes as its backward comes to the first operator that saved it, and gradients come: of a cell that
runs in many steps there are those of its parameters, and their sums, while nearly all is still saved. That follows from
the run alone if its backward goes in the graph's own order, but for what other devices send; so this is what is
expected, and no bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures, value_bytes
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.searches.run_blocks import in_blocks
from fxpasses.partitioners.placing.training_figures import sent_storages
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["StepBytes"]

Bools = NDArray[np.bool_]

TRUST = 0.98
"""How much of what is expected counts: a run that is left out for nothing is never tried."""

Sizes = tuple[tuple[int, int], ...]
"""Storages with their bytes."""


@attrs.frozen
class _Step:
    """What one operator brings to a run that holds it.

    Args:
        unit: Its unit.
        held: What it reads of parameters and buffers, with what the optimizer keeps for them.
        saved: What it saves.
        kept: Bytes of what it saves besides, and of what the caller gives as a gradient of its value.
        made: Bytes of what its backward makes, and others read.
        beside: Bytes that come and go in its backward, in which what goes in it may be missing.
        last: What goes with its backward: the units that made it, and bytes.
        handed: Gradients of parameters that go where they are added to others if the run does not hold that: the unit
            that is read in, and bytes.
        stepped: Parameters that are trained and that it is the first to use, each with what the optimizer keeps for it
            if it is not in ``held``: these the optimizer sees on the device of the run.
        own: Gradients of what it reads of parameters that a run has of its own if it does not hold the unit that makes
            the gradient of all uses: a number for each, bytes, this unit.
    """

    unit: int
    held: Sizes
    saved: Sizes
    kept: int
    made: int
    beside: int
    last: Sizes
    handed: Sizes
    stepped: Sizes
    own: tuple[tuple[int, int, int], ...]


@attrs.frozen(eq=False)
class StepBytes:
    """The bytes of runs between ideals, in a training step.

    Args:
        training: What the optimizer keeps and makes.
        inside: The units of each ideal, ``(m, f)``.
        steps: The operators in graph order.
        least: What is known of each run besides, ``(f, f)``.
    """

    training: Training
    inside: Bools
    steps: tuple[_Step, ...]
    least: Floats

    @classmethod
    def of(
        cls, figures: GraphFigures, step: TrainingStep, family: CutFamily, unit_of: Mapping[Node, int], least: Floats
    ) -> StepBytes:
        """Ask what was traced; time O(operators and what they save).

        Args:
            figures: The measured graph as a training step sees it, see :func:`.training_figures`.
            step: The training step.
            family: The ideals.
            unit_of: The unit of each compute node.
            least: What is known of each run besides, ``(f, f)``.
        """
        needs, goes = step.needs, _Stays.of(step.needs, unit_of)
        stepped, own = _of_parameters(figures, step, unit_of)
        steps = []
        for node, constants in zip(figures.nodes, figures.constants, strict=True):
            held = tuple(each for each in constants.items() if each[0] >= 0 and each[0] not in figures.sizes)
            owners = (storage for owner in needs.saved.get(node, ()) for storage in figures.homes[owner])
            saved = tuple(
                (storage, figures.sizes[storage]) for storage in dict.fromkeys(owners) if storage in figures.sizes
            )
            beside = max(needs.beside.get(node, 0), needs.beside_on_cpu.get(node, 0))
            steps.append(
                _Step(
                    unit_of[node],
                    held,
                    saved,
                    kept=goes.kept[node],
                    made=goes.made[node],
                    beside=beside,
                    last=tuple(goes.last.get(node, {}).items()),
                    handed=tuple(goes.handed.get(node, {}).items()),
                    stepped=tuple(stepped.get(node, ())),
                    own=tuple(own.get(node, ())),
                )
            )
        return cls(step.training, family.inside, tuple(steps), least)

    def of_runs(self, first: Ints, last: Ints) -> Floats:
        """The bytes of some runs, each from an ideal to one that holds it; time O((operators + storages) × runs)."""
        needed: Floats = np.maximum(TRUST * in_blocks(self._of_block, first, last), self.least[first, last])
        return needed

    def _of_block(self, first: Ints, last: Ints) -> Floats:
        runs = self.inside[:, last] & ~self.inside[:, first]
        there, most, total, largest, second = np.zeros((5, len(first)))
        held, saved, freed = dict[int, Bools](), dict[int, Bools](), list[Floats]()
        for step in self.steps:
            own = runs[step.unit]
            freed.append(_of_new(step.saved, own, saved))
            there += _of_new(step.held, own, held) + freed[-1] + step.kept * own
            for size, kept in step.stepped:
                there += kept * own
                total += size * own
                second = np.maximum(second, np.minimum(largest, size * own))
                largest = np.maximum(largest, size * own)
        gradients = dict[int, Bools]()
        for step in reversed(self.steps):
            own = runs[step.unit]
            there += step.made * own
            for number, size, maker in step.own:
                there += _of_new(((number, size),), own & ~runs[maker], gradients)
            np.maximum(most, there + step.beside, out=most, where=own)
            there -= freed.pop()
            for maker, size in step.last:
                there -= size * (own & runs[maker])
            for reader, size in step.handed:
                there -= size * (own & ~runs[reader])
        needed: Floats = np.maximum(most, there + self.training.made_of(total, largest, second))
        return needed


@attrs.frozen(eq=False)
class _Stays:
    """What is no value of the forward, by the operators that make it and those with whose backward it goes."""

    kept: Counter[Node] = attrs.field(factory=Counter)
    made: Counter[Node] = attrs.field(factory=Counter)
    last: dict[Node, Counter[int]] = attrs.field(factory=dict)
    handed: dict[Node, Counter[int]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, needs: BackwardNeeds, unit_of: Mapping[Node, int]) -> _Stays:
        found = cls()
        for stay in needs.stays:
            (found.made if stay.begin == "backward" else found.kept)[stay.made_by] += stay.size
            if stay.last is not None and stay.made_by in unit_of:
                found.last.setdefault(stay.last, Counter())[unit_of[stay.made_by]] += stay.size
                if stay.gradient_of and stay.last in unit_of:
                    found.handed.setdefault(stay.made_by, Counter())[unit_of[stay.last]] += stay.size
        return found


def _of_parameters(
    figures: GraphFigures, step: TrainingStep, unit_of: Mapping[Node, int]
) -> tuple[dict[Node, list[tuple[int, int]]], dict[Node, list[tuple[int, int, int]]]]:
    """By operator what the optimizer sees where it is, and the gradients that a run may have of its own."""
    stepped: dict[Node, list[tuple[int, int]]] = {}
    own: dict[Node, list[tuple[int, int, int]]] = {}
    sent, slots = sent_storages(figures), step.training.optimizer_slots
    for number, (parameter, maker) in enumerate(step.needs.trained.items()):
        users = sorted((user for user in parameter.users if user in unit_of), key=figures.position.__getitem__)
        if users and maker in unit_of:
            size, is_sent = value_bytes(parameter), not sent.isdisjoint(figures.effects.storages(parameter))
            stepped.setdefault(users[0], []).append((size, int(slots * size) if is_sent else 0))
            for user in users:
                own.setdefault(user, []).append((number, size, unit_of[maker]))
    return stepped, own


def _of_new(sizes: Sizes, own: Bools, seen: dict[int, Bools]) -> Floats:
    """Bytes of what was not there before, in the runs that hold an operator; now it is."""
    found = np.zeros(len(own))
    for storage, size in sizes:
        before = seen.get(storage)
        if before is None:
            found += size * own
            seen[storage] = own
        else:
            found += size * (own & ~before)
            seen[storage] = before | own
    return found
