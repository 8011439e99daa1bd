"""What goes together because nothing is lost by it: the counters of batch norms are where these are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fxpasses import fake_devices
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs import graph_figures
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.colocation import kept_together, must_share
from fxpasses.partitioners.tensor_sizes import tensor_bytes

NORM_STATE = {"running_mean", "running_var", "num_batches_tracked"}


class Blocks(nn.Module):
    """Convolutions with norms that count their batches, and a counter of the whole model."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)) for _ in range(count)))
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.layers(x)


def exported(decomposed: bool = False) -> torch.fx.GraphModule:
    program = torch.export.export(Blocks(), (torch.randn(8, 4, 32, 32),))
    return (program.run_decompositions() if decomposed else program).module(check_guards=False)


@pytest.mark.parametrize("contiguity", ["pipeline", "free"])
@pytest.mark.parametrize("decomposed", [False, True])
def test_what_a_norm_counts_is_where_the_norm_is(contiguity: str, decomposed: bool) -> None:
    graph = exported(decomposed)

    placed = place_by_device(graph, fake_devices(3), objective="throughput", contiguity=contiguity, time_budget=0.1)

    assert len(placed.device_of) == 3
    home = placed.assignment.partition_of
    of_norms: dict[str, dict[str, set[str]]] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        norm, _, what = str(node.target).rpartition(".")
        if what in NORM_STATE:
            of_norms.setdefault(norm, {})[what] = {str(home[user]) for user in node.users}
    assert len(of_norms) == 6
    for uses in of_norms.values():
        assert uses.keys() == NORM_STATE
        assert len(set.union(*uses.values())) == 1


def test_what_counts_goes_with_the_next_operator_of_its_module_or_the_last_one() -> None:
    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.seen: Tensor

        def forward(self, x: Tensor) -> Tensor:
            y = x.sin().cos()
            self.seen.add_(1)
            return y

    graph = torch.export.export(nn.Sequential(Ends(), nn.ReLU()), (torch.randn(4),)).module(check_guards=False)
    figures = GraphFigures.of(graph)
    nodes = {node.name: node for node in figures.nodes}

    assert (nodes["add_"], nodes["cos"]) in kept_together(figures, must_share(figures))


def test_what_reads_an_input_or_is_returned_is_no_counter() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(()))
            self.register_buffer("seen", torch.zeros(()))
            self.total: Tensor
            self.seen: Tensor

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.total.add_(x.sum())
            return x.cos(), self.seen.add_(1) * 2

    graph = torch.export.export(Sums(), (torch.randn(4),)).module(check_guards=False)
    figures = GraphFigures.of(graph)
    cos = next(node for node in figures.nodes if node.name == "cos")

    assert not any(cos in group for group in kept_together(figures, must_share(figures)))


def test_a_counter_that_is_pinned_elsewhere_stays_there() -> None:
    graph = exported()
    counter, norm = (next(node for node in graph.graph.nodes if node.name == name) for name in ("add__1", "batch_norm"))

    placed = place_by_device(
        graph, fake_devices(2), contiguity="free", pinned={counter: "device1", norm: "device0"}, time_budget=0.1
    )

    home = placed.assignment.partition_of
    assert [placed.device_of[str(home[node])].name for node in (counter, norm)] == ["device1", "device0"]


def test_a_list_that_all_is_taken_from_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([row.relu() for row in x.unbind()])

    def measured(rows: int) -> int:
        graph = torch.export.export(Rows(), (torch.randn(rows, 4),)).module(check_guards=False)
        figures, sizes = GraphFigures.of(graph), list[int]()
        monkeypatch.setattr(graph_figures, "tensor_bytes", lambda tensor: sizes.append(1) or tensor_bytes(tensor))
        assert list(kept_together(figures, must_share(figures)))
        return len(sizes)

    assert measured(80) < 3 * measured(40)
