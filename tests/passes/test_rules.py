"""Ready rules on exported Llama, BERT and a residual net: counts, outputs, metadata, and a second run."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import export

from fxpasses.passes import ApplyRules, Rule, RuleSet, check_rule
from fxpasses.passes.rules import (
    attention_rule,
    conv_bn_rule,
    layer_norm_rules,
    linear_gelu_rule,
    rms_norm_rule,
    silu_mul_rule,
    transformer_rules,
)

aten = torch.ops.aten
LAYERS = 2


@functools.cache
def llama(dtype=torch.float32):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
        use_cache=False,
    )
    torch.manual_seed(0)
    return _exported(transformers.LlamaForCausalLM(config).eval().to(dtype))


@functools.cache
def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return _exported(transformers.BertModel(config).eval())


def _exported(model):
    ids = torch.arange(16).reshape(2, 8) % 64
    with torch.no_grad():
        return export(model, (ids,), strict=False), model(ids)[0], ids


def rewritten(program, **options):
    """Apply the rules, and check what must hold whatever they did."""
    report = transformer_rules().apply(program, **options)
    program.validate()
    unvalued = [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and "val" not in node.meta and "_assert_tensor" not in str(node.target)
    ]

    assert [] == unvalued
    assert not transformer_rules().apply(program).modified
    return report


def fresh(program, form):
    return program.run_decompositions() if form == "decomposed" else program.run_decompositions({})


# ------------------------------------------------------------------------------------------------ real models
@pytest.mark.parametrize("form", ["training", "decomposed"])
def test_llama(form):
    """Attention, RMSNorm and the gated activation of every layer, in the training dialect and in core ATen."""
    program, expected, ids = llama()
    program = fresh(program, form)
    report = rewritten(program)
    made = [n for n in program.graph.nodes if n.target is torch.ops.fxpasses.silu_mul.default]

    assert {"attention": LAYERS, "rms_norm": 2 * LAYERS + 1, "silu_mul": LAYERS} == report.counts
    assert [] == report.refusals
    assert torch.allclose(expected, program.module()(ids)[0], atol=1e-5)
    assert LAYERS == len(made)
    for node in made:
        assert "transformer_rules" == node.meta["from_node"][-1].pass_name
        assert any("mlp" in path for path, _ in node.meta["nn_module_stack"].values())


def test_llama_in_bfloat16():
    """The norm is computed in float32 and cast back before the weight: it stays so."""
    program, expected, ids = llama(torch.bfloat16)
    program = fresh(program, "training")
    report = rewritten(program)

    assert {"attention": LAYERS, "rms_norm": 2 * LAYERS + 1, "silu_mul": LAYERS} == report.counts
    assert torch.allclose(expected.float(), program.module()(ids)[0].float(), atol=5e-2)


@pytest.mark.parametrize("form", ["training", "decomposed"])
def test_bert(form):
    """Attention and linear+gelu; in core ATen the layer norms too, which the training dialect has whole."""
    program, expected, ids = bert()
    program = fresh(program, form)
    report = rewritten(program)
    norms = {"layer_norm": 2 * LAYERS + 1} if form == "decomposed" else {}

    assert {"attention": LAYERS, "linear_gelu": LAYERS, **norms} == report.counts
    assert torch.allclose(expected, program.module()(ids)[0], atol=1e-5)


def test_the_module_of_a_program_is_rewritten_too():
    """With its parameters as attributes, and export's guards in the graph."""
    program, expected, ids = bert()
    module = program.module()
    report = transformer_rules().apply(module)

    assert {"attention": LAYERS, "linear_gelu": LAYERS} == report.counts
    assert torch.allclose(expected, module(ids)[0], atol=1e-5)


def test_as_a_pass_over_a_program():
    """The second run is unmodified."""
    program, expected, ids = bert()
    rewrite = ApplyRules(transformer_rules())
    first = rewrite(fresh(program, "training"))

    assert first.modified
    assert not rewrite(first).modified
    assert torch.allclose(expected, first.exported_program.module()(ids)[0], atol=1e-5)


# ------------------------------------------------------------------------------------------------ residual net
class Block(nn.Module):
    def __init__(self, channels, bias):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.norm1 = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, groups=2, bias=bias)
        self.norm2 = nn.BatchNorm2d(channels, affine=bias)

    def forward(self, x):
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + x)


@pytest.mark.parametrize("form", ["training", "decomposed"])
def test_conv_bn_on_a_residual_net(form):
    """Every convolution takes its batch norm in, with and without bias, groups and affine parameters."""
    torch.manual_seed(0)
    net = nn.Sequential(Block(4, True), Block(4, False))
    image = torch.randn(2, 4, 6, 6)
    net(image)  # statistics that are not trivial
    net.eval()
    program = fresh(export(net, (image,)), form)
    report = RuleSet([conv_bn_rule()]).apply(program)
    program.validate()

    assert {"conv_bn": 4} == report.counts
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)
    assert torch.allclose(net(image), program.module()(image), atol=1e-5)
    assert all("val" in node.meta for node in program.graph.nodes if node.op == "call_function")
    assert not RuleSet([conv_bn_rule()]).apply(program).modified


