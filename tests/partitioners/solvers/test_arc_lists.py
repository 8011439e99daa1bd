"""Pairs of ideals as compiled code lists them, beside all pairs looked at one by one: which, what each can take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from fuzz import examples
from numpy.typing import NDArray
from random_placements import sending_problem
from scipy.sparse import csr_array

from fxpasses.partitioners.solvers.contiguous.ideals.classes import device_classes
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, all_ideals
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.refined import arc_lists
from fxpasses.partitioners.solvers.contiguous.refined.arc_lists import ArcLists
from fxpasses.partitioners.solvers.contiguous.refined.spare import NOTHING, Fluid, Payment, Question
from fxpasses.partitioners.solvers.contiguous.refined.subset_sums import SubsetSums
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

RANDOM_GRAPHS = examples(120)
Spares = dict[tuple[int, int], list[float]]
"""What a device of each class has to spare, by pair of ideals."""


def with_values_back(units: Units, draw: np.random.Generator) -> Units:
    """The same where units that come later make some of the values: these are sent back."""
    source = units.source.copy()
    changed = draw.random(len(source)) < 0.3
    source[changed] = draw.integers(source[changed], units.size)
    return attrs.evolve(units, source=source)


def charging(group: DeviceClass, draw: np.random.Generator) -> DeviceClass:
    """The same with other links: some classes of devices send, or receive, in twice the time."""
    leaving, entering = draw.choice([1.0, 2.0], 2)
    return attrs.evolve(group, leaving=leaving * group.leaving, entering=entering * group.entering)


@attrs.frozen
class Asked:
    """A question about all ideals of some units."""

    units: Units
    question: Question

    @classmethod
    def of(cls, seed: int, *, is_coarse: bool) -> Asked:
        """Of a random problem; with some pairs of a coarser core and the parent of each ideal if ``is_coarse``."""
        draw = np.random.default_rng(seed)
        problem = sending_problem(seed)
        tables = tables_of(problem)
        units = with_values_back(reduce_problem(problem, tables), draw)
        devices = tuple(charging(group, draw) for group in device_classes(tables, units))
        words = all_ideals(units, 100_000)
        assert words is not None
        family, classes = CutFamily.of(words, 1e-6 * draw.random(units.size)), len(devices)  # all are in reach
        spans = Spans.of(units, family, devices)
        byte = np.where(
            [math.isfinite(group.memory) for group in spans.classes], draw.choice([0.0, 1e-3, 1.0], classes), 0.0
        )
        count = max(1, family.count // 3)
        table = np.triu(draw.random((count, count)) < 0.5, 1).astype(np.int8)
        known = (csr_array(table), draw.integers(0, count, family.count)) if is_coarse else (None, np.arange(0))
        below = draw.choice([0.3, 0.7, 3.0]) * max(float(weight[-1]) for weight in spans.weight)
        states, total = States.of(devices), below * draw.choice([0.05, 0.5])
        needed = np.sort(draw.uniform(0, total / 2, family.count))
        needed[0], needed[-1] = 0.0, total
        ready = np.minimum(needed + draw.uniform(0, total, family.count), total)
        passing = np.flatnonzero(draw.random(len(units.source)) < 0.7)
        along = draw.uniform(0, total / 10, (len(passing), family.count)) * draw.integers(2, size=len(needed))
        tolls = {group.charges: below * draw.uniform(0, 0.3, len(units.source)) for group in devices}
        toll = np.stack([tolls[group.charges] for group in devices])
        sums = SubsetSums.of(draw.uniform(0.1, 0.4, 4) * below, float(2 * below))
        fluid = Fluid(needed, ready, float(total), 1e-9, passing, along, toll, sums)
        allowed = draw.random((family.count, len(states.moves))) < draw.choice([0.7, 1.0])
        allowed[0, 0] = allowed[-1, -1] = True
        room = draw.uniform(0, below, classes)
        pays = Payment(room, draw.uniform(0.5, 1.5, classes), byte)
        return cls(
            units, Question(spans, states, csr_array(allowed.astype(np.int8)), pays, float(below), fluid, *known)
        )

    def arcs(self) -> Spares:
        """Between which ideals a device of some class can run, with what each class has to spare."""
        spans, pays, below, found = self.question.spans, self.question.pays, self.question.below, {}
        for first, last in self.nested():
            own = spans.family.inside[:, last] & ~spans.family.inside[:, first]
            size, spare = self.bytes_of(own), []
            for kind, group in enumerate(spans.classes):
                left = below - self.load_of(group, own)
                fits = not spans.is_tight or size <= group.memory
                can = left >= -1e-9 * below and fits and not (group.banned & own).any()
                worth = pays.byte[kind] * (group.memory - size) if spans.is_tight and pays.byte[kind] else 0.0
                spare.append(self.along(first, last, kind, left * pays.load[kind] + worth) if can else NOTHING)
            if max(spare) > NOTHING:
                found[first, last] = spare
        return found

    def along(self, first: int, last: int, kind: int, room: float) -> float:
        """What a device takes along between two ideals with some room: first what is free, then for the least toll."""
        fluid, spans, free = self.question.fluid, self.question.spans, 0.0
        inside, tolled = spans.family.inside, []
        for value, maker in enumerate(self.units.source.tolist()):
            users = self.units.uses[self.units.uses[:, 0] == value, 1]
            held, then = inside[users, first].sum(), inside[users, last].sum()
            weight = float(fluid.along[fluid.passing == value, first].sum())
            if inside[maker, first] and held == then < len(users) and weight > 0:
                toll = self.question.pays.load[kind] * float(fluid.toll[kind, value])
                tolled.append((toll / weight, weight))
        free = max(float(fluid.ready[last] - fluid.needed[first]) - sum(weight for _toll, weight in tolled), 0.0)
        taken = min(room, free)
        for toll, weight in sorted(tolled):
            own = min(weight, max(room - free, 0.0) / (1 + toll))
            taken, room = taken + own, room - own * (1 + toll)
        place = int((taken + fluid.slack) * fluid.sums.scale)
        return min(taken, float(fluid.sums.most[place])) if 0 <= place < len(fluid.sums.most) else taken

    def rooms(self) -> NDArray[np.float64]:
        """What a device of each class takes along at each ideal that runs nothing else."""
        room, ideals = self.question.pays.room, range(self.question.spans.family.count)
        return np.array([[self.along(each, each, kind, own) for kind, own in enumerate(room)] for each in ideals])

    def moves(self) -> Iterator[tuple[int, int, int]]:
        """A state, the class of the next device and the state after it."""
        for state, after in enumerate(self.question.states.moves):
            for kind, there in after:
                yield state, kind, there

    def taken(self, arcs: Spares) -> NDArray[np.float64]:
        """The most that devices take along up to each ideal, by the definition."""
        fluid, room, allowed = self.question.fluid, self.rooms(), self.question.allowed.toarray()
        most = np.full(allowed.shape, NOTHING)
        most[0, 0] = 0.0
        for ideal in range(len(most)):
            for there in range(len(most[0])):
                for state, kind, after in self.moves():
                    if after == there:
                        before = [most[first, state] + arcs[first, last][kind] for first, last in arcs if last == ideal]
                        most[ideal, there] = max(
                            most[ideal, there], most[ideal, state] + room[ideal, kind], *before, NOTHING
                        )
                own = min(most[ideal, there], fluid.ready[ideal])
                is_fine = allowed[ideal, there] and own >= fluid.needed[ideal] - fluid.slack
                most[ideal, there] = own if is_fine else NOTHING
        return most

    def left(self, arcs: Spares, taken: NDArray[np.float64]) -> NDArray[np.float64]:
        """The most that the others take along from each ideal on."""
        fluid, room = self.question.fluid, self.rooms()
        most = np.full(taken.shape, NOTHING)
        most[-1] = 0.0
        for ideal in reversed(range(len(most))):
            for state in reversed(range(len(most[0]))):
                for own, kind, there in self.moves():
                    if own == state:
                        after = [most[last, there] + arcs[first, last][kind] for first, last in arcs if first == ideal]
                        most[ideal, state] = max(
                            most[ideal, state], most[ideal, there] + room[ideal, kind], *after, NOTHING
                        )
                found = min(most[ideal, state], fluid.total - fluid.needed[ideal])
                is_fine = taken[ideal, state] > NOTHING and found >= fluid.total - fluid.ready[ideal] - fluid.slack
                most[ideal, state] = found if is_fine else NOTHING
        return most

    def nested(self) -> Iterator[tuple[int, int]]:
        """Pairs of ideals of which the second holds the first, where the coarser core allows them."""
        inside, coarse, parent = self.question.spans.family.inside, self.question.coarse, self.question.parent
        near = None if coarse is None else coarse.toarray() + np.eye(coarse.shape[0])
        for first, last in itertools.combinations(range(inside.shape[1]), 2):
            is_near = near is None or near[parent[first], parent[last]]
            if is_near and not (inside[:, first] & ~inside[:, last]).any():
                yield first, last

    def load_of(self, group: DeviceClass, own: NDArray[np.bool_]) -> float:
        """The seconds of some units on a device, and of what leaves and enters it."""
        users = [self.units.uses[self.units.uses[:, 0] == value, 1] for value in range(len(self.units.source))]
        load = float(group.weight[own].sum())
        for value, maker in enumerate(self.units.source.tolist()):
            load += group.leaving[value] * (own[maker] and not own[users[value]].all())
            load += group.entering[value] * (not own[maker] and own[users[value]].any())
        return load

    def bytes_of(self, own: NDArray[np.bool_]) -> float:
        """What some units keep, each shared key once, and the most that is alive."""
        units = self.units
        keys = np.unique(units.shares[own[units.shares[:, 1]], 0])
        return float(units.kept[own].sum() + units.shared[keys].sum() + units.live[own].max(initial=0))


def listed(arcs: ArcLists) -> Spares:
    """The pairs that were found, with what there is to spare."""
    return {
        (part.first + int(row), int(last)): spare.tolist()
        for part in arcs.arcs
        for row, last, spare in zip(
            np.repeat(np.arange(len(part.begins) - 1), np.diff(part.begins)), part.last, part.spare, strict=True
        )
    }


@pytest.mark.parametrize("is_coarse", [False, True], ids=["all", "of a coarser core"])
@pytest.mark.parametrize("together", [1, 100_000])
@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_pairs_are_those_that_a_device_can_run(
    seed: int, together: int, is_coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where values are sent back, where bytes are short or paid for, and where few pairs are found at a time."""
    monkeypatch.setattr(arc_lists, "TOGETHER", together)
    asked = Asked.of(seed, is_coarse=is_coarse)

    arcs, _steps = ArcLists.of(asked.question, math.inf)

    assert arcs is not None
    left = arcs.left(math.inf)
    assert left is not None
    expected = asked.arcs()
    taken = asked.taken(expected)
    going_on = {
        pair
        for pair, spare in expected.items()
        for state, kind, there in asked.moves()
        if taken[pair[0], state] + spare[kind] >= asked.question.fluid.needed[pair[1]] - 1e-6
        and asked.question.allowed[pair[1], there]
    }
    found = listed(arcs)
    assert going_on <= found.keys() <= expected.keys()
    for pair, spare in found.items():
        np.testing.assert_allclose(spare, expected[pair], rtol=1e-9, atol=1e-9)
    where = asked.question.allowed.nonzero()
    np.testing.assert_allclose(arcs.taken, taken[where], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(left, asked.left(found, taken)[where], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_pairs_are_left_where_both_sides_take_enough(seed: int) -> None:
    """They are those of which next cores are made."""
    asked = Asked.of(seed, is_coarse=False)
    arcs, _steps = ArcLists.of(asked.question, math.inf)
    assert arcs is not None
    assert arcs.left(math.inf) is not None
    expected = listed(arcs)
    taken = asked.taken(expected)
    left, enough = asked.left(expected, taken), asked.question.fluid.enough
    both = {
        pair: max(
            taken[pair[0], state] + spare[kind] + left[pair[1], there] - enough for state, kind, there in asked.moves()
        )
        for pair, spare in expected.items()
    }

    kept = arcs.between(np.ones(len(taken), dtype=bool)).nonzero()

    found = set(zip(*(ends.tolist() for ends in kept), strict=True))
    assert {pair for pair, more in both.items() if more > 1e-6} <= found
    assert found <= {pair for pair, more in both.items() if more > -1e-6}


def test_pairs_are_given_up_where_they_take_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found a few at a time, the steps are asked about between two times; so is what is kept."""
    question = Asked.of(10, is_coarse=False).question
    monkeypatch.setattr(arc_lists, "TOGETHER", 1)
    _arcs, steps = ArcLists.of(question, math.inf)

    arcs, few = ArcLists.of(question, steps / 2)
    monkeypatch.setattr(arc_lists, "MOST", 1)
    none, _few = ArcLists.of(question, math.inf)

    assert arcs is None
    assert steps / 2 < few < steps
    assert none is None


def test_pairs_count_more_where_many_values_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is looked at for each pair: a wide graph of thousands of nodes took four times what was counted."""
    question = Asked.of(10, is_coarse=False).question
    arcs, steps = ArcLists.of(question, math.inf)
    assert arcs is not None
    opened = np.diff(arcs.facts.open_start)

    monkeypatch.setattr(arc_lists, "USUAL", 0)
    _arcs, more = ArcLists.of(question, math.inf)

    expected = sum(arc_lists.OPEN * float(opened[first]) for first, _last in listed(arcs))
    assert expected > 0
    assert pytest.approx(expected) == more - steps
