"""Running sums along a row of ideals say what products of matrices do, and take no step for a value."""

from __future__ import annotations

import attrs
import networkx as nx
import numpy as np
import pytest
from fuzz import examples
from test_span_runs import spans_of

from fxpasses import fake_devices
from fxpasses.partitioners import PlacementProblem
from fxpasses.partitioners.solvers.contiguous import improving
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, pack, prefixes
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.searching import STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of


@pytest.mark.parametrize("begin", range(0, examples(80), 20))
def test_running_sums_say_what_products_do(begin: int) -> None:
    """For blocks and for some ideals, also where values go back."""
    counts = [0, 0]
    for seed in range(begin, begin + 20):
        draw = np.random.default_rng(seed)
        spans = spans_of(2 * seed, draw)  # prefixes of one order
        along = spans.transfers
        products, size = attrs.evolve(along, stretches=None), spans.family.count
        some = np.sort(draw.choice(size, max(1, size // 2), False))
        for rows, columns in [(slice(0, size), slice(0, size)), (some, some), (some, np.array([size - 1]))]:
            nested = spans.nested(rows, columns)
            for kind in range(len(spans.classes)):
                found, expected = (each.saved(kind, rows, columns)[nested] for each in (along, products))
                np.testing.assert_allclose(found, expected, atol=1e-9 * (1 + np.abs(expected).max(initial=0.0)))
                counts[0] += int((expected != 0).sum())
        counts[1] += along.flows_back

    assert min(counts) > 0


def wide(width: int, rows: int, devices: int = 8) -> PlacementProblem:
    """Layers of which each node needs three of the layer before."""
    draw = np.random.default_rng(0)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(width * rows), seconds=1.0, output_seconds=0.1)
    for node in range(width, width * rows):
        before = (node // width - 1) * width
        graph.add_edges_from((before + need, node) for need in draw.choice(width, 3, replace=False).tolist())
    return PlacementProblem(graph, fake_devices(devices))


def searched(problem: PlacementProblem) -> Search:
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    return Search.of(problem, tables, units, prices_of(units, tables.memory, "throughput"))


def test_values_that_are_open_count_but_for_one_order() -> None:
    """The same pairs of ideals take more steps where more values are open, not where ideals hold those before them."""
    taken = {}
    for width in (40, 80, 160):
        search = searched(wide(width, 1280 // width))
        units, classes = search.units, search.classes
        nested = prefixes([range(units.size)])
        shuffled = CutFamily.of(nested, np.ones(units.size))
        other = pack(np.eye(1, units.size, units.size - 1, dtype=bool))  # one ideal that none of the others holds
        apart = CutFamily.of(np.concatenate([nested[:-1], other]), np.ones(units.size))
        block = slice(0, 600), slice(600, 1200)
        taken[width] = [Spans.of(units, each, classes).transfers.steps(*block) for each in (shuffled, apart)]

    assert [taken[width][0] for width in taken] == [0.0, 0.0, 0.0]
    assert taken[40][1] < taken[80][1] / 1.5 < taken[160][1] / 3


def test_what_lies_around_wide_cuts_is_looked_at_within_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many values are open at a cut fewer ideals are, so the question is answered, and pays for itself."""
    search = searched(wide(400, 5, 32))
    begin = search.run(prefixes([range(search.units.size)]), np.inf).pipeline
    assert begin is not None
    outcomes, run = [], Search.run

    def kept(own: Search, *arguments: object, **options: object) -> object:
        outcomes.append(run(own, *arguments, **options))  # type: ignore[arg-type]  # passed on as they are
        return outcomes[-1]

    monkeypatch.setattr(Search, "run", kept)
    best = improving.improved(search, Answer.of(search, begin))

    assert all(outcome.finished for outcome in outcomes)
    assert outcomes[0].steps < 0.7 * STEPS_A_SECOND
    assert best.rank <= Answer.of(search, begin).rank
