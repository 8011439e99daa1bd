"""OpenRegions and CloseRegions as passes: what they say, what they leave closed, and a split between them."""

import torch
from torch import nn

from fxpasses import Device, PassManager
from fxpasses.outlining.regions import is_region, switches_regions
from fxpasses.partitioners import place_by_device
from fxpasses.passes import CloseRegions, OpenRegions, split
from fxpasses.programs import capture
from fxpasses.registry import parse_pipeline


class Trunk(nn.Module):
    """Layers under autocast, and a scale that is computed without gradients."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        with torch.no_grad():
            scale = x.abs().amax() + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers:
                x = torch.relu(layer(x))
        return x / scale


def captured():
    torch.manual_seed(0)
    model, x = Trunk(), torch.randn(2, 16)
    return model, x, capture(model, (x,)).module(check_guards=False)


def closed(graph_module):
    return [node.target.name() for node in graph_module.graph.nodes if is_region(node)]


def test_regions_with_work_to_share_out_are_opened():
    """A few operators without parameters stay one."""
    model, x, graph_module = captured()
    result = OpenRegions()(graph_module)

    assert result.modified
    assert ["wrap_with_set_grad_enabled"] == closed(result.graph_module)
    assert torch.equal(model(x), result.graph_module(x))
    assert not OpenRegions()(result.graph_module).modified


def test_every_region_is_opened_where_that_is_asked_for():
    """``every`` takes the small ones, too."""
    model, x, graph_module = captured()
    result = OpenRegions(every=True)(graph_module)

    assert [] == closed(result.graph_module)
    assert torch.equal(model(x), result.graph_module(x))


def test_a_split_model_is_closed_part_by_part():
    """Each part has a body of its own, and the whole computes what the model does."""
    model, x, graph_module = captured()
    OpenRegions()(graph_module)
    half = 3 * sum(parameter.nbytes for parameter in model.parameters()) // 4
    placement = place_by_device(graph_module, [Device(name, half, is_fake=True) for name in ("left", "right")])
    cut = split(graph_module, placement.assignment)
    whole = cut.graph_module
    parts = [whole.get_submodule(name) for name in cut.part_names.values()]
    before = whole(x)
    result = CloseRegions()(whole)

    assert result.modified
    assert 2 == len(parts)
    assert all("wrap_with_autocast" in closed(part) for part in parts)
    assert not any(switches_regions(node) for part in parts for node in part.graph.nodes)
    assert torch.equal(model(x), before)
    assert torch.equal(before, result.graph_module(x))
    assert not CloseRegions()(result.graph_module).modified


def test_they_have_names_in_pipelines():
    """A text names them like other passes."""
    model, x, graph_module = captured()
    manager = parse_pipeline("open-regions{every=true},close-regions")
    result = manager(graph_module)

    assert isinstance(manager, PassManager)
    assert 2 == len(closed(result.graph_module))
    assert torch.equal(model(x), result.graph_module(x))
