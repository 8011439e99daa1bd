"""The models that many benchmarks run: small Llamas, whose weights are as small as the case allows, and a chain."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["chain_program", "narrow_llama", "wide_llama"]


def narrow_llama(layers: int) -> nn.Module:
    """A Llama of hidden size 64, for cases where only the number of nodes counts."""
    return _llama(layers, width=64, inner=128, heads=4, vocabulary=256)


def wide_llama(layers: int, width: int = 256) -> nn.Module:
    """A Llama of hidden size 256, for cases in which the model runs."""
    return _llama(layers, width=width, inner=width * 11 // 4, heads=8, vocabulary=1000)


def _llama(layers: int, *, width: int, inner: int, heads: int, vocabulary: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=vocabulary,
        use_cache=False,
    )
    model: nn.Module = LlamaForCausalLM(config)
    return model.eval()


def chain_program(length: int) -> torch.export.ExportedProgram:
    """An exported chain of ``length`` negations, written by hand: capturing a long one takes minutes."""
    program = torch.export.export(_Negation(), (torch.randn(3),))
    graph = program.graph_module.graph
    (first,) = graph.find_nodes(op="call_function", target=torch.ops.aten.neg.default)
    last = first
    with graph.inserting_before(graph.output_node()):
        for _ in range(length - 1):
            last = graph.call_function(torch.ops.aten.neg.default, (last,))
            last.meta.update(first.meta)
    graph.output_node().args = ((last,),)
    program.graph_module.recompile()
    program.graph_signature.output_specs[0].arg.name = last.name
    return program


class _Negation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten.neg.default(x)
        return result
