"""Tiny models for the tests of pipeline stages; no weights are downloaded."""

import torch
from torch import nn

IDS = torch.arange(16).reshape(2, 8)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "use_cache": False,
}


def built(kind, config):
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, kind)(getattr(transformers, config[0])(**config[1])).eval()


def llama(*, tied=False):
    model = built("LlamaForCausalLM", ("LlamaConfig", {**SIZES, "tie_word_embeddings": tied}))
    return model, (), {"input_ids": IDS}


def tied_llama():
    return llama(tied=True)


def mistral():
    model = built("MistralForCausalLM", ("MistralConfig", SIZES))
    return model, (IDS,), {"attention_mask": torch.ones_like(IDS)}


def gemma2():
    return built("Gemma2ForCausalLM", ("Gemma2Config", {**SIZES, "head_dim": 8})), (IDS,), {}


def mixtral():
    sizes = {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}
    return built("MixtralForCausalLM", ("MixtralConfig", sizes)), (IDS,), {}


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 64, "n_positions": 32, "use_cache": False}
    return built("GPT2LMHeadModel", ("GPT2Config", sizes)), (IDS,), {"attention_mask": torch.ones_like(IDS)}


def bert():
    sizes = {name: SIZES[name] for name in list(SIZES)[:4]}
    kwargs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    return built("BertModel", ("BertConfig", {**sizes, "vocab_size": 64})), (), kwargs


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 64}
    config = ("T5Config", {**sizes, "use_cache": False, "decoder_start_token_id": 0})
    return built("T5ForConditionalGeneration", config), (), {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]}


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


def layers(pattern):
    return [pattern.format(index) for index in (1, 2, 3)]


MODELS = {  # how to make it, and three modules that a stage can begin at; the one in the middle cuts it in two
    "llama": (llama, layers("model.layers.{}")),
    "tied_llama": (tied_llama, layers("model.layers.{}")),
    "mistral": (mistral, layers("model.layers.{}")),
    "gemma2": (gemma2, layers("model.layers.{}")),
    "mixtral": (mixtral, layers("model.layers.{}")),
    "gpt2": (gpt2, layers("transformer.h.{}")),
    "bert": (bert, layers("encoder.layer.{}")),
    "t5": (t5, ["encoder.block.1", "decoder", "decoder.block.1"]),
    "residual_net": (residual_net, layers("layers.{}")),
}
