"""Budgets are the same for all objectives: what one of them finds will do for the others."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from fxpasses import Device, Topology, place
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.device_times import times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import Runs


def test_a_schedule_may_fit_where_no_balance_of_loads_was_found() -> None:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0)
    inputs = {"input_ids": torch.randint(0, 256, (1, 64)), "use_cache": False}
    planned = place(GPT2LMHeadModel(config).eval(), (), inputs, devices=[Device("all")])
    graph = planned.prepared.graph_module
    figures = GraphFigures.of(graph)
    budget = int(0.65 * figures.bytes_of(range(len(figures.nodes))))
    topology = Topology.of([Device(name, budget, flops=1e11, bandwidth=2e10) for name in "ab"])

    found = place_by_device(graph, topology, objective="throughput")

    runs = Runs(found.assignment, {part: device.name for part, device in found.device_of.items()})
    assert not check_budgets(figures, topology, runs, None).over
    loads = times_of(figures, found.assignment, found.device_of, topology)[1]
    assert (max(loads.values()), "free") == (found.objective_value, found.contiguity)
    assert found.bound <= found.objective_value
