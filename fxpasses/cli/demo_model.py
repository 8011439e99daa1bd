"""The model that ``fxpasses lower`` takes when it is given none: a small Llama decoder with random weights."""

from __future__ import annotations

from typing import Any

import torch

from fxpasses.errors import InputError

__all__ = ["demo_llama"]


def demo_llama(layers: int = 8) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Build a Llama-architecture decoder of about 30 MiB from a transformers config; nothing is downloaded.

    Returns:
        The model in eval mode, no positional inputs, and ``input_ids`` of shape ``(2, 32)``.

    Raises:
        InputError: transformers is not installed.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise InputError(
            "The demo model needs transformers; install it with pip install 'fxpasses[demo]', or name a MODEL."
        ) from None
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=2048,
        use_cache=False,
        tie_word_embeddings=False,
    )
    model: torch.nn.Module = LlamaForCausalLM(config)
    return model.eval(), (), {"input_ids": torch.randint(0, config.vocab_size, (2, 32))}
