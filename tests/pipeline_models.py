"""Tiny models for the tests of pipeline stages; no weights are downloaded."""

import torch
from torch import nn


def llama(*, tied=False, layers=4):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval(), (), {"input_ids": torch.arange(16).reshape(2, 8)}


def tied_llama():
    return llama(tied=True)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=4, n_head=4, vocab_size=64, n_positions=32, use_cache=False)
    ids = torch.arange(16).reshape(2, 8)
    return GPT2LMHeadModel(config).eval(), (ids,), {"attention_mask": torch.ones_like(ids)}


def residual_net():
    from examples.resnet import ResNet

    torch.manual_seed(0)
    return ResNet(blocks=(1, 1, 1, 1), width=4, classes=10).eval(), (torch.randn(2, 3, 32, 32),), {}


class Skips(nn.Module):
    """Values of all kinds that cross several stages, and a dict in and out."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.fourth = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, batch, scale):
        x = self.first(batch["x"])
        keep = batch["x"] > 0
        small = batch["count"].to(torch.int16)
        y = self.second(x) * scale
        z = self.third(y.transpose(0, 1).contiguous().transpose(0, 1))
        last = self.fourth(z).masked_fill(keep, 0.0) + x
        return {"sum": last + small, "count": batch["count"] + 1, "nothing": None, "skip": x}


def skips():
    torch.manual_seed(0)
    big = torch.tensor([2**62 + 1, -(2**63), 3, -1])
    return Skips(), ({"x": torch.randn(3, 4), "count": big},), {"scale": torch.tensor(2.0)}


MODELS = {
    "llama": (llama, "model.layers.{}"),
    "tied_llama": (tied_llama, "model.layers.{}"),
    "gpt2": (gpt2, "transformer.h.{}"),
    "residual_net": (residual_net, "layers.{}"),
}
