"""Budgets are the same for all objectives: what one of them finds will do for the others."""

from __future__ import annotations

import attrs
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from fxpasses import Device, Topology, place
from fxpasses.partitioners import PlacementProblem, PlacementSolution, solve_placement
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.device_times import makespan_of, times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.memory import predict_memory
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches import known_cuts
from fxpasses.partitioners.placing.searches.device_search import search


@pytest.fixture(scope="module")
def figures() -> GraphFigures:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0)
    inputs = {"input_ids": torch.randint(0, 256, (1, 64)), "use_cache": False}
    planned = place(GPT2LMHeadModel(config).eval(), (), inputs, devices=[Device("all")])
    return GraphFigures.of(planned.prepared.graph_module)


def tight(figures: GraphFigures) -> Topology:
    budget = int(0.65 * figures.bytes_of(range(len(figures.nodes))))
    return Topology.of([Device(name, budget, flops=1e11, bandwidth=2e10) for name in "ab"])


def test_a_schedule_may_fit_where_no_balance_of_loads_was_found(figures: GraphFigures) -> None:
    topology = tight(figures)

    found = place_by_device(figures.graph_module, topology, objective="throughput")

    runs = Runs(found.assignment, {part: device.name for part, device in found.device_of.items()})
    assert not check_budgets(figures, topology, runs, None).over
    loads = times_of(figures, found.assignment, found.device_of, topology)[1]
    assert (max(loads.values()), "free") == (found.objective_value, found.contiguity)
    assert found.bound <= found.objective_value


def as_if_memory_were_large(problem: PlacementProblem) -> PlacementSolution:
    """What it finds passes the budgets, and its bound holds."""
    roomy = [attrs.evolve(device, available_mem_bytes=None) for device in problem.devices]
    return solve_placement(attrs.evolve(problem, devices=roomy))


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory", "devices"])
def test_what_is_found_for_the_sake_of_budgets_is_measured_by_what_was_asked_for(
    figures: GraphFigures, monkeypatch: pytest.MonkeyPatch, objective: Objective
) -> None:
    """The bound is one on that figure, too: for memory it was at most the number of devices."""
    topology = tight(figures)
    monkeypatch.setattr(known_cuts, "along_own_order", lambda *_args: None)

    found = search(figures, Request(topology, objective), "free", solve=as_if_memory_were_large)

    placed = (found.runs.assignment, {part: topology[name] for part, name in found.runs.device_of.items()})
    assert {"a", "b"} == set(found.runs.device_of.values())
    measures = {
        "latency": makespan_of(figures, *placed, topology),
        "throughput": max(times_of(figures, *placed, topology)[1].values()),
        "memory": max(each.peak for each in predict_memory(figures.graph_module, *placed).values()),
        "devices": 2,
    }
    least = {"latency": 1e-5, "throughput": 1e-5, "memory": 1e5, "devices": 1}
    assert measures[objective] == found.value
    assert least[objective] <= found.bound <= found.value
