"""Where what is alive beside operators passes budgets, the solvers are asked again with smaller ones."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch
from torch import nn

from fxpasses import Device, Link, place
from fxpasses.devices import Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches import device_search, one_search
from fxpasses.partitioners.placing.searches.asked_again import Again
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution, solve_placement

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def llama() -> tuple[nn.Module, dict[str, Any]]:
    """Three layers; what is alive takes a tenth of what the parameters do."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
        use_cache=False,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).eval(), {"input_ids": torch.randint(0, 300, (2, 16))}


def seconds_of(llama: tuple[nn.Module, dict[str, Any]]) -> float:
    """The shortest time of one sample on a slow and a fast device that hold it together, just so."""
    model, kwargs = llama
    devices = [
        Device("slow", 388_747, flops=1e9, bandwidth=5e8, overhead=1e-6),
        Device("fast", 389_025, flops=4e9, bandwidth=2e9, overhead=2e-6),
    ]
    links = [Link("slow", "fast", 2e8, 5e-6)]
    found = place(
        model, (), kwargs, devices=devices, links=links, objective="latency", contiguity="free", time_budget=0.3
    )
    assert all(row.peak_bytes <= (row.budget_bytes or 0) for row in found.summary.devices)
    assert found.summary.objective_value is not None
    return found.summary.objective_value


def test_a_tight_budget_does_not_leave_the_cut_of_the_graphs_own_order(
    llama: tuple[nn.Module, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule that was over by some bytes was given up for a cut that takes a third longer."""
    answers = []
    with_smaller_budgets = one_search.with_smaller_budgets

    def noted(*args: Any) -> Again:
        again = with_smaller_budgets(*args)

        def asked(*question: Any) -> Any:
            answers.append(again(*question))
            return answers[-1]

        return asked

    monkeypatch.setattr(one_search, "with_smaller_budgets", noted)
    seconds = seconds_of(llama)

    monkeypatch.setattr(one_search, "solved_again", lambda *_args: None)
    assert seconds < 0.85 * seconds_of(llama)
    assert any(answer is not None for answer in answers)


@pytest.mark.parametrize(("room", "starts", "leaps"), [(1.0, 3, 10.0), (10.0, 1, 0.0)])
def test_a_search_divides_its_seconds_among_its_questions(
    llama: tuple[nn.Module, dict[str, Any]], room: float, starts: int, leaps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where budgets are tight it begins anew, and in the end the best placement is changed for a third of them."""
    model, kwargs = llama
    graph = torch.export.export(model, (), kwargs).module(check_guards=False)
    figures = GraphFigures.of(graph)
    devices = [
        Device("slow", int(room * 388_747), flops=1e9, bandwidth=5e8, overhead=1e-6),
        Device("fast", int(room * 389_025), flops=4e9, bandwidth=2e9, overhead=2e-6),
    ]
    topology = Topology.of(devices, [Link("slow", "fast", 2e8, 5e-6)])
    request = Request(topology, "latency", time_budget=30.0)
    asked: list[PlacementProblem] = []
    changed: list[tuple[float, int]] = []

    def none_nearby(
        _figures: GraphFigures, request: Request, _first: object, starts: list[Runs], *_told: object
    ) -> Any:
        changed.append((request.time_budget, len(starts)))
        return []

    for module in (device_search, one_search):
        monkeypatch.setattr(module, "near_placements", none_nearby)

    def at_once(problem: PlacementProblem) -> PlacementSolution:
        asked.append(problem)
        return solve_placement(attrs.evolve(problem, time_budget=0.0, effort=0.0))

    found = device_search.search(figures, request, "free", at_once, fallbacks=False)

    least = max(problem.time_budget for problem in asked) / 2
    long = [problem for problem in asked if problem.time_budget > least]
    assert sum(problem.time_budget for problem in asked) + leaps <= 30.0
    assert (changed[-1] == (leaps, 1)) == bool(leaps)
    assert len({problem.seed for problem in long}) == len(long) == starts
    assert found.value >= found.bound > 0
