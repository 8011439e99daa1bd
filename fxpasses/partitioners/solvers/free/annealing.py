"""Anneal many assignments at once, in numpy: the heat bath on a norm of the loads, and the good ones take over.

Each step takes one unit, works out what every device would carry with the unit on each device, for all assignments
together, and draws its new device (heat bath). The energy is a p-norm of the loads (Kernighan-style moves see a plateau
on the maximum alone) plus what passes the budgets. Between temperatures the worst assignments become copies of the best
ones (population annealing: Hukushima & Iba 2003; Machta, Physical Review E 82, 2010).
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Annealer", "Best"]

STAYS = 8.0
"""A unit does not move alone whose values then cost so many times the temperature more than it takes."""
MAKE_ROOM = 400
"""Units that are drawn among the others for each sweep where memory has a limit."""
PENALTY = 2.0
"""What a device that needs twice its budget adds to the energy."""


@attrs.define(eq=False)
class Best:
    """The best assignment that was seen, and its largest load; ``inf`` while none kept every budget."""

    value: float
    home: Ints

    def offer(self, figures: Floats, legal: NDArray[np.bool_], homes: Ints) -> None:
        """Take the best of some assignments if it is better."""
        value = np.where(legal, figures.max(axis=1), np.inf)
        first = int(np.argmin(value))
        if value[first] < self.value:
            self.value, self.home = float(value[first]), homes[first].copy()


@attrs.frozen(eq=False)
class _Near:
    """The values around one unit: those that it uses and those that it makes, and the blocks that it holds."""

    used: Ints
    makers: Ints
    made: Ints
    send_used: Floats  # (d, k, k)
    send_made: Floats  # (d, k, k)
    blocks: Ints


class Annealer:
    """Assignments of one model, their loads and needs, kept up to date move by move."""

    def __init__(
        self, model: LoadModel, homes: Ints, *, scale: float, squarings: int, draw: np.random.Generator
    ) -> None:
        self.model, self.scale, self.squarings, self.draw = model, scale or 1.0, squarings, draw
        self.rows = np.arange(len(homes))
        self.homes = homes.copy()
        self.near = _neighbourhoods(model)
        self.has_live = bool(model.live.any())
        room = np.where(np.isfinite(model.memory), np.maximum(model.memory, 1.0), 1.0)
        self.hard_per_byte = self.per_byte = PENALTY / room
        self.tight = bool(np.isfinite(model.memory).any())
        self.alone = _alone(model)
        self._restart()

    def _restart(self) -> None:
        model = self.model
        self.load, self.users = model.loads(self.homes), model.users(self.homes)
        self.holders = model.holders(self.homes)
        self.bytes = np.zeros_like(self.load)
        rows = self.rows[:, None]
        np.add.at(self.bytes, (rows, self.homes), np.broadcast_to(model.kept, self.homes.shape))
        self.bytes += (self.holders > 0).transpose(0, 2, 1) @ model.shared
        self.live = np.zeros_like(self.load)
        np.maximum.at(self.live, (rows, self.homes), np.broadcast_to(model.live, self.homes.shape))

    def sweep(self, temperature: float, best: Best, hard: float = 1.0) -> int:
        """One step for each unit that may well move, in a random order, and how many there were.

        What passes a budget costs a share of its full penalty.
        """
        self.per_byte = hard * self.hard_per_byte
        units = self.draw.permutation(np.flatnonzero(self._mobile(temperature)))
        noise = self.draw.gumbel(size=(len(units), len(self.rows), self.model.devices)) * (-temperature)
        for step, unit in enumerate(units.tolist()):
            self._step(unit, noise[step])
            if not step % 4:
                self._offer(best)
        self._restart()  # sums of floats round
        self._offer(best)
        return len(units)

    def _mobile(self, temperature: float) -> NDArray[np.bool_]:
        """Units with a neighbour on another device in some assignment, and those whose values cost little to send.

        Others do not move at low temperatures, and are most of a large graph (as in refinement on the boundary only:
        Karypis & Kumar 1998). Where memory has a limit any unit may have to make room, so some others are drawn.
        """
        model = self.model
        mobile: NDArray[np.bool_] = self.alone <= model.weight.max(axis=1) + STAYS * temperature * self.scale
        maker, user = model.source[model.uses[:, 0]], model.uses[:, 1]
        apart = (self.homes[:, maker] != self.homes[:, user]).any(axis=0)
        mobile[maker[apart]] = mobile[user[apart]] = True
        if self.tight:
            others = self.draw.permutation(np.flatnonzero(~mobile))
            mobile[others[:MAKE_ROOM]] = True
        return mobile

    def _offer(self, best: Best) -> None:
        figures = self.bytes + self.live if self.model.by_bytes else self.load
        if figures.max(axis=1).min() < best.value:
            legal = (self.bytes + self.live <= self.model.memory).all(axis=1)
            banned = np.any(self.model.banned[np.arange(self.model.size)[None, :], self.homes], axis=1)
            best.offer(figures, np.logical_and(legal, np.logical_not(banned)), self.homes)

    def resample(self, share: float) -> None:
        """The worst assignments become copies of the best."""
        count = int(len(self.rows) * share)
        if count:
            order = np.argsort(self.energy(), kind="stable")
            keep = np.arange(len(self.rows))
            keep[order[-count:]] = order[:count]
            self.homes = self.homes[keep]
            self._restart()

    def energy(self) -> Floats:
        """The norm of the loads and the penalty, ``(p,)``."""
        need = self.bytes + self.live
        energy: Floats = self._norm(need if self.model.by_bytes else self.load) + self._over(need).sum(axis=1)
        return energy

    def _over(self, need: Floats) -> Floats:
        """The penalty of each device."""
        over: Floats = np.maximum(need - self.model.memory, 0.0) * self.per_byte
        return over

    def _power(self, figures: Floats) -> Floats:
        power = np.minimum(figures / self.scale, 1e4)
        for _ in range(self.squarings):
            power *= power
        return power

    def _norm(self, figures: Floats) -> Floats:
        """The norm of order ``2 ** squarings`` along the last axis."""
        norm: Floats = self._power(figures).sum(axis=-1) ** (0.5**self.squarings)
        return norm

    def _step(self, unit: int, noise: Floats) -> None:
        near, model = self.near[unit], self.model
        home = self.homes[:, unit]
        loads = self.load[:, None, :]
        energy = noise
        if not model.by_bytes:
            adds = self._adds(unit, near, home)  # (p, device of the unit, device)
            loads = loads + (adds - adds[self.rows, home][:, None, :])
            energy = energy + self._norm(loads)
        if self.tight or model.by_bytes:
            energy = energy + self._of_bytes(unit, near, home)
        target = np.argmin(np.where(model.banned[unit], np.inf, energy), axis=1)
        moved = np.flatnonzero(target != home)
        if moved.size:
            self._move(unit, near, moved, home[moved], target[moved], loads)

    def _adds(self, unit: int, near: _Near, home: Ints) -> Floats:
        """What the unit would add to each device's load from each device, with its values, ``(p, k, k)``."""
        model, rows = self.model, self.rows
        adds = np.zeros((len(rows), model.devices, model.devices))
        own = np.arange(model.devices)
        adds[:, own, own] = model.weight[unit]
        if len(near.used):
            values = np.arange(len(near.used))[None, :]
            made_on = self.homes[:, near.makers]  # (p, d)
            count = self.users[:, near.used]  # (p, d, k)
            count[rows, :, home] -= 1
            send = near.send_used[values, made_on]  # (p, d, k)
            absent = count == 0
            adds[:, own, own] += (send * absent).sum(axis=1)
            before = np.where(absent, 0.0, send).max(axis=2)
            more = np.maximum(send - before[:, :, None], 0.0)
            onehot = (made_on[:, :, None] == own).astype(np.float64)  # (p, d, k)
            adds += more.transpose(0, 2, 1) @ onehot
        if len(near.made):
            needed = self.users[:, near.made] > 0  # (p, d, k)
            entering = near.send_made[None] * needed[:, :, None, :]  # (p, d, k from, k to)
            adds += entering.sum(axis=1)
            adds[:, own, own] += entering.max(axis=3).sum(axis=1)
        return adds

    def _of_bytes(self, unit: int, near: _Near, home: Ints) -> Floats:
        """The part of the energy that bytes make, with the unit on each device, ``(p, k)``."""
        model, rows = self.model, self.rows
        size = np.full_like(self.load, model.kept[unit])
        if len(near.blocks):
            count = self.holders[:, near.blocks]
            count[rows, :, home] -= 1
            size += np.einsum("psk,s->pk", count == 0, model.shared[near.blocks])
        need = self.bytes.copy()
        need[rows, home] -= size[rows, home]
        live = self._live_without(unit, home)
        without, there = need + live, need + size + np.maximum(live, model.live[unit])
        energy = _with_each(self._over(without), self._over(there))
        if model.by_bytes:
            energy += _with_each(self._power(without), self._power(there)) ** (0.5**self.squarings)
        return energy

    def _live_without(self, unit: int, home: Ints) -> Floats:
        size = self.model.live[unit]
        if not self.has_live or not size:
            return self.live
        live = self.live.copy()
        tied = np.flatnonzero(live[self.rows, home] == size)
        if tied.size:
            there = self.homes[tied] == home[tied, None]
            there[:, unit] = False
            live[tied, home[tied]] = np.where(there, self.model.live, 0.0).max(axis=1)
        return live

    def _move(self, unit: int, near: _Near, moved: Ints, home: Ints, target: Ints, loads: Floats) -> None:
        model = self.model
        if not model.by_bytes:
            self.load[moved] = loads[moved, target]
        if self.has_live:
            live = self._live_without(unit, self.homes[:, unit])[moved]
            live[np.arange(len(moved)), target] = np.maximum(live[np.arange(len(moved)), target], model.live[unit])
            self.live[moved] = live
        if len(near.blocks):
            blocks = near.blocks[None, :]
            self.holders[moved[:, None], blocks, home[:, None]] -= 1
            self.holders[moved[:, None], blocks, target[:, None]] += 1
            gone = self.holders[moved[:, None], blocks, home[:, None]] == 0
            new = self.holders[moved[:, None], blocks, target[:, None]] == 1
            self.bytes[moved, home] -= gone @ model.shared[near.blocks]
            self.bytes[moved, target] += new @ model.shared[near.blocks]
        self.bytes[moved, home] -= model.kept[unit]
        self.bytes[moved, target] += model.kept[unit]
        self.homes[moved, unit] = target
        if len(near.used):
            self.users[moved[:, None], near.used[None, :], home[:, None]] -= 1
            self.users[moved[:, None], near.used[None, :], target[:, None]] += 1


