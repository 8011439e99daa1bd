"""Short annealings whose cuts one dynamic program puts together: never worse, always a pipeline within the budgets."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from random_placements import every_placement, random_problem
from test_refining import search_of

from fxpasses.devices import Device, Link
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.contiguous import certifying, recombining, searching
from fxpasses.partitioners.solvers.contiguous import solving as pipelines
from fxpasses.partitioners.solvers.contiguous.annealed_pipelines import LOADING, Annealing, PipelineAnnealer, Run
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import prefixes
from fxpasses.partitioners.solvers.contiguous.recombining import OTHERS, Recombining
from fxpasses.partitioners.solvers.contiguous.searching import STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.reduced.tables import Ints, evaluate

RANDOM_GRAPHS = examples(60)


def first_answer(search: Search) -> Answer | None:
    """The best pipeline along one order."""
    pipeline = search.run(prefixes([range(search.units.size)]), np.inf).pipeline
    return None if pipeline is None else Answer.of(search, pipeline)


def recombined(search: Search, start: Answer, bound: float, seconds: float) -> Answer:
    """The best answer after some seconds of rounds."""
    with Recombining(search) as rounds:
        return rounds.better(start, bound, seconds)


def named(problem: PlacementProblem, answer: Answer) -> dict[object, str]:
    """The device of each node."""
    names = [device.name for device in problem.devices]
    return {node: names[home] for node, home in zip(problem.graph, answer.device_of.tolist(), strict=True)}


def encoder_decoder(layers: int, speeds: list[float], sending: float = 0.05) -> PlacementProblem:
    """Two stacks of attention and feed-forward blocks; each block of the second one attends to the first one's end."""
    draw = random.Random(0)
    graph: nx.DiGraph[str] = nx.DiGraph()

    def add(name: str, work: float, *operands: str) -> str:
        seconds = work * draw.uniform(0.9, 1.1)
        graph.add_node(name, seconds={f"d{k}": seconds / s for k, s in enumerate(speeds)}, output_seconds=sending)
        graph.add_edges_from((operand, name) for operand in operands)
        return name

    def attention(name: str, queries: str, memory: str) -> str:
        q, k, v = (add(f"{name}.{part}", 1.0, of) for part, of in (("q", queries), ("k", memory), ("v", memory)))
        mixed = add(f"{name}.mix", 0.4, add(f"{name}.scores", 0.6, q, k), v)
        return add(f"{name}.sum", 0.05, add(f"{name}.out", 1.0, mixed), queries)

    def feed(name: str, given: str) -> str:
        return add(f"{name}.sum", 0.05, add(f"{name}.down", 2.0, add(f"{name}.up", 2.0, given)), given)

    here = add("source", 0.1)
    for layer in range(layers):
        here = feed(f"encoder.{layer}", attention(f"encoder.{layer}.self", here, here))
    memory, there = here, add("target", 0.1)
    for layer in range(layers):
        there = attention(f"decoder.{layer}.self", there, there)
        there = feed(f"decoder.{layer}", attention(f"decoder.{layer}.cross", there, memory))
    devices = [Device(f"d{k}") for k in range(len(speeds))]
    links = [Link(a.name, b.name, 1e9) for a, b in itertools.combinations(devices, 2)]
    return PlacementProblem(graph, devices, links, objective="throughput")


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_it_is_a_pipeline_within_the_budgets_and_never_worse(seed: int) -> None:
    """Random graphs with budgets, pins, groups and links that differ, beside brute force."""
    problem = random_problem(seed, objective="throughput")
    every = every_placement(problem)
    if not (every.legal & every.pipeline).any():
        return
    search = search_of(problem)
    first = first_answer(search)
    if first is None:
        return

    found = recombined(search, first, 0.0, 0.01)

    row = every.row(problem, named(problem, found))
    assert every.legal[row]
    assert every.pipeline[row]
    assert found.rank <= first.rank
    assert pytest.approx(every.load[row].max()) == found.rank[0]
    assert [device for device, _units in found.pipeline.runs] == list(found.order)


