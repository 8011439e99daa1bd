"""BERT from a transformers config with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["model"]


def model() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """An encoder with an attention mask as keyword input: ``fxpasses lower examples/bert.py:model``."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, vocab_size=1000
    )
    inputs = {
        "input_ids": torch.randint(0, config.vocab_size, (2, 16)),
        "attention_mask": torch.ones(2, 16, dtype=torch.long),
    }
    return BertForSequenceClassification(config).eval(), (), inputs
