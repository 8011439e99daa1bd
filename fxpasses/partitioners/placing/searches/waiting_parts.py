"""All pipelines whose parts may end soon: a part waits for what other parts send to it, and runs as a whole then.

Copies that are on one link go one after the other, and parameters that devices share are sent, too, so parts end no
sooner than is said here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph
from fxpasses.partitioners.placing.searches.walks import Step, reaching
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Arrivals", "QuickWalks"]

ROUNDING = 1 - 1e-9
"""Sums in another order differ by less."""
AT_ONCE = 2_000_000
"""Ways times values that are looked at together."""


@attrs.frozen(eq=False)
class Arrivals:
    """What units take from each other, and how long it takes from one device to another.

    Args:
        maker: The unit that makes each value, ``(e,)``.
        user: The other unit that takes it, ``(e,)``.
        copy: Seconds from one device to another, ``(e, k, k)``.
        after: Seconds from when it is on its way to another device until all that needs the user is done, at least, by
            the device that made it, ``(e, k)``.
    """

    maker: Ints
    user: Ints
    copy: Floats
    after: Floats

    @classmethod
    def of(cls, graph: ReducedGraph) -> Arrivals:
        """Look at the graph once."""
        topology, figures, unit_of = graph.request.topology, graph.figures, graph.unit_of
        names = [device.name for device in topology.devices]
        rows: list[tuple[int, int]] = []
        copies: list[list[list[float]]] = []
        for node in figures.nodes:
            own = unit_of[node]
            users = dict.fromkeys(unit_of[user] for user in node.users if unit_of.get(user, own) != own)
            if not users:
                continue
            size, back = figures.sent(node), figures.returned(node)
            taken = [[topology.seconds(a, b, size, back) if size and a != b else 0.0 for b in names] for a in names]
            rows += [(own, other) for other in users]
            copies += [taken] * len(users)
        maker, user = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        copy = np.array(copies, dtype=np.float64).reshape(-1, len(names), len(names))
        apart = np.where(np.eye(len(names), dtype=bool), np.inf, copy).min(axis=2, initial=np.inf)
        tails = _tails(graph.units.seconds.min(axis=1), maker, user)
        return cls(maker, user, copy, apart + tails[user, None])


def _tails(own: Floats, maker: Ints, user: Ints) -> Floats:
    """Seconds from when a part begins until all that needs one of its units is done, at least, ``(m,)``.

    Each unit takes ``own`` on its best device. What is in one part takes the sum, and another part begins when that is
    over; units are numbered in topological order.
    """
    tail = own.copy()
    last_first = np.argsort(-maker, kind="stable")
    for before, after in zip(maker[last_first].tolist(), user[last_first].tolist(), strict=True):
        tail[before] = max(tail[before], own[before] + tail[after])
    return tail


def _in_blocks(rows: Ints, size: int) -> Iterator[Ints]:
    """Rows of a size, so many at a time that they are looked at together."""
    most = max(1, AT_ONCE // size)
    for start in range(0, len(rows), most):
        yield rows[start : start + most]


@attrs.frozen(eq=False)
class _Begun:
    """Ways that go as far as some ideals.

    Args:
        state: Which devices each has used, ``(w,)``.
        steps: Its steps so far, ``(w, s, 3)``.
        ends: When the part of each step ends at least, ``(w, s)``.
        turn: The step of the part that each unit is in, -1 for none yet, ``(w, m)``.
    """

    state: Ints
    steps: Ints
    ends: Floats
    turn: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.state)

    def chosen(self, rows: Ints | NDArray[np.bool_] | slice) -> _Begun:
        """Some of them."""
        return _Begun(self.state[rows], self.steps[rows], self.ends[rows], self.turn[rows])


@attrs.frozen(eq=False)
class QuickWalks:
    """Ways from nothing to everything, a device a step, that may end before a limit.

    Args:
        states: In which order devices may be used.
        inside: The units of each ideal, ``(m, f)``.
        work: For each class of devices what one takes between two ideals, ``inf`` where it cannot run that, ``(f, f)``.
        arrivals: What parts wait for.
    """

    states: States
    inside: NDArray[np.bool_]
    work: Sequence[Floats]
    arrivals: Arrivals

    def before(self, limit: float, most: int) -> tuple[list[list[Step]], Floats, bool]:
        """The ways, when the last part of each ends at least, and whether no more than so many were begun.

        The soonest are first. Time O(ways that are begun × values).
        """
        reaches, fits = reaching(self.states, self.work, limit)
        units, count = self.inside.shape
        waiting = [
            _Begun(
                np.zeros(1, dtype=np.int64),
                np.zeros((1, 0, 3), dtype=np.int64),
                np.zeros((1, 0)),
                np.full((1, units), -1, dtype=np.int16),
            )
        ]
        steps, ends = list[list[Step]](), list[float]()
        while waiting and most >= 0:
            for begun in self._extended(waiting.pop(), reaches, fits):
                most -= len(begun)
                soon = begun.chosen(self._may_end(begun) * ROUNDING < limit)
                is_done = soon.steps[:, -1, 2] == count - 1
                done = soon.chosen(is_done)
                steps += [[(d, a, b) for d, a, b in way] for way in done.steps.tolist()]
                ends += done.ends.max(axis=1).tolist()
                if not is_done.all():
                    waiting.append(soon.chosen(~is_done))
                if most < 0:
                    break
        least = np.array(ends, dtype=np.float64) * ROUNDING
        order = np.argsort(least, kind="stable")
        return [steps[way] for way in order.tolist()], least[order], most >= 0

    def _extended(
        self, begun: _Begun, reaches: NDArray[np.bool_], fits: Sequence[NDArray[np.bool_]]
    ) -> Iterator[_Begun]:
        """The same ways with one more step, in blocks."""
        place = begun.steps[:, -1, 2] if begun.steps.shape[1] else np.zeros(len(begun), dtype=np.int64)
        values = max(1, len(self.arrivals.user), len(self.inside))
        for state in np.unique(begun.state).tolist():
            rows = np.flatnonzero(begun.state == state)
            for kind, there in self.states.moves[state]:
                for own in _in_blocks(rows, self.inside.shape[1]):
                    row, later = np.nonzero(fits[kind][place[own]] & reaches[there])
                    for some in _in_blocks(np.arange(len(row)), values):
                        ways = own[row[some]]
                        yield self._stepped(begun.chosen(ways), kind, there, place[ways], later[some])

    def _may_end(self, begun: _Begun) -> Floats:
        """When ways end at least: what is not in a part yet waits for what is."""
        arrivals, rows = self.arrivals, np.arange(len(begun))[:, None]
        made, waits = begun.turn[:, arrivals.maker], begun.turn[:, arrivals.user] < 0
        device = begun.steps[rows, made, 0]
        after = begun.ends[rows, made] + arrivals.after[np.arange(len(arrivals.user)), device]
        rest = np.where(waits & (made >= 0), after, 0.0).max(axis=1, initial=0.0)
        most: Floats = np.maximum(rest, begun.ends.max(axis=1))
        return most

    def _stepped(self, begun: _Begun, kind: int, there: int, first: Ints, last: Ints) -> _Begun:
        """Each way with the step to an ideal."""
        device, step = self.states.device(there, kind), begun.steps.shape[1]
        turn = np.where((begun.turn < 0) & self.inside[:, last].T, np.int16(step), begun.turn)
        made, taken = turn[:, self.arrivals.maker], turn[:, self.arrivals.user] == step
        edges, arrives = np.arange(len(self.arrivals.user)), np.zeros(len(begun))
        for before in range(step):
            copies = self.arrivals.copy[edges, begun.steps[:, before, 0, None], device]
            longest = np.where(taken & (made == before), copies, -np.inf).max(axis=1, initial=-np.inf)
            arrives = np.maximum(arrives, begun.ends[:, before] + longest)
        new = np.stack([np.full(len(begun), device), first, last], axis=1)
        return _Begun(
            np.full(len(begun), there),
            np.concatenate([begun.steps, new[:, None]], axis=1),
            np.column_stack([begun.ends, arrives + self.work[kind][first, last]]),
            turn,
        )
