"""The models that many benchmarks run: small Llamas, whose weights are as small as the case allows."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["narrow_llama", "wide_llama"]


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
