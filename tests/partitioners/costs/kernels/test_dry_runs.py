"""What an operator makes, learned by running it on tensors without data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from fxpasses import fake_devices
from fxpasses.effects import analyze_effects
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.costs.kernels.dry_runs import DryRun, dry_run, makes_a_copy
from fxpasses.partitioners.costs.kernels.workspaces import homes_in_memory, workspace_bytes


def exported(model: nn.Module, *args: Tensor) -> GraphModule:
    module = torch.export.export(model, args).module(check_guards=False)
    assert isinstance(module, GraphModule)
    return module


def called(module: GraphModule, name: str) -> Node:
    return next(node for node in module.graph.nodes if node.name == name)


class Attention(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, mask)


def test_an_operator_tells_what_it_makes_inside() -> None:
    """The mask becomes floats, the statistics of the softmax are kept, and each thread has a block of attention."""
    module = exported(Attention(), torch.randn(2, 3, 8, 4), torch.ones(2, 1, 8, 8, dtype=torch.bool))
    node = called(module, "scaled_dot_product_attention")

    block = torch.get_num_threads() * (8 * 8 + 2 * 8 + 8 * 4) * 4
    made, inside = 2 * 3 * 8 * 4 * 4, 2 * 8 * 8 * 4 + 2 * 3 * 8 * 4
    assert DryRun(made=made, inside=inside, scratch=block) == dry_run(node)
    assert inside + block == workspace_bytes(node)
    assert inside == workspace_bytes(node, with_scratch=False)


def test_operators_that_torch_does_not_take_apart_are_not_asked() -> None:
    """Elementwise operators make their result, and nothing else."""
    module = exported(nn.ReLU(), torch.randn(3))

    assert dry_run(called(module, "relu")) is None
    assert 0 == workspace_bytes(called(module, "relu"))


def test_whether_a_view_is_one_depends_on_its_operand() -> None:
    """A transposed tensor cannot be flattened in place."""

    class Flat(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.reshape(6), x.t().reshape(6)

    module = exported(Flat(), torch.randn(2, 3))

    assert [False, True] == [makes_a_copy(called(module, name)) for name in ("reshape", "reshape_1")]


def test_methods_and_functions_of_torch_are_asked_too() -> None:
    """Graphs of symbolic_trace say ``x.float()`` and ``torch.flatten(x)``."""

    def function(x: Tensor) -> Tensor:
        return torch.flatten(x.float().t().contiguous())

    module = torch.fx.symbolic_trace(function)
    from fxpasses.values import propagate_values

    propagate_values(module, (torch.randn(2, 3),))

    assert [False, True, False] == [makes_a_copy(called(module, n)) for n in ("float_1", "contiguous", "flatten")]


def test_a_copy_and_its_views_live_in_a_storage_of_their_own() -> None:
    """So do operands that effects cannot tell apart from the result of an einsum."""

    class Mixed(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            copied = x.t().reshape(6).view(3, 2)
            return torch.einsum("ij,jk->ik", copied, y)

    module = exported(Mixed(), torch.randn(2, 3), torch.randn(2, 3))
    effects = analyze_effects(module)
    homes = homes_in_memory(module, effects)
    x, y, t, reshape, view, einsum = (homes[called(module, n)] for n in ("x", "y", "t", "reshape", "view", "einsum"))

    assert x == t
    assert reshape == view
    assert 4 == len({x, y, reshape, einsum})


def test_operators_of_torchscript_on_numbers_make_no_tensors() -> None:
    """The dispatcher does not know them, and asking it is an error."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.randn(3)
    number = graph.call_function(torch.ops.aten.add.int, (2, 3))
    number.meta["val"] = 5
    shifted = graph.call_function(torch.ops.aten.add.Tensor, (x, number))
    shifted.meta["val"] = torch.randn(3)
    graph.output(shifted)
    module = GraphModule(nn.Module(), graph)

    placed = place_by_device(module, fake_devices(2))

    assert dry_run(number) is None
    assert {number, shifted} == set(placed.assignment.partition_of)
