"""One schedule that is changed node by node, compiled, is always what scheduling all nodes anew gives."""

from __future__ import annotations

import itertools
import math
import random

import attrs
import networkx as nx
import numba
import numpy as np
import pytest
from fuzz import examples
from hash_seeds import printed_under_two_hash_seeds
from placement_cases import random_problem

from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.latency.annealing import Annealing, Found
from fxpasses.partitioners.solvers.latency.holdings import Needs, Rooms, rooms_of
from fxpasses.partitioners.solvers.latency.levels import Flow, Level
from fxpasses.partitioners.solvers.latency.pushing import push, reorder
from fxpasses.partitioners.solvers.latency.rooms import fits, give, give_back
from fxpasses.partitioners.solvers.latency.running import forget, keep, move, revert, settle
from fxpasses.partitioners.solvers.latency.scheduling import in_order
from fxpasses.partitioners.solvers.latency.searching import LatencySearch
from fxpasses.partitioners.solvers.latency.timelines import MAKESPAN, Cooling, Network, Timeline, timeline_of
from fxpasses.partitioners.solvers.latency.trials import anneal
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


@attrs.frozen(eq=False)
class Begun:
    """A schedule of a problem, as compiled code reads it."""

    level: Level
    state: Timeline
    rooms: Rooms

    @classmethod
    def of(cls, level: Level, home: np.ndarray, key: np.ndarray) -> Begun:
        """All nodes scheduled anew: an annealing that is at its goal when it begins."""
        network, needs = level.network, level.needs
        state, rooms, written = timeline_of(network, home), rooms_of(needs, home), (home.copy(), key.copy())
        order, nowhere = np.argsort(key, kind="stable"), np.zeros(0, dtype=np.int64)
        draws = np.ones(2, dtype=np.uint64)
        anneal(network, state, needs, rooms, order, nowhere, Cooling(1.0, 1.0, 1.0, math.inf), draws, *written)
        return cls(level, state, rooms)

    @property
    def makespan(self) -> float:
        return float(self.state.figures[MAKESPAN])

    @property
    def runs(self) -> list[list[int]]:
        return [self.state.run[device, :count].tolist() for device, count in enumerate(self.state.filled)]

    def figures(self) -> list[object]:
        """All that a change that is taken back must leave as it was."""
        state, rooms = self.state, self.rooms
        arrays = [state.home, state.key, state.end, state.tail, state.before, state.after]
        arrays += [rooms.home, rooms.bytes, rooms.holders, rooms.ranks, rooms.top, rooms.crossing]
        arrays += [rooms.givers, rooms.takers, rooms.is_new]
        return [self.runs, self.makespan, *(array.tolist() for array in arrays)]

    def tried(self, node: int, device: int, key: float, limit: float, stays: bool) -> float:
        """What one change leads to; it is taken back if it must not stay or is over the limit."""
        return tried(self.level.network, self.state, self.level.needs, self.rooms, node, device, key, limit, stays)

    def check(self) -> None:
        """Ends, tails, runs, bytes and what crosses are those of a new schedule."""
        level, state, home = self.level, self.state, self.rooms.home
        again = Begun.of(level, home, state.key)
        order = level.scheduler.topological[np.argsort(state.key, kind="stable")]
        times = level.scheduler.times(home[None, level.unit_of], order[None])
        ends = times.end[0, level.scheduler.topological]

        assert ends.tolist() == pytest.approx(state.end.tolist())
        assert again.state.end.tolist() == state.end.tolist()
        assert again.state.tail.tolist() == pytest.approx(state.tail.tolist())
        assert times.makespan[0] == pytest.approx(self.makespan)
        assert home[level.network.unit_of].tolist() == state.home.tolist()
        assert again.runs == self.runs
        assert all(a < b for run in self.runs for a, b in itertools.pairwise(state.key[run].tolist()))
        assert again.state.before.tolist() == state.before.tolist()
        assert again.state.after.tolist() == state.after.tolist()
        assert again.rooms.crossing.tolist() == self.rooms.crossing.tolist()
        assert again.rooms.givers.tolist() == self.rooms.givers.tolist()
        assert again.rooms.takers.tolist() == self.rooms.takers.tolist()
        if level.needs.is_bounded:
            assert level.model.needs(home[None])[0] == pytest.approx(
                self.rooms.bytes + level.needs.sizes[self.rooms.top]
            )


