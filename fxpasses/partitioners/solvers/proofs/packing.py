"""Which bytes fit where, as integer programs: the emptiest fullest device, the fewest devices, what is missing.

No transfers count here, so units that keep, hold and need alike, and may run on the same devices, are one kind of which
a device takes a number. A net of many equal layers is a small program then.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from fxpasses.partitioners.solvers.proofs.assigning import (
    ROUNDING,
    Extra,
    Proof,
    add_assignments,
    add_budgets,
    unit_bytes,
)
from fxpasses.partitioners.solvers.proofs.programs import Program
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Packing", "alike"]


@attrs.frozen(eq=False)
class Packing:
    """Programs over kinds of units.

    Args:
        model: One unit of each kind, without values.
        members: The units of each kind.
        extra: Adds rows on which device runs a unit; each unit is a kind then.
        seconds: How long a program may take, about.
    """

    model: LoadModel
    members: tuple[Ints, ...]
    extra: Extra
    seconds: float

    @classmethod
    def of(cls, model: LoadModel, *, seconds: float, extra: Extra = None) -> Packing:
        """Group the units of a model. Time O(units × devices)."""
        members = alike(model) if extra is None else tuple(np.arange(model.size)[:, None])
        first = np.array([kind[0] for kind in members], dtype=np.int64)
        small = attrs.evolve(
            model,
            weight=model.weight[first],
            banned=model.banned[first],
            kept=model.kept[first],
            live=model.live[first],
            holds=tuple(model.holds[unit] for unit in first.tolist()),
            source=model.source[:0],
            uses=model.uses[:0],
            send=model.send[:0],
        )
        return cls(small, members, extra, seconds)

    @property
    def size(self) -> int:
        """About how many variables a program has."""
        return (self.model.size + len(self.model.shared)) * self.model.devices

    @property
    def counts(self) -> Ints:
        """How many units each kind has."""
        return np.array([len(kind) for kind in self.members], dtype=np.int64)

    def least_bytes(self, *, below: float) -> Proof:
        """The smallest largest need of a device that is at most ``below``, under the budgets."""
        program, runs = self._runs()
        scale = unit_bytes(self.model)
        top = program.add(1, 0.0, below / scale * (1 + ROUNDING) if math.isfinite(below) else np.inf)
        add_budgets(program, self.model, runs, top=(-1.0, top), counts=self.counts)
        add_budgets(program, self.model, runs, counts=self.counts)
        return self._answer(program, (1.0, top), runs, scale)

    def missing_bytes(self) -> Proof:
        """The fewest bytes more on every device with which there is an assignment."""
        program, runs = self._runs()
        more = program.add(1, 0.0, np.inf)
        add_budgets(program, self.model, runs, more=(-1.0, more), counts=self.counts)
        return self._answer(program, (1.0, more), runs, unit_bytes(self.model))

    def fewest_devices(self) -> Proof:
        """The assignment that uses the fewest devices."""
        program, runs = self._runs()
        kinds, count = runs.shape
        used = program.add(count, 0.0, 1.0, whole=True)
        many = -self.counts.astype(np.float64)
        for device in range(count):
            program.at_most(np.zeros(kinds), (1.0, runs[:, device]), (many, np.full(kinds, used[device])))
        add_budgets(program, self.model, runs, counts=self.counts)
        proof = self._answer(program, (1.0, used), runs, 1.0)
        return Proof(proof.home, math.ceil(proof.bound - 1e-4) if math.isfinite(proof.bound) else proof.bound)

    def _runs(self) -> tuple[Program, Ints]:
        return add_assignments(self.model, extra=self.extra, counts=self.counts)

    def _answer(self, program: Program, costs: tuple[float, Ints], runs: Ints, scale: float) -> Proof:
        answer = program.minimize(costs, seconds=self.seconds)
        home = None if answer.x is None else self._homes(answer.x[runs])
        return Proof(home, answer.bound * scale)

    def _homes(self, taken: Floats) -> Ints:
        """Hand the units of each kind to the devices in their order."""
        home = np.zeros(int(self.counts.sum()), dtype=np.int64)
        for kind, members in enumerate(self.members):
            stops = np.cumsum(np.rint(taken[kind]))
            home[members] = np.searchsorted(stops, np.arange(len(members)), side="right")
        return home


def alike(model: LoadModel) -> tuple[Ints, ...]:
    """Units that no budget tells apart, together."""
    found: dict[tuple[object, ...], list[int]] = {}
    for unit in range(model.size):
        facts = (float(model.kept[unit]), float(model.live[unit]), model.holds[unit].tobytes())
        found.setdefault((*facts, model.banned[unit].tobytes()), []).append(unit)
    return tuple(np.array(units, dtype=np.int64) for units in found.values())
