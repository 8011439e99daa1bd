"""One schedule that is changed node by node is always what scheduling all nodes anew gives."""

from __future__ import annotations

import itertools
import random

import attrs
import numpy as np
import pytest
from fuzz import examples
from placement_cases import random_problem

from fxpasses.partitioners.solvers.latency.levels import Level
from fxpasses.partitioners.solvers.latency.rooms import Rooms
from fxpasses.partitioners.solvers.latency.scheduling import Scheduler
from fxpasses.partitioners.solvers.latency.searching import LatencySearch
from fxpasses.partitioners.solvers.latency.shifting import Shifting
from fxpasses.partitioners.solvers.latency.timelines import Network, Timeline
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

LIMITS = (float("inf"), 6.0)


def timeline_of(seed: int) -> tuple[Scheduler, Timeline, random.Random]:
    draw = random.Random(seed)
    scheduler = Scheduler.of(tables_of(random_problem(seed, [(12, 3), (9, 2)])))
    homes = [draw.randrange(scheduler.seconds.shape[1]) for _ in scheduler.seconds]
    return scheduler, Timeline(Network.of(scheduler), homes, scheduler.topological.tolist()), draw


def figures(timeline: Timeline) -> tuple[object, ...]:
    runs = [list(run) for run in timeline.runs]
    return list(timeline.home), list(timeline.key), list(timeline.end), list(timeline.tail), runs, timeline.makespan


def change(timeline: Timeline, draw: random.Random) -> None:
    """Some nodes go to any device, and to any place of the order that their neighbours leave."""
    for _ in range(draw.randint(1, 3)):
        node = draw.randrange(len(timeline.home))
        low, high = timeline.window(node)
        low, high = max(low, -5.0), min(high, len(timeline.home) + 5.0)
        key = timeline.key[node] if draw.random() < 0.5 else low + (high - low) * draw.uniform(0.1, 0.9)
        timeline.move(node, draw.randrange(len(timeline.runs)), key)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_ends_and_tails_are_those_of_a_new_schedule(seed: int) -> None:
    """After any changes that are kept, and after any that are taken back."""
    scheduler, timeline, draw = timeline_of(seed)
    for step in range(40):
        before = figures(timeline)
        change(timeline, draw)
        limit = LIMITS[step % 2]
        if timeline.settle(limit) > limit or draw.random() < 0.3:
            timeline.revert()
            assert before == figures(timeline)
            continue
        timeline.keep()
        again = Timeline(timeline.network, timeline.home, timeline.order())
        times = scheduler.times(np.array([timeline.home]), np.array([timeline.order()]))
        assert (again.end, again.makespan) == (timeline.end, timeline.makespan)
        assert again.tail == pytest.approx(timeline.tail)
        assert times.end[0].tolist() == pytest.approx(timeline.end)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_change_over_the_limit_is_known_to_be_over_it(seed: int) -> None:
    """One node moves: what is given up early is really later than the limit."""
    _scheduler, timeline, draw = timeline_of(seed)
    for _ in range(40):
        limit = timeline.makespan * draw.uniform(0.9, 1.1)
        node, device = draw.randrange(len(timeline.home)), draw.randrange(len(timeline.runs))
        timeline.move(node, device, timeline.key[node])
        value = timeline.settle(limit)
        homes = [device if other == node else home for other, home in enumerate(timeline.home)]
        again = Timeline(timeline.network, homes, timeline.order()).makespan

        assert (value <= limit * (1 + 1e-12)) == (again <= limit * (1 + 1e-12))
        if value <= limit:
            assert pytest.approx(again) == value
        timeline.revert()


@pytest.mark.parametrize("seed", range(examples(20)))
def test_pushing_late_and_back_is_never_worse(seed: int) -> None:
    """Forward-backward improvement keeps or shortens a schedule."""
    _scheduler, timeline, _draw = timeline_of(seed)
    spans = [timeline.makespan]
    for _ in range(3):
        timeline.reorder(timeline.pushed())
        spans.append(timeline.makespan)

    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("seed", range(examples(6)))
def test_what_annealing_finds_is_what_a_new_schedule_gives(seed: int) -> None:
    """After tens of thousands of changes; no two nodes of a device share a place, though keys are drawn."""
    problem = random_problem(seed, [(40, 3)], contiguity="free", colocate=[], pinned={}, forbidden={})
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    model = attrs.evolve(LoadModel.of(units, tables), memory=np.full(3, np.inf))
    level = Level(tables, model, units.unit_of, None)
    may = Rooms(model, None, [0] * model.size).may
    if not all(may):
        return  # some node runs nowhere
    home = [max(row) for row in may]
    order = level.scheduler.topological.tolist()
    timeline = Timeline(level.network, [home[unit] for unit in units.unit_of.tolist()], order)
    shifting = Shifting(timeline, Rooms(model, None, home), units.unit_of.tolist(), random.Random(seed))

    found = shifting.run(100_000, level.usual, 0.01 * level.usual)

    assert level.scheduled(np.array(found.home), np.array(found.order)).value == pytest.approx(found.value)
    assert all(a < b for run in timeline.runs for a, b in itertools.pairwise(timeline.key[node] for node in run))
    answer = LatencySearch(level, 0.0, 0.05, seed).run([np.array(home)])
    assert answer.value <= found.value * 1.2
