"""Whole exported models through a proposal, fusing, and a run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import GraphModule, Node

from fxpasses.partitioners import CapabilityBasedPartitioner, create_op_support, partition_for_backends


class Residual(nn.Module):
    """Convolutions and norms with a skip edge around each pair."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1) for _ in range(4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4) for _ in range(4)])

    def forward(self, x):
        for first in (0, 2):
            inner = self.norms[first](self.convs[first](x)).relu()
            x = (self.norms[first + 1](self.convs[first + 1](inner)) + x).relu_()
        return x.mean((2, 3))


class Branches(nn.Module):
    """A conditional between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x).relu()
        y = torch.cond(y.sum() > 0, lambda a: a.sin() + 1, lambda a: a.cos() - 1, (y,))
        return self.second(y).relu() + y


class Cache(nn.Module):
    """A buffer that each call writes and reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x):
        y = x.sin() + self.kept
        self.kept.add_(x.relu())
        return (y * 2).cos() + self.kept


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    return BertModel(config)


def tokens() -> tuple[torch.Tensor, ...]:
    return (torch.arange(12).reshape(1, 12),)


Model = tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]], tuple[str, ...]]

MODELS: dict[str, Model] = {
    "llama": (llama, tokens, ("softmax", "scaled_dot_product", "rsqrt")),
    "bert": (bert, tokens, ("gelu", "layer_norm")),
    "residual": (Residual, lambda: (torch.randn(2, 4, 8, 8),), ("relu",)),
    "cond": (Branches, lambda: (torch.randn(2, 4),), ("cond", "relu")),
    "cache": (Cache, lambda: (torch.randn(4),), ("cos",)),
}


def refusing(words: tuple[str, ...]) -> Any:
    """Support for all functions whose names hold none of the words."""

    def support(_: Any, node: Node) -> bool:
        return node.op == "call_function" and not any(word in str(node.target) for word in words)

    return create_op_support(support)


@functools.cache
def program_of(name: str) -> torch.export.ExportedProgram:
    pytest.importorskip("transformers") if name in ("llama", "bert") else None
    torch.manual_seed(0)
    make, inputs, _ = MODELS[name]
    return torch.export.export(make().eval(), inputs())


def tensors_of(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, exporting cond
@pytest.mark.parametrize("name", list(MODELS))
def test_partitioned_models_compute_the_same(name: str) -> None:
    """A model is proposed, fused and called three times: outputs equal eager's, also where it writes its state."""
    inputs = MODELS[name][1]()
    module = program_of(name).module()
    expected_module = copy.deepcopy(module)
    assert isinstance(module, GraphModule)
    partitioner = CapabilityBasedPartitioner(module, refusing(MODELS[name][2]), True)

    assignment = partitioner.propose()
    unexplained = [node for node in assignment.outside if node.op.startswith("call") and node not in assignment.reasons]
    fused = partitioner.partition_and_fuse()

    assert unexplained == []
    assert sum(node.op == "call_module" and "fused" in str(node.target) for node in fused.graph.nodes) >= 2
    for _ in range(3):
        expected, found = tensors_of(expected_module(*inputs)), tensors_of(fused(*inputs))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_weights_live_in_the_part_that_uses_them() -> None:
    """The weights of a fused Llama move into the parts, each under one name, and tied ones stay one tensor."""
    module = program_of("llama").module()
    assert isinstance(module, GraphModule)
    before = {id(parameter) for parameter in module.parameters()}

    fused = CapabilityBasedPartitioner(
        module, refusing(("softmax", "scaled_dot_product", "rsqrt"))
    ).partition_and_fuse()

    assert before == {id(parameter) for parameter in fused.parameters()}
    assert any("fused_" in name for name, _ in fused.named_parameters())


def test_two_backends_on_bert() -> None:
    """BERT on two backends and a fallback: every call has an owner, and transfers are counted in bytes."""
    module = program_of("bert").module()
    assert isinstance(module, GraphModule)

    found = partition_for_backends(module, {"npu": refusing(("gelu", "norm")), "gpu": refusing(("softmax",))})
    by_cost = partition_for_backends(
        module, {"npu": refusing(("gelu", "norm")), "gpu": refusing(("softmax",))}, objective="cost"
    )

    assert found.assignment.outside == [node for node in module.graph.nodes if node.op == "get_attr"]
    assert 0 < by_cost.transfer_bytes <= found.transfer_bytes


def test_gradients_of_a_partitioned_model() -> None:
    """A fused residual net has the gradients of its parameters and inputs."""
    program = program_of("residual")

    def gradients(module: nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(1)
        x = torch.randn(2, 4, 8, 8, requires_grad=True)
        parameters = sorted(module.named_parameters(), key=lambda item: item[0].rpartition("fused_")[2][-24:])
        loss = module(x).square().sum()
        found = torch.autograd.grad(loss, [x, *(parameter for _, parameter in parameters)])
        return sorted(found, key=lambda tensor: (tensor.numel(), float(tensor.abs().sum())))

    expected = gradients(program.module())
    module = program.module()
    assert isinstance(module, GraphModule)
    found = gradients(CapabilityBasedPartitioner(module, refusing(("relu",)), True).partition_and_fuse())

    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b)