def test_a_decoder_beside_its_encoder_gets_better() -> None:
    """Than what is found along orders and around their cuts; twice the same; its figures are true."""
    search, other = (search_of(encoder_decoder(4, [1.0] * 6)) for _ in range(2))
    first = pipelines._first_answer(search, 0.0, Recombining(search))
    second = pipelines._first_answer(other, 0.0, Recombining(other))
    assert first is not None
    assert second is not None

    found, again = recombined(search, first, 0.0, 0.2), recombined(other, second, 0.0, 0.2)

    assert found.rank[0] < 0.996 * first.rank[0]
    assert found.rank == evaluate(search.tables, found.device_of).rank("throughput")
    assert (found.device_of == again.device_of).all()
    assert recombined(search, found, 0.0, 0.05).rank <= found.rank


def test_annealings_are_more_where_units_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As short ones find more; each of them draws for itself, so that it does not matter which of them ends first."""
    counts = list[int]()
    real = PipelineAnnealer.begun

    def counted(self: PipelineAnnealer, runs: Sequence[Run], threads: ThreadPoolExecutor) -> list[Annealing]:
        counts.append(len(runs))
        return real(self, runs, threads)

    monkeypatch.setattr(PipelineAnnealer, "begun", counted)
    for layers in (2, 16):
        search = search_of(encoder_decoder(layers, [1.0] * 6))
        first = first_answer(search)
        assert first is not None
        recombined(search, first, 0.0, 0.3)

    few, many = counts[0], counts[-1]
    assert recombining.FEWEST <= many < few <= recombining.MOST


def test_what_it_takes_counts() -> None:
    """A tenth of a second less is left for other searches."""
    search = search_of(encoder_decoder(4, [1.0] * 6))
    first = first_answer(search)
    assert first is not None
    before = search.account.spent

    recombined(search, first, 0.0, 0.1)

    assert search.account.spent - before >= 0.1 * STEPS_A_SECOND


def test_it_does_not_matter_who_runs_an_annealing() -> None:
    """A thread runs all that it is given; or it is kept from that, and they run where they are waited for."""
    found = list[list[Answer]]()
    for is_kept in (False, True):
        search, gate = search_of(encoder_decoder(4, [1.0] * 6)), threading.Event()
        first = first_answer(search)
        assert first is not None
        runs = Recombining(search)._runs(recombining.STAGES[0], [lambda answer=first: answer], 0.1)
        with ThreadPoolExecutor(1) as threads:
            if is_kept:
                threads.submit(gate.wait, 60)
            annealer = PipelineAnnealer(search)
            begun = annealer.begun(runs, threads)
            if not is_kept:
                threads.shutdown(wait=True)
            found.append(annealer.answers(begun))
            gate.set()

    assert len(found[0]) == len(runs)
    assert [answer.rank for answer in found[0]] == [answer.rank for answer in found[1]]


def test_the_first_annealings_begin_once_and_only_looking_at_them_takes_steps() -> None:
    """What they came to is put together, the next ones begin; none begin where there is no time."""
    search = search_of(encoder_decoder(4, [1.0] * 6))
    first = first_answer(search)
    assert first is not None

    with Recombining(search) as rounds:
        before = search.account.spent
        rounds.begin(first)
        running = list(rounds._annealings)
        rounds.begin(first)
        assert rounds._annealings == running
        assert search.account.spent == before
        best = rounds.put_first_together(first, 0.1)
        assert best.rank < first.rank
        assert search.account.spent > before
        assert rounds._annealings
        assert not set(map(id, rounds._annealings)) & set(map(id, running))
        better = rounds.better(best, 0.0, 0.1)

    assert better.rank <= best.rank
    assert better.rank == evaluate(search.tables, better.device_of).rank("throughput")
    quick = search_of(attrs.evolve(search.problem, time_budget=LOADING / 2))
    with Recombining(quick) as rounds:
        rounds.begin(first)
        assert not rounds._annealings
        assert rounds.put_first_together(first, 0.1) is first
    idle = Recombining(search, is_idle=True)
    idle.begin(first)
    assert not idle._annealings
    assert idle.put_first_together(first, 0.1) is first


def runs_that_begin(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The annealings that begin from now on."""
    found = list[Run]()
    real = PipelineAnnealer.begun

    def recorded(self: PipelineAnnealer, runs: Sequence[Run], threads: ThreadPoolExecutor) -> list[Annealing]:
        found.extend(runs)
        return real(self, runs, threads)

    monkeypatch.setattr(PipelineAnnealer, "begun", recorded)
    return found