@numba.njit(_nrt=False)
def tried(
    network: Network,
    state: Timeline,
    needs: Needs,
    rooms: Rooms,
    node: int,
    device: int,
    key: float,
    limit: float,
    stays: bool,
) -> float:
    give(needs, rooms, network.unit_of[node], device)
    if rooms.changed[0] == 0:
        move(network, state, node, state.home[node], key)
    for index in range(rooms.changed[0]):
        unit = rooms.moved[index]
        for place in range(network.member_start[unit], network.member_start[unit + 1]):
            member = network.member[place]
            move(network, state, member, rooms.home[unit], key if member == node else state.key[member])
    value = settle(network, state, limit)
    if stays and value <= limit:
        keep(network, state, value)
        rooms.changed[0], rooms.is_new[0] = 0, False
    else:
        revert(network, state)
        give_back(needs, rooms)
    forget(state)
    return value


@numba.njit(_nrt=False)
def given(needs: Needs, rooms: Rooms, units: np.ndarray, devices: np.ndarray) -> bool:
    """Some units go to devices, and stay where all fits."""
    rooms.most[0] = math.inf
    for index in range(len(units)):
        give(needs, rooms, units[index], devices[index])
    if not fits(needs, rooms):
        give_back(needs, rooms)
        return False
    rooms.changed[0], rooms.is_new[0] = 0, False
    return True


@numba.njit(_nrt=False)
def pushed(network: Network, state: Timeline, order: np.ndarray) -> float:
    reorder(network, state, order)
    push(network, state)
    return state.figures[MAKESPAN]


def level_of(seed: int, problem: PlacementProblem | None = None) -> Level:
    """Every other problem is a pipeline; in some of the others nodes share a device with their backward."""
    problem = problem or random_problem(seed, [(12, 3), (9, 2)], contiguity=("free", "pipeline")[seed % 2])
    graph = nx.DiGraph(problem.graph)
    for index, node in enumerate(graph):
        graph.add_node(node, live_bytes=(seed * index) % 7, shared_bytes={"v": 3} if index % 2 else {"w": 4})
        if seed % 4 == 2 and index >= 8:
            graph.add_node(node, seconds=1.0, backward_of=f"n{index % 3}")
    problem = attrs.evolve(problem, graph=graph, colocate=[], pinned={})
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    model = LoadModel.of(units, tables)
    return Level(tables, model, units.unit_of, Flow.of(units, model.devices) if seed % 2 else None)


def begun(seed: int) -> tuple[Begun, random.Random]:
    draw, level = random.Random(seed), level_of(seed)
    home = np.array([draw.choice(np.flatnonzero(~row).tolist() or [0]) for row in level.model.banned])
    return Begun.of(level, home, np.arange(len(level.unit_of)).astype(float)), draw


def change(begun: Begun, draw: random.Random) -> tuple[int, int, float]:
    """A node, any device, and any place of the order that its neighbours leave."""
    network, keys = begun.level.network, begun.state.key
    node = draw.randrange(len(keys))
    makers = network.maker[network.maker_start[node] : network.maker_start[node + 1]]
    users = network.user[network.user_start[node] : network.user_start[node + 1]]
    low, high = float(keys[makers].max(initial=-5.0)), float(keys[users].min(initial=len(keys) + 5.0))
    key = float(keys[node]) if draw.random() < 0.5 else low + (high - low) * draw.uniform(0.1, 0.9)
    return node, draw.randrange(begun.level.model.devices), key


@pytest.mark.parametrize("seed", range(examples(40)))
def test_ends_and_tails_are_those_of_a_new_schedule(seed: int) -> None:
    """After any changes that are kept, and after any that are taken back."""
    schedule, draw = begun(seed)
    for step in range(40):
        before, stays = schedule.figures(), draw.random() < 0.7
        limit = (math.inf, 6.0)[step % 2]
        value = schedule.tried(*change(schedule, draw), limit, stays)

        assert (stays and value <= limit) or before == schedule.figures()
        schedule.check()


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_change_over_the_limit_is_known_to_be_over_it(seed: int) -> None:
    """What is given up early is really later than the limit."""
    schedule, draw = begun(seed)
    level = schedule.level
    for _ in range(40):
        limit = schedule.makespan * draw.uniform(0.9, 1.1)
        node, device, key = change(schedule, draw)
        value = schedule.tried(node, device, key, limit, False)
        home, keys, unit = schedule.rooms.home.copy(), schedule.state.key.copy(), level.network.unit_of[node]
        home[unit] = home[unit] if level.model.banned[unit, device] else device
        keys[node] = key
        again = Begun.of(level, home, keys).makespan

        assert (value <= limit * (1 + 1e-12)) == (again <= limit * (1 + 1e-12))
        if value <= limit:
            assert pytest.approx(again) == value


