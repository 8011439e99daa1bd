"""Real models, split at every layer, compute what they did: outputs, gradients, state, caches."""

from __future__ import annotations

import pytest
import torch
from shapes import compute_nodes
from torch import nn
from torch.utils import _pytree as pytree

from fxpasses.passes import merge, split, split_module

transformers = pytest.importorskip("transformers")


def llama():
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval(), (torch.arange(8).reshape(1, 8),), {}


def bert():
    config = transformers.BertConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=32
    )
    ids = torch.arange(8).reshape(1, 8)
    return transformers.BertModel(config).eval(), (), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def t5():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=32, use_cache=False, decoder_start_token_id=0
    )
    ids = torch.arange(8).reshape(1, 8)
    return (
        transformers.T5ForConditionalGeneration(config).eval(),
        (),
        {"input_ids": ids, "decoder_input_ids": ids[:, :4]},
    )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu_(self.norm(self.first(x)))))


def residual(training):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), Residual(4), nn.MaxPool2d(2), Residual(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 5)
    )
    return model.train(training), (torch.linspace(-1, 1, 2 * 3 * 100).reshape(2, 3, 10, 10),), {}


MODELS = {
    "llama": llama,
    "bert": bert,
    "t5": t5,
    "residual, eval": lambda: residual(False),
    "residual, train": lambda: residual(True),
}


def captured(name, strict=False):
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    return torch.export.export(model, args, kwargs, strict=strict), args, kwargs


def layer_of(node):
    """The outermost numbered module around a node; "" outside of all, None if nothing is recorded."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    paths = [path.replace("[", ".").replace("]", "").replace("'", "") for path, _ in stack.values()]
    return next((path for path in paths if any(step.isdigit() for step in path.split("."))), "")


def at_every_layer(graph_module):
    """A new partition wherever the layer changes."""
    labels, number, last = {}, 0, None
    for node in compute_nodes(graph_module):
        layer = layer_of(node)
        if layer is not None:
            number += last not in (None, layer)
            last = layer
        labels[node] = number
    return labels


def run(module, args, kwargs):
    """Outputs, gradients by name, buffers by name."""
    torch.manual_seed(1)
    module.zero_grad()
    outputs = pytree.tree_leaves(module(*args, **kwargs))
    tensors = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    torch.autograd.backward([tensor.sum() for tensor in tensors])
    gradients = {
        id(parameter): parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None
    }
    return outputs, gradients, {id(buffer): buffer.clone() for buffer in module.buffers()}


@pytest.mark.parametrize("name", MODELS)
def test_real_models_split_at_every_layer(name):
    """Outputs, gradients and buffers are equal bit for bit, the state is the same objects under the same names."""
    program, args, kwargs = captured(name)
    source = program.module()
    state = {tensor: tensor.detach().clone() for tensor in source.buffers()}
    expected = run(source, args, kwargs)
    labels = at_every_layer(source)
    for cut in (
        lambda: split(source, labels).graph_module,
        lambda: split_module(source, None, labels.__getitem__),
        lambda: merge(split(source, labels)),
    ):
        for tensor, before in state.items():
            tensor.copy_(before)
        done = cut()
        actual = run(done, args, kwargs)

        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    done = split(source, labels)
    assert len(done.parts) >= 4
    assert list(source.state_dict()) == list(done.state_dict())
    assert source.code == merge(done).code
    for part in done.parts.values():
        assert all(node.users for node in part.graph.find_nodes(op="placeholder"))


def test_each_layer_of_a_llama_is_a_program():
    """Parts become exported programs that run in their place."""
    program, args, kwargs = captured("llama")
    source = program.module()
    done = split(source, at_every_layer(source))
    expected = source(*args, **kwargs)
    for partition, attribute in done.part_names.items():
        done.graph_module.add_module(attribute, done.exported_program(partition).module())
    done.graph_module.recompile()

    torch.testing.assert_close(done(*args, **kwargs).logits, expected.logits, rtol=0, atol=0)


class Decoder(nn.Module):
    """Two layers of attention, each with a cache of keys and values in buffers."""

    def __init__(self, width=8, length=16):
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.layers = nn.ModuleList(nn.ModuleDict({n: nn.Linear(width, width) for n in "qkvo"}) for _ in range(2))
        for number in range(2):
            self.register_buffer(f"keys_{number}", torch.zeros(length, width))
            self.register_buffer(f"values_{number}", torch.zeros(length, width), persistent=False)
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, token, position):
        x = self.embed(token)
        for number, layer in enumerate(self.layers):
            keys, values = getattr(self, f"keys_{number}"), getattr(self, f"values_{number}")
            keys.index_copy_(0, position, layer["k"](x))
            values.index_put_((position,), layer["v"](x))
            seen = torch.arange(keys.shape[0]) <= position
            scores = (layer["q"](x) @ keys.t()).masked_fill(~seen, float("-inf"))
            x = x + layer["o"](scores.softmax(-1) @ values)
        return self.head(x)


@pytest.mark.parametrize("policy", ["share", "own", "pass_in"])
def test_complaint_18_three_steps_of_a_decoder_with_a_cache(policy):
    """Complaint 18: the caches, persistent and not, are the same after each of three steps."""
    torch.manual_seed(0)
    model = Decoder().requires_grad_(False)
    step = lambda number: (torch.tensor([number + 3]), torch.tensor([number]))
    program = torch.export.export(model, step(0))
    for parts in (2, 5, 40):
        reference, source = program.module(), torch.export.export(model, step(0)).module()
        for buffer in [*reference.buffers(), *source.buffers()]:
            buffer.zero_()
        nodes = compute_nodes(source)
        done = split(source, {node: place * parts // len(nodes) for place, node in enumerate(nodes)}, constants=policy)
        for number in range(3):
            torch.testing.assert_close(done(*step(number)), reference(*step(number)), rtol=0, atol=0)
            reference_state = dict(reference.named_buffers())
            mine = {done.original_names.get(name, name): value for name, value in done.graph_module.named_buffers()}

            torch.testing.assert_close({name: mine[name] for name in reference_state}, reference_state, rtol=0, atol=0)
        assert list(source.state_dict()) == list(done.state_dict())
