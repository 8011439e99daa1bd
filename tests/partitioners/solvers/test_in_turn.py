"""One sample through parts that run one after the other: the cheapest cuts are found."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, InfeasibleError, PlacementError, lower
from fxpasses.partitioners import PlacementProblem, solve_placement
from fxpasses.partitioners.solvers.latency import solving as latency_solving
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, tables_of
from fxpasses.partitioners.solvers.solving import solve_in_turn


def chain(outputs: list[float]) -> nx.DiGraph:
    graph: nx.DiGraph = nx.path_graph(len(outputs), create_using=nx.DiGraph)
    for node, seconds in enumerate(outputs):
        graph.nodes[node].update(seconds=1.0, kept_bytes=1, output_seconds=seconds)
    return graph


def test_the_cut_is_where_the_least_is_sent() -> None:
    """Not where the halves weigh the same."""
    problem = PlacementProblem(chain([5, 5, 0.25, 5, 5, 5, 5, 5]), [Device("a", 6), Device("b", 6)])

    solution = solve_in_turn(problem)

    homes = [solution.device_of[node] for node in range(8)]
    assert 3 == next(place for place in range(1, 8) if homes[place] != homes[place - 1])


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="The nodes need 8 bytes, and the devices have 6 together"):
        solve_in_turn(PlacementProblem(chain([1] * 8), [Device("a", 3), Device("b", 3)]))
    graph = chain([1, 1, 1])
    for node in graph:
        graph.nodes[node]["kept_bytes"] = 2

    with pytest.raises(PlacementError, match="No cut of a linear order into one run a device keeps every budget"):
        solve_in_turn(PlacementProblem(graph, [Device("a", 3), Device("b", 3)]))


class Tables(nn.Module):
    """Every layer looks at its own view of two values that are made once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        cosine, sine = x.mean(0).cos(), x.mean(0).sin()
        for layer in self.layers:
            x = layer(x) * cosine.unsqueeze(0) + sine.unsqueeze(0)
        return x


def test_a_value_with_many_views_crosses_once() -> None:
    """Two tables and the hidden state are sent, not two views for every layer behind the cut."""
    model, x = Tables(), torch.rand(8, 64)
    size = sum(parameter.nbytes for parameter in model.parameters())

    lowered = lower(model, (x,), devices=[Device("left", size * 2 // 3), Device("right", size * 2 // 3)])

    assert 3 == len(lowered.report.copies)
    assert torch.equal(model(x), lowered(x))


def test_prices_of_long_graphs_that_are_not_cut_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Units] = []
    monkeypatch.setattr(latency_solving, "prices_of", lambda units, *_given: asked.append(units))
    problem = PlacementProblem(chain([0.5] * 2100), [Device("a"), Device("b")], objective="latency")

    tables = tables_of(problem)

    found = latency_solving.in_turn(problem, tables, reduce_problem(problem, tables))

    assert found is None
    assert not asked


@pytest.mark.parametrize(("contiguity", "times"), [("pipeline", 0), ("free", 1)])
def test_latencies_reduce_a_problem_for_pipelines_once(
    monkeypatch: pytest.MonkeyPatch, contiguity: str, times: int
) -> None:
    """The units of a pipeline's latency are what its first pipelines need, too; it was reduced up to three times."""
    reduced: list[str] = []

    def counted(problem: PlacementProblem, tables: CostTables) -> Units:
        reduced.append(problem.contiguity)
        return reduce_problem(problem, tables)

    monkeypatch.setattr(latency_solving, "reduce_problem", counted)
    problem = PlacementProblem(
        chain([0.5] * 8), [Device("a"), Device("b")], objective="latency", contiguity=contiguity, time_budget=0.0
    )

    solve_placement(problem)

    assert ["pipeline"] * times == reduced
