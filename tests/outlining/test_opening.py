"""Autocast and grad-mode bodies become markers in the graph around them."""

import torch
from torch import nn

from fxpasses.outlining.opening import open_regions
from fxpasses.outlining.regions import is_region
from fxpasses.programs import capture


class Regions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.b(self.a(x))
        with torch.no_grad():
            w = self.a(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                v = self.b(w) + 1
        return y, w, v, self.c(x)


def captured():
    model, x = Regions(), torch.randn(2, 4)
    return model, x, capture(model, (x,)).module(check_guards=False)


def test_opened_regions_compute_the_same():
    """Values, dtypes and whether a gradient flows; nested regions too."""
    model, x, graph_module = captured()
    count = open_regions(graph_module)
    graph_module.graph.lint()
    graph_module.recompile()

    assert 3 == count
    assert not any(is_region(node) for node in graph_module.graph.nodes)
    for expected, found in zip(model(x), graph_module(x), strict=True):
        assert torch.equal(expected, found)
        assert (expected.dtype, expected.requires_grad) == (found.dtype, found.requires_grad)
    assert torch.is_grad_enabled()


def test_only_wanted_regions_are_opened():
    """The others stay one node."""
    model, x, graph_module = captured()
    count = open_regions(graph_module, lambda node: node.target.name() == "wrap_with_set_grad_enabled")
    graph_module.recompile()

    assert 1 == count
    assert 2 == sum(map(is_region, graph_module.graph.nodes))
    assert all(map(torch.equal, model(x), graph_module(x)))


def test_a_second_run_finds_nothing():
    """Opening is done once."""
    _, _, graph_module = captured()
    open_regions(graph_module)
    before = str(graph_module.graph)

    assert 0 == open_regions(graph_module)
    assert before == str(graph_module.graph)


def test_behind_a_region_the_mode_is_the_caller_s():
    """Whoever runs the graph under ``no_grad`` is still under it afterwards."""
    _, x, graph_module = captured()
    open_regions(graph_module)
    graph_module.recompile()
    with torch.no_grad():
        graph_module(x)

        assert not torch.is_grad_enabled()


def test_nodes_keep_the_module_they_came_from():
    """A split point inside the region finds its module."""
    _, _, graph_module = captured()
    open_regions(graph_module)
    paths = [
        list(node.meta["nn_module_stack"].values())[-1][0] for node in graph_module.graph.nodes if "linear" in node.name
    ]

    assert ["a", "b", "a", "b", "c"] == paths
