"""When each node runs, for many assignments and orders at once: one node at a time on a device, copies beside them.

A node starts when its device has finished what stands before it in the order and when its inputs are there. A value
that another device made is there ``send`` seconds after it was made: copies run beside the nodes and beside each other,
as they do on streams of their own (the model of HEFT, Topcuoglu, Hariri & Wu, "Performance-effective and low-complexity
task scheduling for heterogeneous computing", IEEE TPDS 13, 2002). A node that takes no time holds up no device.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["Scheduler", "Times", "in_order"]


@attrs.frozen(eq=False)
class Times:
    """Start and end of each node, ``(p, n)``."""

    start: Floats
    end: Floats

    @property
    def makespan(self) -> Floats:
        """When the last node ends, ``(p,)``."""
        makespan: Floats = self.end.max(axis=1, initial=0.0)
        return makespan


@attrs.frozen(eq=False)
class Scheduler:
    """A graph of ``n`` nodes on ``k`` devices.

    Args:
        seconds: ``(n, k)``; 0 where a device cannot run a node.
        send: Seconds of each output between two devices, ``(n, k, k)``, 0 within one.
        before: The nodes that each node needs, filled up with ``n``, ``(n, d)``.
        after: The nodes that need it, filled up with ``n``, ``(n, d)``.
        topological: An order of the nodes in which each stands after what it needs.
    """

    seconds: Floats
    send: Floats
    before: Ints
    after: Ints
    topological: Ints

    @classmethod
    def of(cls, tables: CostTables) -> Scheduler:
        """Take the costs of a problem whose graph has no cycle."""
        count, kinds = tables.seconds.shape
        send = np.zeros((count + 1, kinds, kinds))
        for source in range(kinds):
            for target in range(kinds):
                if source != target:
                    send[:-1, source, target] = tables.sending(source, target)
        before, after = _padded(tables.edges[:, ::-1], count), _padded(tables.edges, count)
        seconds = np.where(np.isfinite(tables.seconds), tables.seconds, 0.0)
        return cls(seconds, send, before, after, _topological(before, after))

    def times(self, homes: Ints, orders: Ints) -> Times:
        """Run the nodes of each assignment in an order, ``(p, n)`` each. Time O(n · most inputs of a node)."""
        rows, count = np.arange(len(homes)), len(self.seconds)
        start, end = np.zeros((len(homes), count + 1)), np.zeros((len(homes), count + 1))
        free = np.zeros((len(homes), self.seconds.shape[1]))
        padded = np.concatenate([homes, np.zeros((len(homes), 1), dtype=np.int64)], axis=1)
        degree = (self.before < count).sum(axis=1)
        for node in orders.T:
            home = homes[rows, node]
            needs = self.before[node, : max(1, int(degree[node].max()))]
            there = end[rows[:, None], needs] + self.send[needs, padded[rows[:, None], needs], home[:, None]]
            ready = there.max(axis=1)
            taken = self.seconds[node, home]
            begin = np.where(taken > 0, np.maximum(free[rows, home], ready), ready)
            start[rows, node], end[rows, node] = begin, begin + taken
            busy = np.flatnonzero(taken > 0)
            free[busy, home[busy]] = end[busy, node[busy]]
        return Times(start[:, :-1], end[:, :-1])

    def ranks(self, homes: Ints) -> Floats:
        """The longest way from the start of each node to the end of all, ``(p, n)``: the upward rank of HEFT."""
        rank = np.zeros((len(homes), len(self.seconds) + 1))
        padded = np.concatenate([homes, np.zeros((len(homes), 1), dtype=np.int64)], axis=1)
        for node in self.topological[::-1].tolist():
            users = self.after[node][self.after[node] < len(self.seconds)]
            own = homes[:, node]
            way = rank[:, users] + self.send[node][own[:, None], padded[:, users]]
            rank[:, node] = self.seconds[node, own] + way.max(axis=1, initial=0.0)
        return rank[:, :-1]

    def by_rank(self, homes: Ints) -> Ints:
        """For each assignment the order by falling rank, ``(p, n)``."""
        place = np.empty(len(self.seconds), dtype=np.int64)
        place[self.topological] = np.arange(len(place))
        return np.stack([np.lexsort((place, -rank)) for rank in self.ranks(homes)])

    def justified(self, homes: Ints, times: Times) -> Ints:
        """Orders that are at least as good: all as late as possible, then by when they start then.

        Forward-backward improvement (Li & Willis, EJOR 56, 1992).
        """
        mirror = self.mirrored()
        back = in_order(-times.end, self.topological[::-1])
        late = mirror.times(homes, back)
        return in_order(-late.end, self.topological)

    def mirrored(self) -> _Mirror:
        """The graph from its end."""
        return _Mirror(self.seconds, self.send, self.after, self.before, self.topological[::-1])


class _Mirror(Scheduler):
    """Time runs backwards: what uses a value stands before what makes it."""

    def times(self, homes: Ints, orders: Ints) -> Times:
        rows, count = np.arange(len(homes)), len(self.seconds)
        end = np.zeros((len(homes), count + 1))
        free = np.zeros((len(homes), self.seconds.shape[1]))
        padded = np.concatenate([homes, np.zeros((len(homes), 1), dtype=np.int64)], axis=1)
        degree = (self.before < count).sum(axis=1)
        for node in orders.T:
            home = homes[rows, node]
            users = self.before[node, : max(1, int(degree[node].max()))]
            sent = self.send[node[:, None], home[:, None], padded[rows[:, None], users]]
            ready = (end[rows[:, None], users] + np.where(users < count, sent, 0.0)).max(axis=1)
            taken = self.seconds[node, home]
            begin = np.where(taken > 0, np.maximum(free[rows, home], ready), ready)
            end[rows, node] = begin + taken
            busy = np.flatnonzero(taken > 0)
            free[busy, home[busy]] = end[busy, node[busy]]
        return Times(end[:, :-1], end[:, :-1])


def in_order(keys: Floats, topological: Ints) -> Ints:
    """Orders by rising key, ties as in a topological order."""
    place = np.empty(len(topological), dtype=np.int64)
    place[topological] = np.arange(len(place))
    return np.stack([np.lexsort((place, key)) for key in keys])


def _padded(pairs: Ints, count: int) -> Ints:
    """The second of each pair by the first, filled up with ``count``; at least one column."""
    pairs = np.unique(pairs, axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    width = int(np.bincount(pairs[:, 0], minlength=1).max(initial=1))
    table = np.full((count, max(1, width)), count, dtype=np.int64)
    starts = np.searchsorted(pairs[:, 0], pairs[:, 0], side="left")
    table[pairs[:, 0], np.arange(len(pairs)) - starts] = pairs[:, 1]
    return table


def _topological(before: Ints, after: Ints) -> Ints:
    return np.fromiter(_kahn(before, after), dtype=np.int64)


def _kahn(before: Ints, after: Ints) -> Iterator[int]:
    count = len(before)
    missing = (before < count).sum(axis=1).tolist()
    ready = [node for node in range(count - 1, -1, -1) if not missing[node]]
    while ready:
        node = ready.pop()
        yield node
        for user in after[node].tolist():
            if user < count:
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
