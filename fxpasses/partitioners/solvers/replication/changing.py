"""What it changes where one node is computed: only that node, and what sends it something, are looked at.

A placement of 100,000 nodes is too large to be evaluated for each change that is tried.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["ROUNDING", "Change", "CopiesInUse", "added_rows", "ranked"]

ORDER = 16
"""Of the norm of loads that a change has to make smaller."""
ROUNDING = 1e-12
"""What sums in another order may differ by."""

Bools = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Change:
    """Where a node is sent from and computed, ``(k,)``, instead."""

    node: int
    home: int
    present: Bools


@attrs.frozen(eq=False)
class _Ends:
    """The nodes at the other ends of the edges of each node."""

    begins: Ints
    ends: Ints

    @classmethod
    def of(cls, pairs: Ints, count: int) -> _Ends:
        """Of pairs without doubles: the first of each by the second."""
        order = np.argsort(pairs[:, 1], kind="stable")
        begins = np.searchsorted(pairs[order, 1], np.arange(count + 1))
        return cls(begins, pairs[order, 0])

    def __getitem__(self, node: int) -> Ints:
        return self.ends[self.begins[node] : self.begins[node + 1]]


@attrs.define(eq=False)
class CopiesInUse:
    """A placement with copies and what it costs, kept as changes are made.

    Args:
        tables: What nodes cost.
        is_free: Whether values may flow in circles of devices.
        home: From where each value is sent, ``(n,)``.
        present: Where each node is computed, ``(n, k)``.
        load: Seconds of each device, ``(k,)``.
    """

    tables: CostTables
    is_free: bool
    home: Ints
    present: Bools
    load: Floats
    _needing: _Ends
    _before: _Ends
    _users: Ints
    _after: Ints
    _kept: Ints
    _live: Ints
    _held: Ints
    _flow: Ints
    _order: Ints

    @classmethod
    def of(cls, tables: CostTables, home: Ints, present: Bools, *, is_free: bool) -> CopiesInUse:
        """Evaluate it once, as a whole."""
        count, kinds = present.shape
        edges, precedence = np.unique(tables.edges, axis=0), np.unique(tables.precedence, axis=0)
        users, after = added_rows(present, edges, count), added_rows(present, precedence, count)
        held = added_rows(present, tables.shares, len(tables.shared))
        load = np.where(present, tables.seconds, 0.0).sum(axis=0)
        load += _sent(tables, np.arange(count), home, (users > 0) & ~present)
        kept = np.where(present, tables.kept[:, None], 0).sum(axis=0) + tables.shared @ (held > 0)
        live = np.where(present, tables.live[:, None], 0).max(axis=0, initial=0)
        flow = np.zeros((kinds, kinds), dtype=np.int64)
        np.add.at(flow, home[precedence[:, 0]], present[precedence[:, 1]] & ~present[precedence[:, 0]])
        needing, before = _Ends.of(edges, count), _Ends.of(precedence, count)
        order = _order_of(flow)
        order = np.arange(kinds) if order is None else order
        known = (load, needing, before, users, after, kept, live, held, flow, order)
        return cls(tables, is_free, home.copy(), present.copy(), *known)

    def lacking(self, nodes: Ints) -> Bools:
        """Which devices need the value of some nodes that they do not compute, ``(·, k)``."""
        lacking: Bools = (self._users[nodes] > 0) & ~self.present[nodes]
        return lacking

    def take(self, change: Change) -> bool:
        """Make a change that makes the norm of the loads smaller and the largest no larger, if it keeps every rule."""
        node = change.node
        if not np.isfinite(self.tables.seconds[node, change.present]).all():
            return False
        load = self._load_after(change)
        (top, norm), (most, before) = ranked(load), ranked(self.load)
        if top > most * (1 + ROUNDING) or norm >= before * (1 - ROUNDING):
            return False
        kept, held = self._bytes_after(change)
        live = self._live_after(change)
        if (kept + live > self.tables.memory).any():
            return False
        flow = self._flow_after(change)
        order = self._order if self.is_free else self._order_after(flow)
        if order is None:
            return False
        more = change.present.astype(np.int64) - self.present[node]
        self._users[self._needing[node]] += more
        self._after[self._before[node]] += more
        self.load, self._kept, self._held, self._live = load, kept, held, live
        self._flow, self._order = flow, order
        self.home[node], self.present[node] = change.home, change.present
        return True

    def _load_after(self, change: Change) -> Floats:
        """Seconds of each device after a change: what the node takes, what it sends, and what it is sent."""
        tables, node = self.tables, change.node
        needed, more = self._needing[node], change.present.astype(np.int64) - self.present[node]
        nodes, home = np.append(needed, node), self.home[np.append(needed, node)]
        present, users = self.present[nodes], self._users[nodes]
        before = _sent(tables, nodes, home, (users > 0) & ~present)
        home[-1], present[-1] = change.home, change.present
        users[:-1] += more
        after = _sent(tables, nodes, home, (users > 0) & ~present)
        own = np.where(more != 0, tables.seconds[node], 0.0) * more
        load: Floats = self.load - before + after + own
        return load

    def _bytes_after(self, change: Change) -> tuple[Ints, Ints]:
        """Bytes that devices keep, and how many nodes with each shared key they compute, after a change."""
        tables, node = self.tables, change.node
        more = change.present.astype(np.int64) - self.present[node]
        held = self._held
        keys = tables.shares[tables.shares[:, 1] == node, 0] if len(tables.shares) else np.zeros(0, dtype=np.int64)
        kept = self._kept + tables.kept[node] * more
        if len(keys):
            held = held.copy()
            held[keys] += more
            kept = kept + tables.shared[keys] @ ((held[keys] > 0).astype(np.int64) - (self._held[keys] > 0))
        return kept, held

    def _live_after(self, change: Change) -> Ints:
        """The most bytes that are alive while a node runs, on each device, after a change.

        Where the node goes that needs most, all that run there are asked.
        """
        own, present = self.tables.live, self.present
        live: Ints = np.where(change.present, np.maximum(self._live, own[change.node]), self._live)
        gone = present[change.node] & ~change.present & (self._live == own[change.node]) & (self._live > 0)
        for device in np.flatnonzero(gone).tolist():
            there = present[:, device].copy()
            there[change.node] = False
            live[device] = own[there].max(initial=0)
        return live

    def _flow_after(self, change: Change) -> Ints:
        """How often values make one device stand before another, ``(k, k)``, after a change."""
        now = Change(change.node, int(self.home[change.node]), self.present[change.node])
        flow: Ints = self._flow + self._flow_of(change) - self._flow_of(now)
        return flow

    def _order_after(self, flow: Ints) -> Ints | None:
        """An order of the devices in which values flow after a change, mostly the one before; None on a circle."""
        order = self._order
        return _order_of(flow) if np.tril(flow[np.ix_(order, order)]).any() else order

    def _flow_of(self, change: Change) -> Ints:
        """How often those of one node do, and those that it needs."""
        node, before = change.node, self._before[change.node]
        flow = np.zeros_like(self._flow)
        np.add.at(flow, self.home[before], change.present & ~self.present[before])
        flow[change.home] += np.where(change.present, 0, self._after[node])
        return flow


def _sent(tables: CostTables, nodes: Ints, home: Ints, lacking: Bools) -> Floats:
    """Seconds of each device for values of some nodes that are sent: all that come, and the longest of each that goes.

    Args:
        tables: What nodes cost.
        nodes: Which ones, ``(m,)``.
        home: From where, ``(m,)``.
        lacking: To where, ``(m, k)``.
    """
    output = tables.output[nodes, None]
    over_link = np.where(output > 0, tables.latency[home] + output * tables.per_byte[home], 0.0)
    taken = np.where(lacking, tables.fixed[nodes, None] + over_link, 0.0)
    load: Floats = taken.sum(axis=0)
    np.add.at(load, home, taken.max(axis=1, initial=0.0))
    return load


def added_rows(present: Bools, pairs: Ints, count: int) -> Ints:
    """How many of the second of some pairs are on each device, for each that is the first, ``(count, k)``."""
    joined = csr_array((np.ones(len(pairs), dtype=np.int64), (pairs[:, 0], pairs[:, 1])), (count, len(present)))
    found: Ints = joined @ present.astype(np.int64)
    return found


def _order_of(flow: Ints) -> Ints | None:
    """Devices in an order in which values flow; None where they flow on a circle."""
    rest, order = np.arange(len(flow)), list[Ints]()
    while len(rest):
        waits = flow[np.ix_(rest, rest)].any(axis=0)
        if waits.all():
            return None
        order.append(rest[~waits])
        rest = rest[waits]
    return np.concatenate(order)


def ranked(load: Floats) -> tuple[float, float]:
    """The largest load, then a norm of the loads."""
    top = float(load.max(initial=0.0)) or 1.0
    return float(load.max(initial=0.0)), top * math.pow(float(((load / top) ** ORDER).sum()), 1 / ORDER)