def test_a_batch_norm_in_training_is_left_alone():
    """It writes its statistics."""
    program = export(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)).train(), (torch.randn(2, 2, 3, 3),))

    assert not RuleSet([conv_bn_rule()]).apply(program).modified


# ------------------------------------------------------------------------------------------------ variants
class Wrap(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def counted(rules, function, *inputs):
    """How often the rules apply, with outputs compared."""
    module = export(Wrap(function), inputs).module()
    expected = function(*inputs)
    report = RuleSet(rules).apply(module)

    assert torch.allclose(expected, module(*inputs), atol=1e-4)
    return len(report.applications)


Q, K, V = (torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(n)) for n in range(3))
MASK = torch.zeros(2, 1, 5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -1e9)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -1) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(2, 3) / 2.0, -1) @ v,
        lambda q, k, v: torch.softmax(0.5 * (q @ k.permute(0, 1, 3, 2)), dim=3) @ v,
        lambda q, k, v: torch.softmax((q @ k.mT) * 0.5 + MASK, -1) @ v,
        lambda q, k, v: torch.softmax(MASK + (q @ k.transpose(-1, -2)) * 0.5, -1, torch.float32).to(q.dtype) @ v,
        lambda q, k, v: F.dropout(F.softmax(q @ k.transpose(-1, -2), -1), 0.5, False) @ v,
    ],
)
def test_spellings_of_attention(function):
    """Scale as product, quotient or missing; mask on either side; cast and switched-off dropout."""
    assert 1 == counted([attention_rule()], function, Q, K, V)


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -2) @ v,
        lambda q, k, v: torch.softmax(q @ k.transpose(0, 1).reshape(2, 3, 4, 5), -1) @ v,
        lambda q, k, v: torch.softmax(q @ k[:1].transpose(-2, -1), -1) @ v,
    ],
)
def test_what_is_no_attention(function):
    """Softmax over another dimension, another transposition, broadcast keys."""
    assert 0 == counted([attention_rule()], function, Q, K, V)


W, B = torch.linspace(0.5, 1.5, 4), torch.linspace(-1, 1, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        lambda x, w: w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)),
        lambda x, w: w * (x / torch.sqrt(1e-6 + x.pow(2).mean(-1, keepdim=True))),
    ],
)
def test_spellings_of_rms_norm(function):
    """Square, root and quotient as people write them."""
    assert 1 == counted([rms_norm_rule()], function, Q[0], W)


def test_a_norm_over_another_dimension_is_none():
    """rms_norm takes the last one."""
    function = lambda x, w: w * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6))

    assert 0 == counted([rms_norm_rule()], function, torch.randn(4, 4, 4), W)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: (
            (x - x.mean(-1, keepdim=True))
            * torch.rsqrt(((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True) + 1e-5)
            * w
            + b
        ),
        lambda x, w, b: (
            (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * w + b
        ),
    ],
)
def test_layer_norm_written_out(function):
    """With the variance computed, or as an operator; equal subexpressions merged first."""
    from fxpasses.passes import CSEPass

    module = CSEPass()(export(Wrap(function), (Q, W, B)).module()).graph_module
    report = RuleSet(layer_norm_rules()).apply(module)

    assert {"layer_norm": 1} == report.counts
    assert torch.allclose(function(Q, W, B), module(Q, W, B), atol=1e-5)


def test_linear_gelu_keeps_the_approximation():
    """tanh stays tanh; a linear without bias too."""
    x, w = torch.randn(3, 4), torch.randn(5, 4)

    assert 1 == counted([linear_gelu_rule()], lambda a, b: F.gelu(F.linear(a, b), approximate="tanh"), x, w)
    assert 1 == counted([linear_gelu_rule()], lambda a, b, c: F.gelu(F.linear(a, b, c)), x, w, torch.randn(5))


def test_fused_operators_are_differentiable_and_decompose():
    """They are compositions of ATen operators."""
    gate, up = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    torch.ops.fxpasses.silu_mul(gate, up).sum().backward()
    expected = torch.autograd.grad((F.silu(gate) * up).sum(), [gate, up])

    assert torch.allclose(expected[0], gate.grad)
    assert torch.allclose(expected[1], up.grad)


# ------------------------------------------------------------------------------------------------ checked
@pytest.mark.parametrize(
    "rule", [rms_norm_rule(), silu_mul_rule(), linear_gelu_rule(), *layer_norm_rules()[:1]], ids=lambda rule: rule.label
)
def test_the_rules_pass_their_own_check(rule):
    """On generated shapes, dtypes and strides."""
    assert check_rule(rule, examples=10, special_values=False)


def test_attention_passes_its_own_check():
    """On four-dimensional inputs."""
    rule = attention_rule()
    literals = {"turn_a": [2], "turn_b": [3], "turn": [[0, 1, 3, 2]], "dim": [-1, 3]}
    check = check_rule(rule, examples=10, example_inputs=[Q, K, V], literals=literals, special_values=False)

    assert check
    assert isinstance(rule, Rule)
