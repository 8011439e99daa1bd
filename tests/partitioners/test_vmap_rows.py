"""Operators inside of ``torch.vmap``: they count for all rows, and each region is placed by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering_models import Rows
from torch import Tensor, nn
from torch.export import Dim, export

from fxpasses import Device, PassManager, PlacementError, Training, lower
from fxpasses.partitioners import COST, SECONDS, NodeCost, cost_of, seconds_of
from fxpasses.partitioners.costs.training.backward_traces import trace_backward
from fxpasses.partitioners.symbol_bounds import Sizes
from fxpasses.partitioners.vmap_rows import note_rows, rows_of
from fxpasses.passes import MeasureCosts, ProfileCosts


def costs(model: nn.Module, x: Tensor, dims: Any = None, sizes: Sizes = "hint") -> dict[str, NodeCost]:
    module = export(model, (x,), dynamic_shapes=dims).module(check_guards=False)
    MeasureCosts(sizes)(module)  # type: ignore[arg-type]  # a graph module
    return {node.name: COST.read(node) for node in module.graph.nodes if node.op == "call_function"}  # type: ignore[union-attr, arg-type]


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: row @ self.weight)(x).sin()


def test_an_operator_counts_for_all_rows_and_reads_the_model_once() -> None:
    found = costs(Products(), torch.randn(5, 3, 8))

    assert 5 * 2 * 3 * 8 * 8 == found["matmul"].flops
    assert 5 * 3 * 8 * 4 == found["matmul"].bytes_written == found["matmul"].output_bytes
    assert 8 * 8 * 4 + 5 * 3 * 8 * 4 == found["matmul"].bytes_read
    assert 5 * 3 * 8 == found["sin"].flops


def test_what_a_node_takes_does_not_hang_on_who_has_asked_before() -> None:
    """Seconds of one row were told until somebody had predicted the memory of the graph."""
    module = export(Products(), (torch.randn(500, 30, 8),)).module(check_guards=False)
    (node,) = (node for node in module.graph.nodes if "matmul" in node.name)

    asked_first = seconds_of(node, Device("cpu"))
    note_rows(module)  # type: ignore[arg-type]  # a graph module

    assert seconds_of(node, Device("cpu")) == asked_first
    assert 500 * 2 * 30 * 8 * 8 == cost_of(node).flops


def test_what_brings_values_in_and_out_is_a_view() -> None:
    found = costs(Products(), torch.randn(5, 3, 8))

    assert all(NodeCost(output_bytes=5 * 3 * 8 * 4) == found[name] for name in ("_add_batch_dim", "_remove_batch_dim"))


class Shaped(nn.Module):
    """A parameter in the shape of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.weight.expand_as(row).sin() * row)(x)


def test_what_has_the_shape_of_a_row_has_no_rows() -> None:
    found = costs(Shaped(), torch.randn(5, 3, 8))

    assert 3 * 8 * 4 == found["expand_as"].output_bytes == found["sin"].output_bytes
    assert 5 * 3 * 8 * 4 == found["mul"].output_bytes


def test_what_runs_inside_of_a_level_is_not_measured_by_itself() -> None:
    """Alone it would run on one row, in a fraction of its time."""
    cpu, module = Device("cpu"), export(Products(), (torch.randn(5, 3, 8),)).module(check_guards=False)

    result = PassManager([ProfileCosts(cpu, repeats=1)])(module)

    nodes = {node.name: node for node in module.graph.nodes}  # type: ignore[union-attr]
    assert SECONDS.read(nodes["sin"])["cpu"] > 0
    assert SECONDS.get(nodes["matmul"]) is None
    assert "not measured on cpu, counted by its roofline: it runs inside of torch.vmap" in [
        remark.text for remark in result.records[0].remarks
    ]


def test_levels_inside_of_levels_multiply() -> None:
    class Nested(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda rows: torch.vmap(torch.sin)(rows).cos())(x)

    found = costs(Nested(), torch.randn(2, 3, 4))

    assert 2 * 3 * 4 == found["sin"].flops == found["cos"].flops


@pytest.mark.parametrize(("sizes", "rows"), [("hint", 5), ("upper", 64)])
def test_rows_without_a_number_count_as_other_sizes_do(sizes: Sizes, rows: int) -> None:
    found = costs(Products(), torch.randn(5, 3, 8), ({0: Dim("rows", max=64)},), sizes)

    assert rows * 2 * 3 * 8 * 8 == found["matmul"].flops


def test_each_region_is_placed_by_itself() -> None:
    """By a map, and by a search that has to cut between them."""
    model, x = Rows(4, 64), torch.randn(4, 64)
    device_map = {"layers.0": "left", "layers.1": "left", "layers.2": "right", "layers.3": "right"}
    budget = int(0.9 * lower(model, (x,), devices=[Device("one")]).report.devices[0].peak_bytes)

    mapped = lower(model, (x,), devices=[Device("left"), Device("right")], device_map=device_map)
    searched = lower(model, (x,), devices=[Device("left", budget), Device("right", budget)])

    for lowered in (mapped, searched):
        assert torch.equal(model(x), lowered(x))
        assert all(row.parameter_bytes for row in lowered.report.devices)


def test_a_plan_for_training_leaves_no_level_open() -> None:
    """Neither where all runs, nor where something inside of a level does not: torch would draw no number after that."""
    model, x = Rows(), torch.randn(4, 32)
    lowered = lower(model, (x,), devices=[Device("only")], training=Training(optimizer_slots=0))
    lowered(x).sum().backward()

    def fails(row: Tensor) -> Tensor:
        raise RuntimeError("no kernel")

    module = export(model, (x,)).module()
    next(node for node in module.graph.nodes if node.name == "sin").target = fails  # type: ignore[union-attr]
    with pytest.raises(PlacementError, match="an operator cannot run without data: no kernel"):
        trace_backward(module)  # type: ignore[arg-type]

    assert 0 == torch._C._functorch.get_dynamic_layer_stack_depth()


def test_rows_are_known_where_what_opens_the_level_is_in_another_graph() -> None:
    """A graph that was cut begins inside of a level, and closes it."""
    module = export(Products(), (torch.randn(5, 3, 8),)).module(check_guards=False)
    for node in reversed(list(module.graph.nodes)):  # type: ignore[union-attr, arg-type]  # a graph module
        if "increment_nesting" in node.name:
            module.graph.erase_node(node)  # type: ignore[union-attr, operator]

    note_rows(module)  # type: ignore[arg-type]

    assert {"_add_batch_dim": 5, "matmul": 5} == {
        node.name: rows_of(node)
        for node in module.graph.nodes
        if rows_of(node) > 1  # type: ignore[union-attr]
    }
