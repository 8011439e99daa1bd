"""The shortest time for one sample: list schedules first, then many assignments and orders annealed side by side.

Each step changes every assignment a little (a node on the critical path, a run of neighbours, a swap, a place in the
order), schedules all of them together in numpy, and keeps what Metropolis accepts. The good ones take over from time to
time. Budgets are counted in steps, not in seconds, so the answer is the same on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.loads import LoadModel
from fxpasses.partitioners.solvers.scheduling import Scheduler, Times, in_order
from fxpasses.partitioners.solvers.tables import Floats, Ints

__all__ = ["LatencyAnswer", "LatencySearch"]

ROWS = 64
"""Assignments that are changed together."""
PHASES = ((0.5, 0.5, 0.01, 10**9), (0.5, 0.15, 0.002, 8))
"""Share of the steps, first and last temperature in seconds of a usual node, steps between which the best take over."""
ROUND = 2.0
"""Seconds of the first round; each further one starts from the best and is twice as long."""
IMPROVE = 32
"""Steps after which all schedules are pushed to the end and back."""
SEARCH_FIRST = 0.03
"""Seconds of search whatever the budget."""


@attrs.frozen(eq=False)
class LatencyAnswer:
    """An assignment of units, an order of nodes, and when they start; ``inf`` when no legal assignment was found."""

    home: Ints
    order: Ints
    start: Floats
    value: float


@attrs.define(eq=False)
class _State:
    """Assignments of units and orders of nodes, one a row, with their times; illegal ones take ``inf``."""

    homes: Ints
    orders: Ints
    times: Times
    value: Floats

    def keep(self, rows: Ints | NDArray[np.bool_], other: _State) -> None:
        """Take some rows from another state."""
        self.homes[rows], self.orders[rows], self.value[rows] = other.homes[rows], other.orders[rows], other.value[rows]
        for mine, theirs in zip(
            attrs.astuple(self.times, recurse=False), attrs.astuple(other.times, recurse=False), strict=True
        ):
            mine[rows] = theirs[rows]

    def take_over(self, share: float) -> None:
        """The worst become copies of the best."""
        order = np.argsort(self.value, kind="stable")
        count = int(len(order) * share)
        keep = np.arange(len(order))
        keep[order[len(order) - count :]] = order[:count]
        self.homes, self.orders, self.value = self.homes[keep], self.orders[keep], self.value[keep]
        self.times = Times(self.times.start[keep], self.times.end[keep], self.times.cause[keep])


@attrs.frozen(eq=False)
class LatencySearch:
    """A search for the assignment and order of the smallest makespan.

    Args:
        model: What units need, and where they may be.
        scheduler: The nodes.
        unit_of: The unit of each node.
        allowed: Says which rows of assignments of units are allowed beside budgets, a pipeline for example.
        bound: No schedule is shorter.
        budget: About how many seconds the search may take on a machine of 2024.
        seed: For everything that is drawn.
    """

    model: LoadModel
    scheduler: Scheduler
    unit_of: Ints
    allowed: Callable[[Ints], NDArray[np.bool_]]
    bound: float
    budget: float
    seed: int

    def run(self, starts: Sequence[Ints]) -> LatencyAnswer:
        """Search from some assignments of units, from all on one device, and from a list schedule."""
        firsts = np.stack([*starts, self.earliest(), self.by_paths(), *self._on_one_device()])
        started = self._started(firsts)
        best = started[0]
        draw = random.Random(self.seed)
        left, length = (SEARCH_FIRST + self.budget) / self._step_seconds(), ROUND / self._step_seconds()
        while left > 0 and best.value > self.bound * (1 + 1e-9):
            steps = left if left < 2 * length else length
            for share, hot, cold, every in PHASES:
                best = self._annealed(started, max(4, int(share * steps)), (hot, cold), every, draw)
                started = [best]
            left, length = left - steps, 2 * length
        return best

    def earliest(self) -> Ints:
        """Each node, by falling rank, where it ends first and fits (HEFT, without insertion)."""
        scheduler, model = self.scheduler, self.model
        count, kinds = scheduler.seconds.shape
        home = np.full(model.size, -1, dtype=np.int64)
        need, free, end = np.zeros(kinds), np.zeros(kinds), np.zeros(count + 1)
        for node in self._mean_order().tolist():
            unit = self.unit_of[node]
            needs = scheduler.before[node][scheduler.before[node] < count]
            there = (end[needs, None] + scheduler.send[needs, home[self.unit_of[needs]]]).max(axis=0, initial=0.0)
            done = np.maximum(there, free) + scheduler.seconds[node]
            if home[unit] < 0:
                done[model.banned[unit]] = np.inf
                full = need + model.kept[unit] + model.live[unit] > model.memory
                home[unit] = int(np.argmin(np.where(full, done + 1e9 * (1 + self.bound), done)))
                need[home[unit]] += model.kept[unit]
            target = home[unit]
            end[node] = done[target]
            free[target] = max(free[target], end[node]) if scheduler.seconds[node, target] > 0 else free[target]
        return home

    def by_paths(self) -> Ints:
        """The graph as paths, each on one device, the longest first where the least is on it then.

        Branches, or the layers of an unrolled recurrent net, become one path each (linear clustering: Kim & Browne,
        "A general approach to mapping of parallel computation upon multiprocessor architectures", ICPP 1988).
        """
        scheduler, model = self.scheduler, self.model
        path_of = np.full(model.size, -1, dtype=np.int64)
        for path, first in enumerate(scheduler.topological.tolist()):
            node: int | None = first
            while node is not None and path_of[self.unit_of[node]] < 0:
                path_of[self.unit_of[node]] = path
                users = (user for user in scheduler.after[node].tolist() if user < len(self.unit_of))
                node = next((user for user in users if path_of[self.unit_of[user]] < 0), None)
        cluster: Ints = np.unique(path_of, return_inverse=True)[1].astype(np.int64)
        return self._longest_first(model.merged(cluster))[cluster]

    def _longest_first(self, model: LoadModel) -> Ints:
        load, need = np.zeros(model.devices), np.zeros(model.devices)
        home = np.zeros(model.size, dtype=np.int64)
        for unit in np.argsort(-model.weight.max(axis=1), kind="stable").tolist():
            after = load + model.weight[unit]
            after[model.banned[unit]] = np.inf
            after[need + model.kept[unit] + model.live[unit] > model.memory] += 1e9 * (1 + float(load.sum()))
            home[unit] = target = int(np.argmin(after))
            load[target] += model.weight[unit, target]
            need[target] += model.kept[unit]
        return home

    def _mean_order(self) -> Ints:
        """Falling rank with mean seconds and mean transfers."""
        scheduler = self.scheduler
        count, kinds = scheduler.seconds.shape
        seconds = scheduler.seconds.mean(axis=1)
        send = scheduler.send.sum(axis=(1, 2)) / max(1, kinds * (kinds - 1))
        rank = np.zeros(count + 1)
        for node in scheduler.topological[::-1].tolist():
            rank[node] = seconds[node] + send[node] + rank[scheduler.after[node]].max(initial=0.0)
        place = np.empty(count, dtype=np.int64)
        place[scheduler.topological] = np.arange(count)
        return np.lexsort((place, -rank[:-1]))

    def _on_one_device(self) -> list[Ints]:
        """Everything on the device, and what it cannot run or hold on others, the fastest first."""
        model = self.model
        found = []
        for device in range(model.devices):
            home = np.where(model.banned[:, device], np.argmin(model.weight + 1e12 * model.banned, axis=1), device)
            found.append(home.astype(np.int64))
        return found

    def _evaluated(self, homes: Ints, orders: Ints) -> _State:
        times = self.scheduler.times(homes[:, self.unit_of], orders)
        legal = self.model.legal(homes) & self.allowed(homes)
        return _State(homes, orders, times, np.where(legal, times.makespan, np.inf))

    def scheduled(self, home: Ints, start: Floats) -> LatencyAnswer:
        """What an assignment costs when its nodes run in the order of some starts."""
        scheduler = self.scheduler
        start = np.append(start, -math.inf)
        for node in scheduler.topological.tolist():  # the program is right to about 1e-7 only
            start[node] = max(start[node], start[scheduler.before[node]].max())
        order = in_order(start[None, :-1], scheduler.topological)
        return _best(self._evaluated(home[None], order))

    def _started(self, homes: Ints) -> list[LatencyAnswer]:
        """Some assignments, each with two orders, the best first; those that are not allowed only if no other is."""
        wide = homes[:, self.unit_of]
        first = self._evaluated(homes, self.scheduler.by_rank(wide))
        second = self._evaluated(homes, self.scheduler.justified(wide, first.times))
        found = [_answer(state, row) for state in (first, second) for row in range(len(homes))]
        found.sort(key=lambda answer: answer.value)
        return [answer for answer in found if math.isfinite(answer.value)] or found

    def _annealed(
        self, started: list[LatencyAnswer], steps: int, span: tuple[float, float], every: int, draw: random.Random
    ) -> LatencyAnswer:
        best = started[0]
        rows = [started[row % len(started)] for row in range(ROWS)]
        state = self._evaluated(np.stack([row.home for row in rows]), np.stack([row.order for row in rows]))
        seconds = self.scheduler.seconds.mean(axis=1)
        usual = float((seconds**2).sum() / (seconds.sum() or 1.0))
        moves = _Moves(self, draw)
        for step in range(steps):
            temperature = usual * span[0] * (span[1] / span[0]) ** (step / steps)
            changed = moves.changed(state)
            other = self._evaluated(*changed)
            worse = np.array([-math.log(1.0 - draw.random()) for _ in range(ROWS)]) * temperature
            state.keep(np.flatnonzero(other.value <= state.value + worse), other)
            if step % every == every - 1:
                state.take_over(0.15)
            if step % IMPROVE == IMPROVE - 1:
                orders = self.scheduler.justified(state.homes[:, self.unit_of], state.times)
                other = self._evaluated(state.homes.copy(), orders)
                state.keep(np.flatnonzero(other.value <= state.value), other)
            if state.value.min() < best.value * (1 - 1e-12):
                best = _best(state)
                if best.value <= self.bound * (1 + 1e-9):
                    break
        return best

    def _step_seconds(self) -> float:
        """About how long it takes to change and schedule all rows once."""
        return len(self.unit_of) * 25e-6 + 1e-3


def _best(state: _State) -> LatencyAnswer:
    return _answer(state, int(np.argmin(state.value)))


def _answer(state: _State, row: int) -> LatencyAnswer:
    home, order, start = state.homes[row], state.orders[row], state.times.start[row]
    return LatencyAnswer(home.copy(), order.copy(), start.copy(), float(state.value[row]))


class _Moves:
    """Small changes, drawn row by row."""

    def __init__(self, search: LatencySearch, draw: random.Random) -> None:
        self.search, self.draw = search, draw
        self.kinds = search.model.devices
        scheduler = search.scheduler
        count = len(search.unit_of)
        self.near = [
            [int(node) for node in (*before, *after) if node < count]
            for before, after in zip(scheduler.before.tolist(), scheduler.after.tolist(), strict=True)
        ]
        self.free = [np.flatnonzero(~banned).tolist() for banned in search.model.banned]

    def changed(self, state: _State) -> tuple[Ints, Ints]:
        """New assignments and orders."""
        homes, orders = state.homes.copy(), state.orders.copy()
        for row in range(len(homes)):
            path = state.times.critical(row) if self.draw.random() < 0.7 else None
            kind = self.draw.random() if self.kinds > 1 else 1.0
            node = self._node(path)
            if kind < 0.35:
                self._move(homes[row], node)
            elif kind < 0.65:
                self._move_run(homes[row], node)
            elif kind < 0.75:
                self._swap(homes[row], node)
            else:
                self._shift(orders[row], node)
        return homes, orders

    def _node(self, path: list[int] | None) -> int:
        return self.draw.choice(path) if path else self.draw.randrange(len(self.near))

    def _target(self, home: Ints, node: int) -> int:
        """A device where a neighbour is, or any."""
        own = int(home[self.search.unit_of[node]])
        there = [int(home[self.search.unit_of[other]]) for other in self.near[node]]
        there = [device for device in there if device != own]
        if there and self.draw.random() < 0.7:
            return self.draw.choice(there)
        return self.draw.randrange(self.kinds)

    def _put(self, home: Ints, node: int, target: int) -> None:
        unit = self.search.unit_of[node]
        if target in self.free[unit]:
            home[unit] = target

    def _move(self, home: Ints, node: int) -> None:
        self._put(home, node, self._target(home, node))

    def _move_run(self, home: Ints, node: int) -> None:
        """Nodes of one device that edges connect go together: a path through the node, or what lies around it."""
        target = self._target(home, node)
        size = self.draw.choice((2, 3, 4, 6, 8, 12, 16, 32))
        found = self._path(home, node, 2 * size) if self.draw.random() < 0.5 else self._around(home, node, size)
        for each in found:
            self._put(home, each, target)

    def _around(self, home: Ints, node: int, size: int) -> list[int]:
        own = home[self.search.unit_of[node]]
        found = {node: None}
        for here in (waiting := [node]):
            for other in self.near[here]:
                if len(found) < size and other not in found and home[self.search.unit_of[other]] == own:
                    found[other] = None
                    waiting.append(other)
        return list(found)

    def _path(self, home: Ints, node: int, size: int) -> list[int]:
        own, found = home[self.search.unit_of[node]], [node]
        for table in (self.search.scheduler.after, self.search.scheduler.before):
            here = node
            for _ in range(self.draw.randrange(size)):
                further = [other for other in table[here].tolist() if other < len(self.near)]
                further = [other for other in further if home[self.search.unit_of[other]] == own]
                if not further:
                    break
                here = self.draw.choice(further)
                found.append(here)
        return found

    def _swap(self, home: Ints, node: int) -> None:
        other = self.draw.randrange(len(self.near))
        first, second = int(home[self.search.unit_of[node]]), int(home[self.search.unit_of[other]])
        self._put(home, node, second)
        self._put(home, other, first)

    def _shift(self, order: Ints, node: int) -> None:
        """The node goes elsewhere in the order, between what it needs and what needs it."""
        scheduler = self.search.scheduler
        place = np.empty(len(order) + 1, dtype=np.int64)
        place[order] = np.arange(len(order))
        needs, users = scheduler.before[node], scheduler.after[node]
        low = int(place[needs[needs < len(order)]].max(initial=-1)) + 1
        high = int(place[users[users < len(order)]].min(initial=len(order))) - 1
        here, there = int(place[node]), self.draw.randint(low, high)
        if there < here:
            order[there + 1 : here + 1] = order[there:here].copy()
        else:
            order[here:there] = order[here + 1 : there + 1].copy()
        order[there] = node
