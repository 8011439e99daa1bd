"""FoldConstants: what depends on constants alone is computed ahead, if it is small, pure, and nobody writes it."""

from __future__ import annotations

import pytest
import torch
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node
from work import lines_run

from fxpasses.checks import fake_values_agree, lint, metadata_is_complete
from fxpasses.passes import FoldConstants, FuseConvBN
from fxpasses.testing import assert_pass, assert_same_values
from fxpasses.units import MiB


class Rope(torch.nn.Module):
    """A table computed from a buffer, as rotary embeddings do, beside a constant and a factory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.tensor([1.0, 0.5]), persistent=False)
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        angles = torch.arange(3).float().unsqueeze(1) * self.frequencies
        return self.linear(x) * angles.cos() + torch.tensor([1.0, 2.0])


def targets(subject):
    return [str(node.target) for node in subject.graph.nodes if node.op == "call_function"]


def export(model, *args):
    return torch.export.export(model, args)


def module_of(function, *args):
    class Model(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    return export(Model(), *args)


def test_constant_computations_are_folded(golden):
    assert_pass(FoldConstants(), Rope(), (torch.randn(3, 2),), golden=golden, gradients=True)


def test_graph_modules_get_attributes_instead_of_inputs(golden):
    module = export(Rope(), torch.randn(3, 2)).module()
    assert_pass(FoldConstants(), module, (torch.randn(3, 2),), golden=golden, metadata=False)


def test_the_signature_of_a_program_follows():
    program = export(Rope(), torch.randn(3, 2))
    FoldConstants()(program)
    program.validate()

    assert {"folded_cos", "folded_detach_"} <= set(program.constants)
    assert "frequencies" not in program.constants


class Scaled(torch.nn.Module):
    """Adds up buffers, each of them times two."""

    def __init__(self, count):
        super().__init__()
        self.names = [f"buffer_{index}" for index in range(count)]
        for name in self.names:
            self.register_buffer(name, torch.ones(2))

    def forward(self, x):
        for name in self.names:
            x = x + getattr(self, name) * 2
        return x


def test_the_work_grows_in_proportion_to_the_constants(monkeypatch):
    """For a program, whose signature tells of each of them, and for a module."""
    compared = 0

    def equal(self, other):
        nonlocal compared
        compared += 1
        return NotImplemented

    programs = {count: export(Scaled(count), torch.ones(2)) for count in (50, 200)}
    module = programs[200].module()
    lines = {count: lines_run(lambda count=count: FoldConstants()(programs[count])) for count in programs}
    monkeypatch.setattr(Node, "__eq__", equal, raising=False)
    FoldConstants()(module)

    assert lines[200] < 5 * lines[50]
    assert compared < 20 * 200
    assert {f"folded_mul_{number}" for number in range(1, 200)} <= set(programs[200].constants)


def test_modules_may_be_called_like_an_attribute_of_graph_modules():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.graph = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 1), torch.nn.BatchNorm1d(1)).eval()

        def forward(self, x):
            return self.graph(x)

    program = export(Model().eval(), torch.ones(1, 1, 2))
    FuseConvBN()(program)
    program.validate()

    assert {"graph_0_weight_fused", "graph_0_bias_fused"} < set(program.state_dict)


def test_what_is_too_large_stays():
    program = module_of(lambda x: x + torch.ones(1024).sin(), torch.ones(1024))
    result = FoldConstants(max_bytes=4095)(program)
    again = FoldConstants(max_bytes=4096)(program)

    assert (False, True) == (result.modified, again.modified)


def test_a_large_intermediate_is_never_made():
    program = module_of(lambda x: x + torch.ones(MiB).sum(), torch.ones(2))

    assert not FoldConstants(max_bytes=MiB)(program).modified


def test_parameters_that_train_are_left_alone_unless_asked_for():
    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * (self.weight * 2)

    kept, folded = export(Doubled(), torch.ones(2)), export(Doubled(), torch.ones(2))

    assert not FoldConstants()(kept).modified
    assert FoldConstants(parameters=True)(folded).modified
    assert ["aten.mul.Tensor"] == targets(folded)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.rand(2),
        lambda x: x + torch.zeros(2).add_(x).mul_(2),
        lambda x: (x + 1, torch.ones(2)),
        lambda x: x.new_zeros(2) + x,
    ],
    ids=["random", "written later", "returned", "made from an input"],
)
def test_what_may_differ_between_runs_or_is_seen_outside_stays(function):
    program = module_of(function, torch.ones(2))
    before = targets(program)
    result = FoldConstants()(program)

    assert not result.modified
    assert before == targets(program)


def test_a_view_of_a_constant_is_not_copied():
    class Transposed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.randn(2, 3))

        def forward(self, x):
            return x @ self.weight.t()

    assert not FoldConstants()(export(Transposed(), torch.ones(4, 3))).modified


def test_dynamic_shapes_are_safe():
    rows = torch.export.Dim("rows", min=2, max=9)

    class Model(torch.nn.Module):
        def forward(self, x):
            return x + torch.zeros(x.shape[0], 2) + torch.arange(2) * 3

    program = torch.export.export(Model(), (torch.ones(4, 2),), dynamic_shapes=({0: rows},))
    FoldConstants()(program)
    x = torch.randn(7, 2)

    torch.testing.assert_close(Model()(x), program.module()(x))
    assert "aten.arange.default" not in targets(program)
    assert "aten.zeros.default" in targets(program)


def test_a_graph_without_values_has_nothing_to_fold():
    module = torch.fx.symbolic_trace(lambda x: x + torch.ones(2).sin())

    assert not FoldConstants()(module).modified


@settings(max_examples=6 * FUZZ, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["sin", "neg", "relu_", "add_", "view"]), st.integers(0, 5)), max_size=8))
def test_any_mix_of_constants_inputs_writes_and_views_keeps_its_numbers(steps):
    table = torch.linspace(-1, 1, 4)

    def run(x):
        values = [x + 0, torch.arange(4) * 0.5, table * 1]
        for name, index in steps:
            value = values[index % len(values)]
            if name == "add_":
                values.append(value.add_(1))
            elif name == "view":
                values.append(value.view(2, 2).view(4))
            else:
                values.append(getattr(value, name)())
        return sum(values)

    program = module_of(run, torch.ones(4))
    expected = program.module()(torch.full((4,), 0.3))
    FoldConstants()(program)

    assert_same_values(program.module()(torch.full((4,), 0.3)), expected)
    assert not FoldConstants()(program).modified
    lint(program)
    metadata_is_complete(program)
    fake_values_agree(program)
    program.validate()
