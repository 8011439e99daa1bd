"""Symbolic sizes as numbers: expressions at the bounds of their symbols, and sizes that depend on data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from fxpasses import Device, lower
from fxpasses.partitioners import COST
from fxpasses.partitioners.symbol_bounds import Sizes, note_limits
from fxpasses.partitioners.tensor_sizes import concrete_size
from fxpasses.passes import MeasureCosts, measure_graph


class Reshaping(nn.Module):
    """Sizes that are sums, products and multiples of two symbols."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {
            "sum": torch.cat([x, y]) + 1,
            "double": torch.cat([x, x]) + 1,
            "rows": x.reshape(-1) + 1,
            "product": (x[:, None] * y[None]).flatten(0, 1) + 1,
            "one more": nn.functional.pad(x, (0, 0, 1, 0)) + 1,
        }


def first_sizes(module: nn.Module, args: tuple[Tensor, ...], dims: Any, sizes: Sizes) -> dict[str, int]:
    program = torch.export.export(module, args, dynamic_shapes=dims)
    note_limits(program.graph_module)
    results = zip(program.call_spec.out_spec.context, program.graph.output_node().args[0], strict=True)
    return {name: concrete_size(node.meta["val"].shape[0], sizes=sizes) for name, node in results}


@pytest.mark.parametrize(("most", "counted"), [(None, 4096), (500, 500)])
def test_an_expression_counts_as_its_symbols_do(most: int | None, counted: int) -> None:
    dims = ({0: Dim("B", min=3, max=most)}, {0: Dim("C", min=3, max=most)})
    args = (torch.randn(4, 16), torch.randn(6, 16))

    upper = first_sizes(Reshaping(), args, dims, "upper")
    hint = first_sizes(Reshaping(), args, dims, "hint")

    assert [2 * counted, 2 * counted, 16 * counted, counted**2, counted + 1] == list(upper.values())
    assert [10, 8, 64, 24, 5] == list(hint.values())


def test_a_number_without_bounds_is_planned() -> None:
    """The infinity of the integers calls itself finite."""

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 + (x > 0).sum().item()

    model, x = Counting(), torch.randn(5)

    assert torch.equal(model(x), lower(model, (x,), devices=[Device("only")])(x))


def test_a_symbol_without_bound_counts_as_in_the_example_if_that_is_more() -> None:
    dims = ({0: Dim.AUTO}, {0: Dim.AUTO})

    upper = first_sizes(Reshaping(), (torch.randn(5000, 16), torch.randn(6, 16)), dims, "upper")

    assert [5000 + 4096, 10_000, 80_000, 5000 * 4096, 5001] == list(upper.values())


def test_the_least_of_what_is_taken_away_counts() -> None:
    class Shorter(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            return {"rest": torch.cat([x, x])[y.shape[0] :] + 1}

    dims = ({0: Dim("B", min=8, max=100)}, {0: Dim("C", min=3, max=8)})

    assert {"rest": 197} == first_sizes(Shorter(), (torch.randn(9, 2), torch.randn(4, 2)), dims, "upper")


class Picking(nn.Module):
    """Sizes that depend on data."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        number = x[:, 2].int().max().item()
        torch._check(number > 0)
        torch._check(number < x.shape[0])
        picked = x[x[:, 1] > 0]
        twice = torch.cat([x[(x[:, 0] > 0).nonzero()[:, 0]], picked])
        return {
            "nonzero": (x > 0).nonzero(),
            "index": picked,
            "masked_select": torch.masked_select(x, x[:, :1] > 0),
            "unique": torch.unique(x[:, 1]),
            "checked": x.new_zeros(number, 3),
            "picked of picked": twice[twice[:, 0] > 1],
            "repeated": x.repeat_interleave(x[:, 0].long(), 0),
        }


@pytest.mark.parametrize("most", [None, 100])
def test_what_depends_on_data_counts_as_the_example_inputs_allow(most: int | None) -> None:
    found = first_sizes(Picking(), (torch.rand(8, 16),), ({0: Dim("B", max=most)},), "hint")

    limited = {"nonzero": 128, "index": 8, "masked_select": 128, "unique": 8, "checked": 7, "picked of picked": 16}
    assert {**limited, "repeated": 4096} == found


def test_or_as_the_largest_ones_do() -> None:
    found = first_sizes(Picking(), (torch.rand(8, 16),), ({0: Dim("B", max=100)},), "upper")

    limited = {"nonzero": 1600, "index": 100, "masked_select": 1600, "unique": 100, "checked": 99}
    assert {**limited, "picked of picked": 200, "repeated": 4096} == found


class PickingMany(nn.Module):
    """Elements and rows of what is large."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "nonzero": (x > 0).nonzero(),
            "index": x[x > 0],
            "masked_select": torch.masked_select(x, x[:, :1] > 0),
            "unique": torch.unique(x),
            "consecutive": torch.unique_consecutive(x),
            "rows": torch.unique(x, dim=0),
            "columns": torch.unique(x, dim=-1),
            "consecutive rows": torch.unique_consecutive(x, dim=0),
        }


@pytest.mark.parametrize(
    ("sizes", "most", "counted"), [("hint", None, 5000), ("hint", 9000, 5000), ("upper", 9000, 9000)]
)
def test_what_a_graph_says_counts_also_where_it_is_more_than_what_nothing_limits(
    sizes: Sizes, most: int | None, counted: int
) -> None:
    """It was cut down to 4,096, so that a mask of 5,000 rows took more than twice of what was predicted."""
    found = first_sizes(PickingMany(), (torch.rand(5000, 2),), ({0: Dim("B", min=2, max=most)},), sizes)

    elements = dict.fromkeys(("nonzero", "index", "masked_select", "unique", "consecutive"), 2 * counted)
    assert {**elements, "rows": counted, "columns": counted, "consecutive rows": counted} == found


def test_of_a_number_at_most_one_is_picked() -> None:
    class Picks(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"picked": torch.masked_select(x.sum(), x.sum() > 0) + 1, "found": x.sum().nonzero() + 1}

    model, x = Picks(), torch.ones(4)

    assert {"picked": 1, "found": 1} == first_sizes(model, (x,), None, "hint")
    assert torch.equal(model(x)["picked"], lower(model, (x,), devices=[Device("only")])(x)["picked"])


class PicksRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x[(x[:, 0] > 0).nonzero()[:, 0]]).sum()


@pytest.mark.parametrize("most", [None, 100])
def test_rows_that_are_picked_count_alike_whether_their_number_is_fixed_or_not(most: int | None) -> None:
    args = (torch.randn(8, 16),)
    dims = ({0: Dim("B", max=most)},)

    fixed = lower(PicksRows(), args, devices=[Device("only")])
    dynamic = lower(PicksRows(), args, devices=[Device("only")], dynamic_shapes=dims)

    assert fixed.report.devices[0].peak_bytes == dynamic.report.devices[0].peak_bytes


def test_costs_are_those_of_the_bound_of_an_expression() -> None:
    args = (torch.randn(4, 16), torch.randn(6, 16))
    program = torch.export.export(Reshaping(), args, dynamic_shapes=({0: Dim("B")}, None))

    MeasureCosts("upper")(program.graph_module)
    hints = measure_graph(program.graph_module)

    (cat,) = (node for node in program.graph.nodes if node.name == "cat_1")
    assert (2 * 4096 * 64, 2 * 4 * 64) == (COST.read(cat).output_bytes, hints[cat].output_bytes)