def test_they_start_at_other_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those are found beside what else is done; where there are none, at the best answer."""
    search = search_of(encoder_decoder(4, [1.0, 1.25, 1.5, 1.75, 2.0, 2.5]))
    first = first_answer(search)
    assert first is not None
    others = search.others(prefixes([range(search.units.size)]), 2 * first.rank[0], 3)
    assert len(others) == 3
    with monkeypatch.context() as limited:
        limited.setattr(searching, "OTHERS_STEPS", 1.0)
        assert not search.others(prefixes([range(search.units.size)]), 2 * first.rank[0], 3)
    runs = runs_that_begin(monkeypatch)
    for told in (others, []):
        runs.clear()
        with Recombining(search) as rounds:
            rounds.begin(first, lambda given=told: given)
            starts = [run.start() for run in runs[: 1 + OTHERS] if run.start is not None]
        expected = [*others, others[0]] if told else [first] * OTHERS
        assert [answer.rank for answer in starts] == [answer.rank for answer in [first, *expected]]


@pytest.mark.parametrize("seed", range(RANDOM_GRAPHS))
def test_other_answers_are_pipelines_that_use_or_end_with_other_devices(seed: int) -> None:
    """Random graphs beside brute force: within the budgets, under the threshold, the best one first."""
    problem = random_problem(seed, objective="throughput")
    every = every_placement(problem)
    search = search_of(problem)
    words = prefixes([range(search.units.size)])
    best = search.run(words, np.inf).pipeline
    if best is None:
        assert not search.others(words, np.inf, 3)
        return
    below = 2 * best.value or np.inf

    found = search.others(words, below, 4)

    assert 1 <= len(found) <= 4
    assert pytest.approx(best.value) == found[0].pipeline.value
    assert len({answer.pipeline.runs for answer in found}) == len(found)
    for answer in found:
        row = every.row(problem, named(problem, answer))
        assert every.legal[row]
        assert every.pipeline[row]
        assert answer.pipeline.value <= below
        assert answer.rank[0] >= answer.pipeline.value * (1 - 1e-9)


def test_annealings_that_nobody_needs_any_more_do_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs ends by itself; nobody waits for it."""
    search = search_of(encoder_decoder(4, [1.0] * 6))
    first = first_answer(search)
    assert first is not None
    is_running, is_over, begun = threading.Event(), threading.Event(), list[object]()

    def slow(_self: PipelineAnnealer, *run: object) -> list[Ints]:
        begun.append(run)
        is_running.set()
        assert is_over.wait(60)
        return []

    monkeypatch.setattr(PipelineAnnealer, "_best_homes", slow)
    with Recombining(search) as rounds:
        rounds.begin(first)
        assert is_running.wait(60)
    is_over.set()
    rounds._threads.shutdown(wait=True)

    assert len(begun) == 1