def _with_each(without: Floats, there: Floats) -> Floats:
    """The sum over devices when one of them, each in turn, has the other figure."""
    total: Floats = np.maximum(without.sum(axis=1, keepdims=True) - without, 0.0) + there
    return total


def _alone(model: LoadModel) -> Floats:
    """Seconds that a device pays at least for the values of each unit when it is there alone, ``(m,)``."""
    if model.devices < 2 or not len(model.source):
        return np.zeros(model.size)
    least = np.where(np.eye(model.devices, dtype=bool), np.inf, model.send).min(axis=(1, 2))
    alone: Floats = np.zeros(model.size)
    np.add.at(alone, model.source, least)
    np.add.at(alone, model.uses[:, 1], least[model.uses[:, 0]])
    return alone


def _neighbourhoods(model: LoadModel) -> list[_Near]:
    used: list[list[int]] = [[] for _ in range(model.size)]
    made: list[list[int]] = [[] for _ in range(model.size)]
    for value, unit in model.uses.tolist():
        used[unit].append(value)
    for value, unit in enumerate(model.source.tolist()):
        made[unit].append(value)
    near = []
    for unit in range(model.size):
        uses, makes = np.array(used[unit], dtype=np.int64), np.array(made[unit], dtype=np.int64)
        near.append(_Near(uses, model.source[uses], makes, model.send[uses], model.send[makes], model.holds[unit]))
    return near
