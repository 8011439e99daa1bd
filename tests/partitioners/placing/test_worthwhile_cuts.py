"""Which regions are opened before a model is placed."""

import pytest
import torch
from torch import nn

from fxpasses.outlining.regions import is_region
from fxpasses.partitioners.placing.worthwhile_cuts import is_worth_cutting
from fxpasses.programs import capture


class Region(nn.Module):
    """Does one thing under autocast."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("frequencies", torch.ones(4, 1))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inside(self, x)


def _nested(model, x):
    with torch.autocast("cpu", enabled=False):
        return model.b(model.a(x.float())).relu()


CASES = {
    "two layers": (lambda model, x: model.b(model.a(x)), True),
    "a layer and a norm": (lambda model, x: model.norm(model.a(x)), True),
    "two products": (lambda model, x: (x @ x) @ x, True),
    "deep inside": (_nested, True),
    "one layer": (lambda model, x: model.a(x).relu() + 1, False),
    "a norm": (lambda model, x: model.norm(x.float()), False),
    "a rotary table": (lambda model, x: torch.cat([(model.frequencies @ x[:1]).cos()] * 2), False),
}


@pytest.mark.parametrize("name", CASES)
def test_regions_with_two_heavy_operators_are_worth_a_cut(name):
    """Products and what reads a parameter are heavy, however deep."""
    inside, expected = CASES[name]
    graph = capture(Region(inside), (torch.randn(4, 4),)).module(check_guards=False).graph
    regions = [node for node in graph.nodes if is_region(node)]

    assert [expected] == [is_worth_cutting(node) for node in regions]