@pytest.mark.parametrize("seed", range(examples(20)))
def test_pushing_late_and_back_is_never_worse(seed: int) -> None:
    """Forward-backward improvement keeps or shortens a schedule."""
    schedule, _draw = begun(seed)
    spans = [schedule.makespan]
    for _ in range(3):
        order = np.argsort(schedule.state.key, kind="stable")
        spans.append(pushed(schedule.level.network, schedule.state, order))
        schedule.check()

    assert all(after <= before for before, after in itertools.pairwise(spans))


@pytest.mark.parametrize("seed", range(1, 2 * examples(20), 2))
def test_a_change_of_a_pipeline_fits_where_values_still_flow_one_way(seed: int) -> None:
    """Of one unit or two at once, from everything on one device on, as whole assignments say."""
    problem = random_problem(seed, [(15, 5), (9, 7)], contiguity="pipeline", forbidden={})
    level, draw, told = level_of(seed, problem), random.Random(seed), set()
    home = np.argmin(level.model.banned, axis=1)
    if len(set(home.tolist())) > 1:
        return  # no device runs all nodes
    schedule = Begun.of(level, home, np.arange(len(level.unit_of)).astype(float))
    for _ in range(60):
        units = np.array([draw.randrange(level.model.size) for _ in range(draw.choice((1, 1, 2)))])
        devices = np.array([draw.randrange(level.model.devices) for _ in units])
        there = home.copy()
        for unit, device in zip(units.tolist(), devices.tolist(), strict=True):
            there[unit] = there[unit] if level.model.banned[unit, device] else device
        fine = bool(level.flow.is_acyclic(there[None])[0])

        assert given(level.needs, schedule.rooms, units, devices) == fine
        home = there if fine else home
        told.add(fine)
        assert schedule.rooms.home.tolist() == home.tolist()

    assert told == {True, False}


@pytest.mark.parametrize("seed", range(examples(12)))
def test_what_annealing_finds_is_what_a_new_schedule_gives(seed: int) -> None:
    """After tens of thousands of changes, for pipelines, too; budgets are kept from the first legal schedule on."""
    problem = random_problem(seed, [(40, 3)], contiguity=("free", "pipeline")[seed % 2], forbidden={})
    level = level_of(seed, problem)
    level = attrs.evolve(level, model=attrs.evolve(level.model, memory=level.model.memory * 3))
    homes = np.stack([np.full(level.model.size, device) for device in range(3)])
    legal = homes[level.legal(homes)]
    if not len(legal):
        return  # no device runs all nodes
    order = level.scheduler.topological
    draw = np.random.default_rng(seed)
    found = Annealing(level, 0.0, draw).improved(Found(legal[0], order, math.inf), 300_000, 1.0)
    answer = level.scheduled(found.home, found.order)

    assert pytest.approx(answer.value) == found.value  # infinite where it is not legal
    assert found.order.tolist() == in_order(np.argsort(found.order)[None].astype(float), order)[0].tolist()
    assert LatencySearch(level, 0.0, 0.01, seed).run([legal[0]]).value <= found.value * 1.2


def test_answers_do_not_depend_on_the_process() -> None:
    """Two processes with other hash seeds find the same schedules by the same draws."""
    code = (
        "import numpy as np\n"
        "from test_timelines import level_of\n"
        "from fxpasses.partitioners.solvers.latency.searching import LatencySearch\n"
        "for seed in range(6):\n"
        "    level = level_of(seed)\n"
        "    answer = LatencySearch(level, 0.0, 0.02, seed).run([np.zeros(level.model.size, dtype=np.int64)])\n"
        "    print(answer.value.hex(), answer.home.tolist(), answer.order.tolist())\n"
    )

    answers = printed_under_two_hash_seeds(code, "tests/partitioners/solvers")

    assert answers[0] == answers[1]
    assert 6 == len(answers[0].splitlines())
