"""Anneal one schedule: small changes of where nodes run and in which order, tried one by one.

A change moves a node, a path or what lies around a node to another device, swaps two, or puts a node elsewhere in the
order of its device. Most start at a node that delays the end.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Sequence

import attrs

from fxpasses.partitioners.solvers.latency.rooms import Rooms
from fxpasses.partitioners.solvers.latency.timelines import Timeline

__all__ = ["Found", "Shifting"]

TRY = 4
"""What a trial costs beside the nodes that it looks at, in nodes."""
ROUND = 64
"""Trials after which critical nodes are looked for again."""
PUSH = 4096
"""Trials after which the schedule is pushed to the end and back."""


@attrs.frozen(eq=False)
class Found:
    """The device of each unit, the order of the nodes, and the makespan."""

    home: list[int]
    order: list[int]
    value: float


class Shifting:
    """Annealing of a timeline whose units keep the budgets.

    Args:
        timeline: The schedule that changes.
        rooms: Its units, which must fit.
        unit_of: The unit of each node.
        draw: For everything that is drawn.
    """

    def __init__(self, timeline: Timeline, rooms: Rooms, unit_of: list[int], draw: random.Random) -> None:
        self.timeline, self.rooms, self.unit_of, self.draw = timeline, rooms, unit_of, draw
        self.members: list[list[int]] = [[] for _ in rooms.home]
        for node, unit in enumerate(unit_of):
            self.members[unit].append(node)
        network = timeline.network
        self.near = [[*network.makers[node], *network.users[node]] for node in range(len(unit_of))]
        self.kinds = len(timeline.runs)
        self.path: list[int] = []
        self.among: Sequence[int] = range(len(unit_of))
        self.best = self._found()

    def only(self, nodes: Sequence[int]) -> None:
        """Let changes begin at some nodes only."""
        self.among = nodes

    def run(self, work: float, hot: float, cold: float, goal: float = 0.0) -> Found:
        """Anneal from one temperature to another for so many looks at a node; stop early at the goal."""
        timeline, draw = self.timeline, self.draw
        begin, trials, done = timeline.work, 0, 0.0
        temperature = hot
        ratio = math.log(cold / hot)
        while done < 1 and self.best.value > goal:
            if not trials % ROUND:
                done = (timeline.work - begin + TRY * trials) / work
                temperature = hot * math.exp(ratio * min(done, 1.0))
                self.path = self._critical()
            if trials % PUSH == PUSH - 1:
                self.push()
            trials += 1
            if not self._change():
                continue
            limit = timeline.makespan - temperature * math.log(1.0 - draw.random())
            if timeline.settle(limit) <= limit:
                timeline.keep()
                self.rooms.keep()
                if timeline.makespan < self.best.value:
                    self.best = self._found()
            else:
                timeline.revert()
                self.rooms.revert()
        timeline.work += TRY * trials
        return self.best

    def push(self) -> None:
        """As late as it goes, and back; keep that if it is better."""
        timeline = self.timeline
        order, value = timeline.order(), timeline.makespan
        timeline.reorder(timeline.pushed())
        if timeline.makespan > value:
            timeline.reorder(order)
        elif timeline.makespan < self.best.value:
            self.best = self._found()

    def _critical(self) -> list[int]:
        found = self.timeline.critical()
        if len(self.among) == len(self.unit_of):
            return found
        among = set(self.among)
        return [node for node in found if node in among]

    def _found(self) -> Found:
        return Found(list(self.rooms.home), self.timeline.order(), self.timeline.makespan)

    def _change(self) -> bool:
        """Make a change; False when there is none to make or when it breaks a budget."""
        draw = self.draw
        path = self.path
        if draw.random() < 0.6 and path:
            node = path[int(draw.random() * len(path))]
        else:
            node = self.among[int(draw.random() * len(self.among))]
        kind = draw.random() if self.kinds > 1 else 1.0
        if kind < 0.35:
            return self._one(node)
        if kind < 0.58:
            return self._run(node)
        if kind < 0.66:
            return self._swap(node)
        return self._shift(node)

    def _target(self, node: int) -> int:
        """A device where a neighbour is, or any."""
        home = self.timeline.home
        own = home[node]
        draw = self.draw
        if draw.random() < 0.7:
            there = [home[other] for other in self.near[node] if home[other] != own]
            if there:
                return there[int(draw.random() * len(there))]
        return int(draw.random() * self.kinds)

    def _put(self, unit: int, device: int) -> None:
        if device != self.rooms.home[unit] and device in self.rooms.may[unit]:
            self.rooms.move(unit, device)
            self.timeline.work += TRY
            for node in self.members[unit]:
                self.timeline.move(node, device, self.timeline.key[node])

    def _legal(self) -> bool:
        """Whether what was moved fits; else it is taken back."""
        if self.rooms.fits():
            return True
        self.rooms.revert()
        self.timeline.revert()
        return False

    def _one(self, node: int) -> bool:
        """One node, where it stands in the order or where its inputs are there."""
        unit, device = self.unit_of[node], self._target(node)
        rooms = self.rooms
        if device == rooms.home[unit] or device not in rooms.may[unit]:
            return False
        rooms.move(unit, device)
        if not rooms.fits():
            rooms.revert()
            return self._exchange(node, device)
        timeline = self.timeline
        for member in self.members[unit]:
            timeline.move(member, device, self._when_ready(member, device))
        return True

    def _when_ready(self, node: int, device: int) -> float:
        """The place in the order of a device where a node would wait the least."""
        timeline, draw = self.timeline, self.draw
        run = timeline.runs[device]
        if draw.random() < 0.4 or not run:
            return timeline.key[node]
        ready = timeline.ready(node, device)
        place = bisect_left(run, ready, key=timeline.end.__getitem__)
        if place < len(run) and draw.random() < 0.5:
            place += 1
        return self._between(node, run[place - 1] if place else -1, run[place] if place < len(run) else -1)

    def _between(self, node: int, before: int, after: int) -> float:
        """A key between two nodes of a device, and where the node may stand; the old one if there is none."""
        timeline = self.timeline
        key = timeline.key
        low, high = timeline.window(node)
        if before >= 0 and key[before] > low:
            low = key[before]
        if after >= 0 and key[after] < high:
            high = key[after]
        if high - low < 1e-7:
            return key[node]
        share = 0.25 + 0.5 * self.draw.random()
        if before < 0 <= after:  # beside the node after it
            return max(low, high - 2) + (high - max(low, high - 2)) * share
        return low + (min(high, low + 2) - low) * share

    def _swap(self, node: int) -> bool:
        other = self.among[int(self.draw.random() * len(self.among))]
        first, second = self.timeline.home[node], self.timeline.home[other]
        if first == second:
            return False
        self._put(self.unit_of[node], second)
        self._put(self.unit_of[other], first)
        return self._legal()

    def _exchange(self, node: int, device: int) -> bool:
        """A node goes where there is no room, and one from there comes here."""
        home = self.timeline.home
        own = home[node]
        for _ in range(TRY):
            other = self.among[int(self.draw.random() * len(self.among))]
            if home[other] == device:
                self._put(self.unit_of[node], device)
                self._put(self.unit_of[other], own)
                return self._legal()
        return False

    def _run(self, node: int) -> bool:
        """Nodes of one device that edges connect go together: a path through the node, or what lies around it."""
        target, draw = self._target(node), self.draw
        if target == self.timeline.home[node]:
            return False
        size = 2 << int(draw.random() * 5)
        if self.rooms.flows and draw.random() < 0.7:
            found = self._beyond(node)
        else:
            found = self._path(node, size) if draw.random() < 0.5 else self._around(node, size)
        for each in found:
            self._put(self.unit_of[each], target)
        return self._legal()

    def _around(self, node: int, size: int) -> list[int]:
        home = self.timeline.home
        own = home[node]
        found, waiting = {node: None}, [node]
        for here in waiting:
            for other in self.near[here]:
                if home[other] == own and other not in found:
                    found[other] = None
                    waiting.append(other)
            if len(waiting) >= size:
                break
        return waiting[:size]

    def _beyond(self, node: int) -> list[int]:
        """The node with all on its device that needs it, or all that it needs: what can go to another part."""
        network, home = self.timeline.network, self.timeline.home
        table = network.users if self.draw.random() < 0.5 else network.makers
        own = home[node]
        found, waiting = {node: None}, [node]
        for here in waiting:
            for other in table[here]:
                if home[other] == own and other not in found:
                    found[other] = None
                    waiting.append(other)
        return waiting

    def _path(self, node: int, size: int) -> list[int]:
        home, draw = self.timeline.home, self.draw
        own, found = home[node], [node]
        for table in (self.timeline.network.users, self.timeline.network.makers):
            here = node
            for _ in range(int(draw.random() * size)):
                further = [other for other in table[here] if home[other] == own]
                if not further:
                    break
                here = further[int(draw.random() * len(further))]
                found.append(here)
        return found

    def _shift(self, node: int) -> bool:
        """The node goes elsewhere in the order of its device: past one other, or further."""
        timeline, draw = self.timeline, self.draw
        key, run = timeline.key, timeline.runs[timeline.home[node]]
        if timeline.before[node] < 0 and timeline.after[node] < 0:
            return False
        low, high = timeline.window(node)
        if draw.random() < 0.5:
            way = timeline.before if draw.random() < 0.5 else timeline.after
            other = way[node]
            while other >= 0 and way[other] >= 0 and draw.random() < 0.4:
                other = way[other]
            if other < 0 or not low < key[other] < high:
                return False
        else:
            first = bisect_left(run, low, key=key.__getitem__)
            last = bisect_left(run, high, key=key.__getitem__)
            if last - first < 2:
                return False
            other = run[first + int(draw.random() * (last - first))]
            if other == node:
                return False
        if key[other] < key[node]:
            place = self._between(node, timeline.before[other], other)
        else:
            place = self._between(node, other, timeline.after[other])
        if place == key[node]:
            return False
        timeline.move(node, timeline.home[node], place)
        return True
