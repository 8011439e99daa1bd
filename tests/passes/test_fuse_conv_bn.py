"""FuseConvBN: batch norms in evaluation mode disappear into the convolution before them."""

from __future__ import annotations

import pytest
import torch
from fuzz import FUZZ
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpasses.pass_manager import PassManager
from fxpasses.passes import EliminateDeadCode, FuseConvBN
from fxpasses.passes.fuse_conv_bn import fused_weights
from fxpasses.testing import assert_pass

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def trained(norm):
    """A norm whose statistics are not the ones it starts with."""
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        if norm.affine:
            norm.weight.normal_()
            norm.bias.normal_()
    return norm


class Net(torch.nn.Module):
    """Two convolutions, each with a norm; the first has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, bias=False)
        self.norm = trained(torch.nn.BatchNorm2d(4))
        self.up = torch.nn.ConvTranspose2d(4, 2, 2)
        self.up_norm = trained(torch.nn.BatchNorm2d(2))

    def forward(self, x):
        return self.up_norm(self.up(self.norm(self.conv(x)).relu()))


X = torch.randn(2, 3, 6, 6)


def targets(subject):
    return [str(node.target) for node in subject.graph.nodes if node.op == "call_function"]


def export(model, x=X):
    return torch.export.export(model.eval(), (x,))


def test_norms_disappear_before_decomposition(golden):
    assert_pass(FuseConvBN(), Net().eval(), (X,), golden=golden, gradients=True, **CLOSE)


def test_norms_disappear_after_decomposition(golden):
    assert_pass(FuseConvBN(), export(Net()).run_decompositions(), (X,), golden=golden, gradients=True, **CLOSE)


def test_norms_disappear_from_a_module_with_attributes(golden):
    assert_pass(FuseConvBN(), export(Net()).module(), (X,), golden=golden, gradients=True, metadata=False, **CLOSE)


def test_complaint_07_four_middle_inputs_go_and_two_come_and_the_program_stays_valid():
    """Complaint 7: the signature drifts from the graph when a pass drops placeholders."""
    net = Net().eval()
    program = export(net)
    result = PassManager([FuseConvBN()])(program)
    program.validate()
    kept = [spec.target for spec in program.graph_signature.input_specs]

    assert result.modified
    assert ["conv.weight_fused", "conv.bias_fused", "up.weight_fused", "up.bias_fused"] == kept[:4]
    assert not {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "conv.weight"} & set(kept)
    torch.testing.assert_close(net(X), program.module()(X), **CLOSE)


def test_the_old_weights_of_a_module_go_with_dead_code():
    module = export(Net()).module()
    PassManager([FuseConvBN(), EliminateDeadCode()])(module)

    assert {"conv_weight_fused", "conv_bias_fused", "up_weight_fused", "up_bias_fused"} == set(module.state_dict())


def test_fused_parameters_train_as_the_old_ones_did():
    frozen = Net().eval()
    frozen.conv.weight.requires_grad_(False)
    program = export(frozen)
    FuseConvBN()(program)

    assert not program.state_dict["conv.weight_fused"].requires_grad
    assert program.state_dict["up.weight_fused"].requires_grad


class Used(torch.nn.Module):
    """The convolution has a second user."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class Grouped(torch.nn.Module):
    """A transposed convolution with groups, whose weights are laid out in another way."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.ConvTranspose2d(4, 4, 2, groups=2), torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(torch.cat([x, x[:, :1]], 1)))


class FromInput(torch.nn.Module):
    """The weight is computed."""

    def __init__(self):
        super().__init__()
        self.weight, self.norm = torch.nn.Parameter(torch.randn(3, 3, 1, 1)), torch.nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(torch.nn.functional.conv2d(x, self.weight * x.mean()))


@pytest.mark.parametrize("model", [Used, Grouped, FromInput])
def test_what_cannot_be_fused_is_left_alone(model):
    program = export(model())
    before = targets(program)

    assert not FuseConvBN()(program).modified
    assert before == targets(program)


def test_a_norm_that_trains_is_left_alone():
    program = torch.export.export(Net().train(), (X,))

    assert not FuseConvBN()(program).modified


def test_a_weight_that_two_convolutions_share_stays_for_the_other():
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 3, 1), trained(torch.nn.BatchNorm2d(3))

        def forward(self, x):
            return self.norm(self.conv(self.conv(x)))

    net = Shared().eval()
    program = export(net)
    FuseConvBN()(program)

    assert {"conv.weight", "conv.bias", "conv.weight_fused", "conv.bias_fused"} <= set(program.state_dict)
    torch.testing.assert_close(net(X), program.module()(X), **CLOSE)


@settings(max_examples=6 * FUZZ, deadline=None)
@given(
    dims=st.integers(1, 3), groups=st.sampled_from([1, 2]), bias=st.booleans(), affine=st.booleans(),
    transposed=st.booleans(), decompose=st.booleans(), double=st.booleans(),
)  # fmt: skip
def test_any_convolution_keeps_its_numbers(dims, groups, bias, affine, transposed, decompose, double):
    kinds = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d) if transposed else (
        torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)  # fmt: skip
    norms = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    net = torch.nn.Sequential(
        kinds[dims - 1](4, 6, 2, groups=groups, bias=bias), trained(norms[dims - 1](6, affine=affine))
    ).eval()
    x = torch.randn(2, 4, *[4] * dims)
    net, x = (net.double(), x.double()) if double else (net, x)
    program = export(net, x)
    program = program.run_decompositions() if decompose else program
    result = FuseConvBN()(program)
    program.validate()

    assert result.modified == (not transposed or groups == 1)
    torch.testing.assert_close(net(x), program.module()(x), **CLOSE)


def test_half_precision_weights_are_fused_in_double():
    weight, ones = torch.full((1, 1, 1), 3.0, dtype=torch.half), torch.ones(1, dtype=torch.half)
    fused, bias = fused_weights(weight, None, ones * 0, ones * 8, None, None, eps=1.0)

    assert (torch.half, torch.half) == (fused.dtype, bias.dtype)
    torch.testing.assert_close(torch.ones(1, 1, 1, dtype=torch.half), fused)
