"""What no schedule can be shorter than: what must happen before and after each node, and how much work lies between.

* The **head** of a node on a device is when it can start there at the earliest, its **tail** how long it takes from its
  end to the end of all at the least. Inputs that would come too late from elsewhere have to be made on the same device,
  one after the other (as in the bounds for communication delays of Fernández & Bussell's kind).
* In every interval the devices do only so much: the nodes whose heads and tails are at least some numbers have to fit
  between them (Fernández & Bussell, "Bounds on the number of processors and time for multiprocessor optimal schedules",
  IEEE Transactions on Computers C-22(8), 1973).
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.latency.scheduling import Scheduler
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Heads", "ancestors"]

MAX_NODES = 2000
"""Nodes up to which the work in front of each node counts."""
STEPS = 700
"""Different heads and tails up to which all intervals are looked at; of more, these many."""


@attrs.frozen(eq=False)
class Heads:
    """Heads and tails of ``n`` nodes on ``k`` devices.

    Args:
        head: The earliest start of each node on each device, ``(n, k)``.
        tail: The least seconds from its end to the end of all, ``(n, k)``.
        seconds: Seconds of each node on each device, ``inf`` where it may not run, ``(n, k)``.
        weight: Seconds that each node takes from an interval in which all devices work, ``(n,)``.
    """

    head: Floats
    tail: Floats
    seconds: Floats
    weight: Floats

    @classmethod
    def of(cls, scheduler: Scheduler, banned: NDArray[np.bool_], prices: Floats) -> Heads:
        """Look at each node twice in each direction, the second time with the work that lies in front of it.

        Args:
            scheduler: The nodes.
            banned: Whether a node may not run on a device, ``(n, k)``.
            prices: What a second of each device counts, ``(k,)``, with the sum 1.
        """
        seconds = np.where(banned, np.inf, scheduler.seconds)
        weight = np.where(banned, np.inf, scheduler.seconds * prices).min(axis=1)
        send = scheduler.send[:-1]
        count = len(seconds)
        makers = [row[row < count].tolist() for row in scheduler.before]
        users = [row[row < count].tolist() for row in scheduler.after]
        order = scheduler.topological.tolist()
        into = [[send[maker] for maker in found] for found in makers]
        out = [[send[node].T] * len(found) for node, found in enumerate(users)]
        none = np.zeros(count)
        head, tail = _pass(order, makers, into, seconds, none), _pass(order[::-1], users, out, seconds, none)
        if 1 < count <= MAX_NODES:
            above = ancestors(order, makers)
            head = _pass(order, makers, into, seconds, _in_front(above, head.min(axis=1), weight))
            tail = _pass(order[::-1], users, out, seconds, _in_front(above.T, tail.min(axis=1), weight))
        return cls(head, tail, seconds, weight)

    @property
    def bound(self) -> float:
        """No schedule is shorter."""
        through = np.where(np.isfinite(self.seconds), self.head + self.seconds + self.tail, np.inf).min(axis=1)
        return max(float(through.max(initial=0.0)), self._by_work())

    def _by_work(self) -> float:
        """The longest of: a head, the work that can start no earlier and ends before a tail, the tail."""
        first, last = self.head.min(axis=1), self.tail.min(axis=1)
        low, high = _steps(first), _steps(last)
        work = np.zeros((len(low) + 1, len(high) + 1))
        rows, columns = np.searchsorted(low, first, side="right") - 1, np.searchsorted(high, last, side="right") - 1
        np.add.at(work, (rows, columns), self.weight)
        work = np.cumsum(np.cumsum(work[::-1, ::-1], axis=0), axis=1)[::-1, ::-1][:-1, :-1]
        total = np.where(work > 0, low[:, None] + work + high[None, :], 0.0)
        return float(total.max(initial=0.0))


def _steps(values: Floats) -> Floats:
    steps: Floats = np.unique(values)
    if len(steps) > STEPS:
        steps = steps[np.linspace(0, len(steps) - 1, STEPS).astype(np.int64)]
    return steps


def _pass(order: list[int], needs: list[list[int]], send: list[list[Floats]], seconds: Floats, least: Floats) -> Floats:
    """The earliest start of each node on each device, ``(n, k)``, at ``least`` or later."""
    start = np.zeros(seconds.shape)
    for node in order:
        start[node] = least[node]
        if needs[node]:
            start[node] = np.maximum(least[node], _after(needs[node], send[node], start, seconds))
    return start


def _after(needs: list[int], send: list[Floats], start: Floats, seconds: Floats) -> Floats:
    """When all inputs can be on each device: from elsewhere, or made there one by one."""
    kinds = seconds.shape[1]
    end = start[needs] + seconds[needs]  # (d, k)
    if kinds == 1:
        return np.array([_one_by_one(start[needs, 0], seconds[needs, 0])])
    remote = end[:, :, None] + np.stack(send)  # (d, from, to)
    own = np.arange(kinds)
    remote[:, own, own] = np.inf
    comes = remote.min(axis=1)  # (d, to)
    if len(needs) == 1:
        single: Floats = np.minimum(comes[0], end[0])
        return single
    there = np.empty(kinds)
    for device in range(kinds):
        late = np.argsort(-comes[:, device], kind="stable")
        arrives = [*comes[late, device].tolist(), 0.0]
        begin, taken = start[needs, device][late].tolist(), seconds[needs, device][late].tolist()
        best, here = math.inf, 0.0
        for number, arrival in enumerate(arrives):
            here = _one_by_one(begin[:number], taken[:number]) if number else 0.0
            best = min(best, max(here, arrival))
            if here >= arrival:
                break
        there[device] = best
    return there


def _one_by_one(begin: list[float] | Floats, taken: list[float] | Floats) -> float:
    """When one device has done all nodes that can begin at some times."""
    end = 0.0
    for first, seconds in sorted(zip(begin, taken, strict=True)):
        end = max(end, first) + seconds
    return float(end)


def ancestors(order: list[int], makers: list[list[int]]) -> NDArray[np.bool_]:
    """Whether a node, in a column, has to run before another, in a row, ``(n, n)``."""
    above = np.zeros((len(order), len(order)), dtype=bool)
    for node in order:
        found = makers[node]
        above[node] = above[found].any(axis=0)
        above[node, found] = True
    return above


def _in_front(above: NDArray[np.bool_], first: Floats, weight: Floats) -> Floats:
    """When all devices together can have done what lies in front of each node, ``(n,)``."""
    order: Ints = np.argsort(first, kind="stable")
    work = np.cumsum((above[:, order] * weight[order])[:, ::-1], axis=1)[:, ::-1]
    most: Floats = np.where(above[:, order], first[order] + work, 0.0).max(axis=1)
    return most
