"""One schedule that is changed node by node: what a change delays is followed until nothing is later than before.

The search for the shortest latency tries hundreds of thousands of changes. Most of them are bad, and that is seen after
a few nodes: the tail of a node says how much stands behind it, so a node that ends too late ends the trial.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import attrs
import numpy as np

from fxpasses.partitioners.solvers.latency.scheduling import Scheduler

__all__ = ["Network", "Timeline"]

Table = list[list[float]]


@attrs.frozen(eq=False)
class Network:
    """A graph of nodes in plain lists, which Python reads faster than arrays.

    Args:
        seconds: For each node its seconds on each device.
        send: For each node its sending seconds from device to device; nodes that send alike share a table.
        needs: For each node what it needs, with the sending times of that.
        makers: For each node what it needs.
        users: For each node what needs it.
        least: For each node the least seconds from its end to the end of all.
        sinks: The nodes that nothing needs.
        topological: An order of the nodes in which each stands after what it needs.
    """

    seconds: list[list[float]]
    send: list[Table]
    needs: list[tuple[tuple[int, Table], ...]]
    makers: list[tuple[int, ...]]
    users: list[tuple[int, ...]]
    least: list[float]
    sinks: list[int]
    topological: list[int]

    @classmethod
    def of(cls, scheduler: Scheduler) -> Network:
        """Take the arrays of a scheduler. Time O(nodes × devices² + edges)."""
        count = len(scheduler.seconds)
        flat = scheduler.send[:-1].reshape(count, -1)
        rows, which = np.unique(flat, axis=0, return_inverse=True)
        kinds = scheduler.seconds.shape[1]
        tables: list[Table] = rows.reshape(-1, kinds, kinds).tolist()
        send = [tables[index] for index in which.ravel().tolist()]
        makers = [tuple(n for n in row if n < count) for row in scheduler.before.tolist()]
        users = [tuple(n for n in row if n < count) for row in scheduler.after.tolist()]
        topological = scheduler.topological.tolist()
        seconds = scheduler.seconds.tolist()
        least = [0.0] * count
        fastest = scheduler.seconds.min(axis=1).tolist()
        for node in reversed(topological):
            least[node] = max((fastest[user] + least[user] for user in users[node]), default=0.0)
        needs = [tuple((maker, send[maker]) for maker in found) for found in makers]
        sinks = [node for node in range(count) if not users[node]]
        return cls(seconds, send, needs, makers, users, least, sinks, topological)


class Timeline:
    """A schedule of one assignment, with changes that can be taken back.

    ``key`` is the order of the nodes: each has a larger one than what it needs, and a device runs its nodes by rising
    key. ``end`` is when a node ends, ``tail`` how long it takes from then to the end of all, ``work`` how many nodes
    were looked at.
    """

    def __init__(self, network: Network, homes: Sequence[int], order: Sequence[int]) -> None:
        self.network = network
        count = len(network.seconds)
        self.home, self.key = list(homes), [0.0] * count
        self.end, self.tail = [0.0] * count, [0.0] * count
        self.before, self.after = [-1] * count, [-1] * count
        self.runs: list[list[int]] = [[] for _ in network.seconds[0]]
        self.makespan, self.work = 0.0, 0
        self._moved: list[tuple[int, int, float]] = []
        self._ended: list[tuple[int, float]] = []
        self._waiting: list[tuple[float, int]] = []
        self._queued = bytearray(count)
        self._late: dict[int, None] = {}
        self._last = -1.0
        self.reorder(order)

    def reorder(self, order: Sequence[int]) -> None:
        """Schedule all nodes in another order. Time O(nodes + edges)."""
        for run in self.runs:
            run.clear()
        for place, node in enumerate(order):
            self.key[node] = float(place)
            home = self.home[node]
            self.before[node] = self.after[node] = -1
            if self.network.seconds[node][home] > 0:
                run = self.runs[home]
                if run:
                    self.before[node], self.after[run[-1]] = run[-1], node
                run.append(node)
        for node in order:
            self.end[node] = self._end(node)
        for node in reversed(order):
            self.tail[node] = self._tail(node)
        self.work += 2 * len(order)
        self.makespan = self._makespan()

    def order(self) -> list[int]:
        """The nodes by key."""
        return sorted(range(len(self.key)), key=self.key.__getitem__)

    def relabel(self) -> None:
        """Keys that are far enough from each other again."""
        for place, node in enumerate(self.order()):
            self.key[node] = float(place)

    def critical(self) -> list[int]:
        """The nodes that end the schedule later when they end later."""
        least = self.makespan * (1 - 1e-9)
        return [node for node, (end, tail) in enumerate(zip(self.end, self.tail, strict=True)) if end + tail >= least]

    def window(self, node: int) -> tuple[float, float]:
        """The keys between which a node may stand."""
        key = self.key
        low = max((key[need] for need in self.network.makers[node]), default=-1e6)
        high = min((key[user] for user in self.network.users[node]), default=1e6 + len(key))
        return low, high

    def ready(self, node: int, device: int) -> float:
        """When the inputs of a node are on a device."""
        end, home = self.end, self.home
        return max((end[need] + send[home[need]][device] for need, send in self.network.needs[node]), default=0.0)

    def move(self, node: int, device: int, key: float) -> None:
        """Put a node on a device, at a place of the order."""
        self._moved.append((node, self.home[node], self.key[node]))
        self._last = max(self._last, self.key[node], key)
        self._unlink(node)
        self._queue(self.after[node])
        self._late[self.before[node]] = None
        for other in self.network.users[node]:
            self._queue(other)
        for other in self.network.makers[node]:
            self._late[other] = None
        self.home[node], self.key[node] = device, key
        self._link(node)
        self._late[self.before[node]] = self._late[node] = None
        self._queue(node)
        self._queue(self.after[node])

    def settle(self, limit: float) -> float:
        """The makespan after the moves, ``inf`` when it is over a limit."""
        waiting = [(self.key[node], node) for _key, node in self._waiting]
        heapify(waiting)
        self._waiting.clear()
        queued, key, end, tail = self._queued, self.key, self.end, self.tail
        home, after, before, network = self.home, self.after, self.before, self.network
        users, needs, seconds, least, last = network.users, network.needs, network.seconds, network.least, self._last
        ended = self._ended
        steps = 0
        while waiting:
            place, node = heappop(waiting)
            queued[node] = 0
            steps += 1
            device = home[node]
            ready = 0.0
            for need, send in needs[node]:
                there = end[need] + send[home[need]][device]
                if there > ready:
                    ready = there
            taken = seconds[node][device]
            if taken:
                if (other := before[node]) >= 0 and end[other] > ready:
                    ready = end[other]
                ready += taken
            was = end[node]
            if ready == was:
                continue
            ended.append((node, was))
            end[node] = ready
            if ready > was and ready + (tail[node] if place > last else least[node]) > limit:
                for _place, other in waiting:
                    queued[other] = 0
                self.work += steps
                return math.inf
            for other in users[node]:
                if not queued[other]:
                    queued[other] = 1
                    heappush(waiting, (key[other], other))
            if (other := after[node]) >= 0 and taken and not queued[other]:
                queued[other] = 1
                heappush(waiting, (key[other], other))
        self.work += steps
        return self._makespan()

    def keep(self) -> None:
        """The moves stay: bring the tails up to date."""
        key, tail, network = self.key, self.tail, self.network
        late = self._late
        late.pop(-1, None)
        waiting = [(-key[node], node) for node in late]
        heapify(waiting)
        while waiting:
            node = heappop(waiting)[1]
            del late[node]
            self.work += 1
            new = self._tail(node)
            if new == tail[node]:
                continue
            tail[node] = new
            for other in network.makers[node]:
                if other not in late:
                    late[other] = None
                    heappush(waiting, (-key[other], other))
            if (other := self.before[node]) >= 0 and other not in late:
                late[other] = None
                heappush(waiting, (-key[other], other))
        self._moved.clear()
        self._ended.clear()
        self._last = -1.0
        self.makespan = self._makespan()

    def revert(self) -> None:
        """Take the moves back."""
        for node, end in reversed(self._ended):
            self.end[node] = end
        for node, device, key in reversed(self._moved):
            self._unlink(node)
            self.home[node], self.key[node] = device, key
            self._link(node)
        for _key, node in self._waiting:
            self._queued[node] = 0
        self._waiting.clear()
        self._late.clear()
        self._moved.clear()
        self._ended.clear()
        self._last = -1.0

    def pushed(self) -> list[int]:
        """An order that is at least as good: all as late as they go, then by when they start then.

        Forward-backward improvement (Li & Willis, EJOR 56, 1992).
        """
        network, home, end = self.network, self.home, self.end
        free = [0.0] * len(self.runs)
        late = [0.0] * len(end)
        place = {node: index for index, node in enumerate(network.topological)}
        for node in sorted(place, key=lambda each: (-end[each], -place[each])):
            device, send = home[node], network.send[node][home[node]]
            ready = max((late[user] + send[home[user]] for user in network.users[node]), default=0.0)
            if taken := network.seconds[node][device]:
                ready = free[device] = max(free[device], ready) + taken
            late[node] = ready
        self.work += 2 * len(end)
        return sorted(place, key=lambda each: (-late[each], place[each]))

    def starts(self) -> list[float]:
        """When each node starts."""
        return [end - row[home] for end, row, home in zip(self.end, self.network.seconds, self.home, strict=True)]

    def _makespan(self) -> float:
        return max(map(self.end.__getitem__, self.network.sinks), default=0.0)

    def _end(self, node: int) -> float:
        device, end = self.home[node], self.end
        ready = self.ready(node, device)
        if taken := self.network.seconds[node][device]:
            other = self.before[node]
            return (max(ready, end[other]) if other >= 0 else ready) + taken
        return ready

    def _tail(self, node: int) -> float:
        network, home, tail = self.network, self.home, self.tail
        seconds, send = network.seconds, network.send[node][home[node]]
        found = 0.0
        for user in network.users[node]:
            there = home[user]
            if (way := send[there] + seconds[user][there] + tail[user]) > found:
                found = way
        if (other := self.after[node]) >= 0 and (way := seconds[other][home[other]] + tail[other]) > found:
            found = way
        return found

    def _queue(self, node: int) -> None:
        if node >= 0 and not self._queued[node]:
            self._queued[node] = 1
            self._waiting.append((0.0, node))

    def _unlink(self, node: int) -> None:
        if not self.network.seconds[node][home := self.home[node]]:
            return
        run = self.runs[home]
        place = bisect_left(run, self.key[node], key=self.key.__getitem__)
        while run[place] != node:  # another node of the same key
            place += 1
        del run[place]
        before, after = self.before[node], self.after[node]
        if before >= 0:
            self.after[before] = after
        if after >= 0:
            self.before[after] = before

    def _link(self, node: int) -> None:
        if not self.network.seconds[node][home := self.home[node]]:
            self.before[node] = self.after[node] = -1
            return
        run = self.runs[home]
        place = bisect_left(run, self.key[node], key=self.key.__getitem__)
        before = run[place - 1] if place else -1
        after = run[place] if place < len(run) else -1
        run.insert(place, node)
        self.before[node], self.after[node] = before, after
        if before >= 0:
            self.after[before] = node
        if after >= 0:
            self.before[after] = node