def test_no_more_begin_where_putting_together_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is little time; else all stages are gone through."""
    stages = list[object]()
    real = Recombining._begin_next

    def recorded(self: Recombining, own: recombining._Round, length: float) -> None:
        stages.append(own)
        real(self, own, length)

    monkeypatch.setattr(Recombining, "_begin_next", recorded)
    search = search_of(encoder_decoder(4, [1.0] * 6))
    first = first_answer(search)
    assert first is not None
    counts = list[int]()
    for long, seconds in ((np.inf, 0.01), (0.0, 0.01), (0.0, recombining.LITTLE)):
        monkeypatch.setattr(recombining, "LONG", long)
        stages.clear()
        recombined(search, first, 0.0, seconds)
        counts.append(len([own for own in stages if own is stages[0]]))

    assert counts == [len(recombining.STAGES), 2, len(recombining.STAGES)]


def test_they_begin_where_refining_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where a proof is quick: what is proven needs no annealing."""
    begun = list[Answer]()
    real = Recombining.begin

    def recorded(self: Recombining, start: Answer, others: Callable[[], list[Answer]] = list) -> None:
        begun.append(start)
        real(self, start, others)

    monkeypatch.setattr(Recombining, "begin", recorded)
    assert solve_placement(encoder_decoder(4, [1.0] * 4)).is_optimal
    assert not begun

    assert not solve_placement(encoder_decoder(10, [1.0] * 4 + [2.0] * 4, 0.1)).is_optimal
    assert begun


def test_it_ends_where_the_bound_is_met() -> None:
    """Nothing is annealed then."""
    search = search_of(encoder_decoder(1, [1.0, 1.0]))
    first = first_answer(search)
    assert first is not None

    assert recombined(search, first, first.rank[0], 1.0) is first


def test_the_default_uses_it_where_a_gap_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and what it finds is the answer, or better than that; not where the proof is easy, nor in no time."""
    answers = list[Answer]()
    real = Recombining.better

    def recorded(self: Recombining, best: Answer, bound: float, seconds: float) -> Answer:
        answers.append(real(self, best, bound, seconds))
        return answers[-1]

    monkeypatch.setattr(Recombining, "better", recorded)
    problem = encoder_decoder(10, [1.0] * 4 + [2.0] * 4, 0.1)

    solution = solve_placement(problem)

    assert not solution.is_optimal
    assert len(answers) == 1
    assert solution.objective_value <= answers[0].rank[0] * (1 + 1e-9)
    solve_placement(attrs.evolve(problem, time_budget=0.1))
    assert solve_placement(encoder_decoder(2, [1.0] * 4)).is_optimal
    assert len(answers) == 1


def test_much_time_that_no_proof_needs_goes_into_other_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what is left, once; not in a second. A part of all goes into promising ideals and short draws before."""
    asked = list[float]()

    def recorded(self: Recombining, best: Answer, _bound: float, seconds: float) -> Answer:
        asked.append(seconds)
        self._search.account.spent += seconds * STEPS_A_SECOND
        return best

    monkeypatch.setattr(Recombining, "better", recorded)
    monkeypatch.setattr(Recombining, "put_first_together", lambda _self, best, _seconds: best)
    narrowed = list[float]()
    monkeypatch.setattr(certifying._Gap, "narrow", lambda _gap, steps, **_near: narrowed.append(steps))
    monkeypatch.setattr(certifying._Gap, "refine", lambda *_args, **_options: None)
    monkeypatch.setattr(certifying, "_decided", lambda _search, proven, _goal, _budget, best: (best, proven))
    monkeypatch.setattr(certifying, "_close", lambda *_args: None)
    problem = encoder_decoder(8, [1.0] * 4 + [2.0] * 4, 0.1)

    solve_placement(attrs.evolve(problem, time_budget=1.0))
    assert len(asked) == 1
    assert narrowed == [certifying.NARROWING]
    solve_placement(attrs.evolve(problem, time_budget=40.0))

    assert asked[:2] == [certifying.RECOMBINING / 2] * 2
    assert 19 < asked[2] < 20.1
    assert 1.9 * STEPS_A_SECOND < narrowed[1] < 2.1 * STEPS_A_SECOND
    assert asked[3:] == asked[:1] * 2  # in the end as in the usual second, and in half of it
    assert narrowed[2:] == [narrowed[0], narrowed[0] / 2]
