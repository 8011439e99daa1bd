"""What assignments of units to devices weigh, for many assignments at once: seconds and bytes of each device.

Free placement asks this for millions of assignments, so they come as rows: ``homes[p, u]`` is the device of unit ``u``
in assignment ``p``.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["LoadModel"]


@attrs.frozen(eq=False)
class LoadModel:
    """The costs of ``m`` units on ``k`` devices with ``q`` values that may cross and ``s`` shared blocks of bytes.

    Args:
        weight: What a unit adds to the load of each device, ``(m, k)``; 0 where it is banned; bytes with ``by_bytes``.
        banned: Whether a device cannot run a unit, ``(m, k)``.
        kept: Bytes of each unit, ``(m,)``.
        live: Bytes that each unit needs while it runs; a device needs the most of its units', ``(m,)``.
        shared: Bytes of each block that a device holds once, ``(s,)``.
        holds: The blocks that each unit needs.
        memory: Bytes of each device, ``(k,)``.
        source: The unit that makes each value, ``(q,)``.
        uses: Pairs (value, unit that uses it), ``(u, 2)``.
        send: Seconds of each value between two devices, ``(q, k, k)``, 0 within one.
        by_bytes: Whether the fullest device counts, and not the busiest.
    """

    weight: Floats
    banned: NDArray[np.bool_]
    kept: Floats
    live: Floats
    shared: Floats
    holds: tuple[Ints, ...]
    memory: Floats
    source: Ints
    uses: Ints
    send: Floats
    by_bytes: bool = False

    @property
    def size(self) -> int:
        """The number of units."""
        return len(self.kept)

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.memory)

    @property
    def links_alike(self) -> bool:
        """Whether no value sees which link it takes."""
        if self.devices < 2:
            return True
        apart = ~np.eye(self.devices, dtype=bool)
        return bool((self.send[:, apart] == self.send[:, 0, 1, None]).all())

    @cached_property
    def held(self) -> tuple[Ints, Ints]:
        """Each unit that needs a shared block, and the block, ``(h,)`` and ``(h,)``; units in order."""
        unit = np.repeat(np.arange(self.size), [len(blocks) for blocks in self.holds])
        return unit, np.concatenate([*self.holds, np.zeros(0, dtype=np.int64)])

    @classmethod
    def of(cls, units: Units, tables: CostTables, objective: str = "throughput") -> LoadModel:
        """Take the costs of a reduced problem; under another objective than seconds no value costs anything."""
        kinds = len(tables.memory)
        allowed = np.isfinite(units.seconds)
        timed = objective != "memory"
        weight = units.seconds if timed else np.broadcast_to(units.kept[:, None], units.seconds.shape)
        source, uses, makers = _values(units, tables) if timed else (units.source[:0], units.uses[:0], ())
        return cls(
            np.where(allowed, weight, 0.0),
            ~allowed,
            units.kept.astype(np.float64),
            units.live.astype(np.float64),
            units.shared.astype(np.float64),
            _blocks(units),
            tables.memory,
            source,
            uses,
            _sending(makers, tables, kinds),
            not timed,
        )

    def under(self, below: float) -> LoadModel:
        """The same for loads up to ``below``: what alone takes longer is banned, or sent in twice that.

        In a program, such numbers would leave no digits for the others.
        """
        if not np.isfinite(below):
            return self
        too_long = self.weight > below
        weight, banned = np.where(too_long, 0.0, self.weight), self.banned | too_long
        return attrs.evolve(self, weight=weight, banned=banned, send=np.minimum(self.send, 2 * below))

    def users(self, homes: Ints) -> NDArray[np.int32]:
        """How many users of each value each device has, ``(p, q, k)``."""
        count = np.zeros((len(homes), len(self.source), self.devices), dtype=np.int32)
        rows = np.arange(len(homes))[:, None]
        np.add.at(count, (rows, self.uses[None, :, 0], homes[:, self.uses[:, 1]]), 1)
        return count

    def loads(self, homes: Ints) -> Floats:
        """Seconds of each device, ``(p, k)``: its units, what leaves it, what enters it."""
        rows = np.arange(len(homes))[:, None]
        load = np.zeros((len(homes), self.devices))
        np.add.at(load, (rows, homes), self.weight[np.arange(self.size)[None, :], homes])
        if len(self.source):
            made_on = homes[:, self.source]
            entering = self.send[np.arange(len(self.source))[None, :], made_on] * (self.users(homes) > 0)
            load += entering.sum(axis=1)
            np.add.at(load, (rows, made_on), entering.max(axis=2))
        return load

    def needs(self, homes: Ints) -> Floats:
        """Bytes that each device needs, ``(p, k)``."""
        rows = np.arange(len(homes))[:, None]
        need = np.zeros((len(homes), self.devices))
        np.add.at(need, (rows, homes), np.broadcast_to(self.kept, homes.shape))
        if len(self.shared):
            need += (self.holders(homes) > 0).transpose(0, 2, 1) @ self.shared
        if self.live.any():
            most = np.zeros_like(need)
            np.maximum.at(most, (rows, homes), np.broadcast_to(self.live, homes.shape))
            need += most
        return need

    def needed(self, units: Ints) -> float:
        """Bytes that a device needs for some units."""
        unit, block = self.held
        blocks = np.unique(block[np.isin(unit, units)])
        return float(self.kept[units].sum() + self.shared[blocks].sum() + self.live[units].max(initial=0.0))

    def figures(self, homes: Ints) -> Floats:
        """What counts of each device, ``(p, k)``: its load, or its bytes."""
        return self.needs(homes) if self.by_bytes else self.loads(homes)

    def holders(self, homes: Ints) -> NDArray[np.int32]:
        """How many units of each device need each shared block, ``(p, s, k)``."""
        count = np.zeros((len(homes), len(self.shared), self.devices), dtype=np.int32)
        unit, block = self.held
        np.add.at(count, (np.arange(len(homes))[:, None], block[None, :], homes[:, unit]), 1)
        return count

    def legal(self, homes: Ints) -> NDArray[np.bool_]:
        """Which assignments keep every budget and give no device what it cannot run, ``(p,)``."""
        fits = (self.needs(homes) <= self.memory).all(axis=1)
        banned = np.any(self.banned[np.arange(self.size)[None, :], homes], axis=1)
        legal: NDArray[np.bool_] = np.logical_and(fits, np.logical_not(banned))
        return legal

    def merged(self, cluster: Ints) -> LoadModel:
        """The same with each cluster of units as one unit; ``cluster`` numbers them from 0, ``(m,)``."""
        count = int(cluster.max(initial=-1)) + 1
        weight, banned = np.zeros((count, self.devices)), np.zeros((count, self.devices), dtype=bool)
        kept, live = np.zeros(count), np.zeros(count)
        np.add.at(weight, cluster, self.weight)
        np.logical_or.at(banned, cluster, self.banned)
        np.add.at(kept, cluster, self.kept)
        np.maximum.at(live, cluster, self.live)
        unit, block = self.held
        blocks = max(1, len(self.shared))
        cells = np.unique(cluster[unit] * blocks + block)  # of a table (clusters, blocks), row by row
        holds = np.split(cells % blocks, np.searchsorted(cells, np.arange(1, count) * blocks))
        source, uses, parts = _merged_values(cluster[self.source], self.uses[:, 0], cluster[self.uses[:, 1]])
        first = np.cumsum([0, *map(len, parts[:-1])])
        send = np.add.reduceat(self.send[np.concatenate(parts)], first) if parts else self.send[:0]
        return LoadModel(
            weight, banned, kept, live, self.shared, tuple(holds), self.memory, source, uses, send, self.by_bytes
        )


def _blocks(units: Units) -> tuple[Ints, ...]:
    """The shared blocks of each unit."""
    order = np.argsort(units.shares[:, 1], kind="stable")
    holders, first = np.unique(units.shares[order, 1], return_index=True)
    blocks = [units.shares[:0, 0]] * units.size  # most units hold none
    for unit, own in zip(holders.tolist(), np.split(units.shares[order, 0], first[1:]), strict=False):
        blocks[unit] = own
    return tuple(blocks)


def _values(units: Units, tables: CostTables) -> tuple[Ints, Ints, tuple[tuple[int, ...], ...]]:
    """Values of one maker with the same users count as one where all links are alike; else the slowest may differ."""
    apart = ~np.eye(len(tables.memory), dtype=bool)
    if len(np.unique(tables.latency[apart])) <= 1 and len(np.unique(tables.per_byte[apart])) <= 1:
        return units.source, units.uses, units.makers
    single = [(value, maker) for value, makers in enumerate(units.makers) for maker in makers]
    source = units.source[np.array([value for value, _maker in single], dtype=np.int64)]
    pairs = [(index, user) for index, (value, _maker) in enumerate(single) for user in units.users[value]]
    return source, np.array(pairs, dtype=np.int64).reshape(-1, 2), tuple((maker,) for _value, maker in single)


def _sending(makers: tuple[tuple[int, ...], ...], tables: CostTables, kinds: int) -> Floats:
    send = np.zeros((len(makers), kinds, kinds))
    if not makers:
        return send
    value = np.repeat(np.arange(len(makers)), [len(alike) for alike in makers])
    node = np.array([index for alike in makers for index in alike], dtype=np.int64)
    for source in range(kinds):
        for target in range(kinds):
            if source != target:
                np.add.at(send[:, source, target], value, tables.sending(source, target)[node])
    return send


def _merged_values(made: Ints, value: Ints, user: Ints) -> tuple[Ints, Ints, list[list[int]]]:
    """Values that leave their cluster, those of one maker and the same users as one."""
    users: dict[int, set[int]] = {}
    for index, unit in zip(value.tolist(), user.tolist(), strict=True):
        if unit != made[index]:
            users.setdefault(index, set()).add(unit)
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for index in sorted(users):
        alike.setdefault((int(made[index]), tuple(sorted(users[index]))), []).append(index)
    source = np.array([unit for unit, _users in alike], dtype=np.int64)
    pairs = [(index, unit) for index, (_unit, found) in enumerate(alike) for unit in found]
    return source, np.array(pairs, dtype=np.int64).reshape(-1, 2), list(alike.values())
