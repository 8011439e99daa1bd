"""What a device had better make itself is found near what it needs, as it would be found in the whole graph."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from fuzz import examples
from torch import Tensor, nn
from torch.fx import Node

from fxpasses import Device, Link, Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures, is_compute
from fxpasses.partitioners.placing.replication import replica_prices
from fxpasses.partitioners.placing.replication.making_or_sending import NEVER
from fxpasses.partitioners.placing.replication.replica_prices import Prices
from fxpasses.partitioners.placing.replication.replicas import why_not_replicable


class Drawn(nn.Module):
    """Each step makes a value of two earlier ones, with a parameter or without, of some rows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.layer = nn.Linear(16, 16)
        self.steps = [(draw.random() < 0.3, draw.randint(1, 4), draw.randint(1, 4)) for _ in range(24)]

    def forward(self, x: Tensor) -> Tensor:
        values = [x.relu(), torch.arange(16) * 1.0, torch.arange(64)[:, None] * 0.5]
        for has_parameter, back, further in self.steps:
            one, other = values[-min(back, len(values))], values[-min(further, len(values))]
            values.append(self.layer(one + other + x) if has_parameter else one * other)
        return sum(value.mean() for value in values[-4:])


def prices_of(seed: int) -> tuple[Prices, Topology]:
    """Operators anywhere on devices that are slow or quick, beside links that are."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    graph = torch.export.export(Drawn(seed), (torch.randn(64, 16),)).module(check_guards=False)
    figures = GraphFigures.of(graph)
    devices = [Device(name, flops=1e10, bandwidth=draw.choice([1e8, 1e9, 1e10]), overhead=1e-6) for name in "ab"]
    topology = Topology.of(devices, [Link("a", "b", draw.choice([1e8, 1e9, 1e10]), 2e-6)])
    home = {node: draw.choice("ab") for node in figures.nodes}
    return Prices(figures, topology, home, draw.choice(["cheaper", "always"]), {}), topology


def cone_without_limit(prices: Prices, needed: Iterable[Node], device: Device, held: Any) -> dict[Node, int]:
    """All that leads to the needed values, whatever it takes to make."""
    largest = max(map(prices.figures.crossing, needed), default=0)
    making: dict[Node, int] = {}
    waiting = list(needed)
    while waiting:
        node = waiting.pop()
        if node not in making:
            price = prices.making(node, device) if is_compute(node) else prices._leaf(node, device, held, largest)
            making[node] = price
            waiting += node.all_input_nodes if 0 < price < NEVER else []
    return making


@pytest.mark.parametrize("seed", range(examples(30)))
def test_what_is_made_is_that_of_the_minimum_cut_of_all_that_leads_there(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices, topology = prices_of(seed)
    made = [prices.made_on(device) for device in topology.devices]

    monkeypatch.setattr(Prices, "_cone", cone_without_limit)

    assert [prices.made_on(device) for device in topology.devices] == made


def test_no_more_is_looked_at_than_sending_what_is_needed_would_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain of a thousand operators each takes a quarter of what it takes to send the last value."""
    looked_at: list[Mapping[Node, int]] = []

    def kept(making: Mapping[Node, int], *_others: object) -> tuple[list[Node], list[Node]]:
        looked_at.append(making)
        return [], []

    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(1000):
                x = x.relu()
            return x

    graph = torch.export.export(Chain(), (torch.randn(4),)).module(check_guards=False)
    figures = GraphFigures.of(graph)
    topology = Topology.of([Device(name, overhead=1e-6) for name in "ab"], [Link("a", "b", 1e12, 4.5e-6)])
    home = dict.fromkeys(figures.nodes[:-1], "a") | {figures.nodes[-1]: "b"}
    monkeypatch.setattr(replica_prices, "cheapest", kept)
    assert not any(why_not_replicable(node, figures.effects) for node in figures.nodes)

    Prices(figures, topology, home, "cheaper", {}).made_on(topology["b"])

    (making,) = looked_at
    assert 4 == sum(price < NEVER for price in making.values())
