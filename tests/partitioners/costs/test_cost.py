"""What a node costs, counted on its own fake values, for exported, decomposed and traced graphs."""

from __future__ import annotations

import importlib
import math
import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode

from fxpasses import Device, PassManager
from fxpasses.partitioners.costs.node_costs import COST, NodeCost, measure_node, seconds_on
from fxpasses.partitioners.tensor_sizes import concrete_size
from fxpasses.passes import MeasureCosts


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.conv = nn.Conv2d(4, 6, 3, padding=1, groups=2)

    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        hidden = self.linear(x)
        heads = hidden.view(2, 5, 4, 4).transpose(1, 2)
        attended = F.scaled_dot_product_attention(heads, heads, heads)
        return attended, torch.einsum("bij,bkj->bik", hidden, hidden), self.conv(image), hidden @ hidden.transpose(1, 2)


def costs_by_name(module: GraphModule) -> dict[str, NodeCost]:
    found: dict[str, NodeCost] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            found.setdefault(str(getattr(node.target, "_schema", node.target)).partition("(")[0], measure_node(node))
    return found


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Everything().eval(), (torch.randn(2, 5, 8), torch.randn(1, 4, 7, 7)))


def test_products_convolutions_and_attention_count_two_operations_for_each_multiplication(
    exported: torch.export.ExportedProgram,
) -> None:
    costs = costs_by_name(exported.graph_module)

    assert 2 * 2 * 5 * 8 * 16 == costs["aten::linear"].flops
    assert 2 * (2 * 2 * 4 * 5 * 5 * 4) == costs["aten::scaled_dot_product_attention"].flops
    assert 2 * 6 * 7 * 7 * (4 // 2 * 9) == costs["aten::conv2d"].flops
    assert 2 * 2 * 5 * 5 * 16 == costs["aten::matmul"].flops
    assert 2 * 2 * 5 * 5 * 16 == costs["aten::einsum"].flops


def test_a_decomposed_graph_counts_the_same_products(exported: torch.export.ExportedProgram) -> None:
    def products(module: GraphModule) -> int:
        wanted = ("linear", "mm", "matmul", "einsum", "conv", "scaled_dot", "attention")
        return sum(
            measure_node(node).flops
            for node in module.graph.nodes
            if node.op == "call_function" and any(word in str(node.target) for word in wanted)
        )

    assert products(exported.graph_module) == products(exported.run_decompositions().graph_module)


FLOAT8 = torch.float8_e4m3fn
RECURRENT = 2 * (6 * 2) * 4 * 32 * (16 + 32)
"""Operations of an LSTM from 16 to 32, six steps of two samples: both products for each of the four gates."""


def lstm(x: Tensor, *weights: Tensor) -> Any:
    layer = nn.LSTM(16, 32)
    return torch.func.functional_call(layer, dict(zip(dict(layer.named_parameters()), weights, strict=True)), (x,))


def flops_of_call(function: Any, *args: Any) -> int:
    """The operations of the dearest node of a function, traced with values."""
    traced = make_fx(function, tracing_mode="fake")(*args)
    return max(measure_node(node).flops for node in traced.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize(
    ("flops", "function", "args"),
    [
        (2 * 4 * 3 * 5 * 6, torch.addbmm, (torch.ones(3, 6), torch.ones(4, 3, 5), torch.ones(4, 5, 6))),
        (
            2 * 16 * 32 * 8,
            lambda a, b, one: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16),
            (torch.ones(16, 32).to(FLOAT8), torch.ones(8, 32).to(FLOAT8), torch.ones(())),
        ),
        (
            2 * 32 * 64 * 48,
            lambda a, b, ends: torch._grouped_mm(a, b, offs=ends),
            (
                torch.ones(32, 64, dtype=torch.bfloat16),
                torch.ones(4, 64, 48, dtype=torch.bfloat16),
                torch.tensor([8, 16, 24, 32], dtype=torch.int32),
            ),
        ),
        (RECURRENT, lstm, (torch.ones(6, 2, 16), *nn.LSTM(16, 32).parameters())),
        (2 * 3 * 4 * 5 * 6, F.bilinear, (torch.ones(3, 4), torch.ones(3, 5), torch.ones(6, 4, 5))),
    ],
    ids=["addbmm", "float8", "experts", "lstm", "bilinear"],
)
def test_less_common_products_are_counted_as_products(flops: int, function: Any, args: tuple[Any, ...]) -> None:
    """Sums over a batch, narrow types, groups of experts, recurrent layers as one operator, and bilinear forms."""
    assert flops == flops_of_call(function, *args)


def test_the_experts_of_an_exported_transformer_are_counted_as_products() -> None:
    """As an operator of transformers' own, which it exports where torch's does not run."""
    importlib.import_module("transformers.integrations.moe")  # registers it
    tokens, experts = torch.ones(32, 64), torch.ones(4, 64, 48)
    ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    forward, backward = (
        torch.ops.transformers.grouped_mm_fallback,
        torch.ops.transformers.grouped_mm_fallback_backward,
    )

    assert 2 * 32 * 64 * 48 == flops_of_call(forward, tokens, experts, ends)
    assert 2 * 2 * 32 * 64 * 48 == flops_of_call(backward, tokens, experts, ends, torch.ones(32, 48))


def test_the_backward_of_attention_is_five_products() -> None:
    """The forward is two, and none of them is missing on the CPU."""

    def gradients(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        leaves = [each.detach().requires_grad_() for each in (q, k, v)]
        return torch.autograd.grad(F.scaled_dot_product_attention(*leaves, is_causal=True).sum(), leaves)

    assert 5 * (2 * 2 * 8 * 5 * 5 * 16) == flops_of_call(gradients, *(torch.ones(2, 8, 5, 16) for _ in range(3)))


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_the_backward_of_a_convolution_is_two_convolutions_of_its_groups(kind: type[nn.Module], groups: int) -> None:
    """One for each gradient; torch's registry forgets the groups, eight times too much where each channel is one."""
    module, x = kind(8, 16, 3, groups=groups), torch.ones(2, 8, 10, 10)
    operator = torch.ops.aten.convolution_backward.default

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        x = x.detach().requires_grad_()
        result: tuple[Tensor, ...] = torch.autograd.grad(module(x).sum(), (x, *module.parameters()))
        return result

    graph = make_fx(gradients)(x)
    (backward,) = graph.graph.find_nodes(op="call_function", target=operator)
    positions = 2 * 10 * 10 * 8 if kind is nn.ConvTranspose2d else 2 * 8 * 8 * 16
    products = (16 if kind is nn.ConvTranspose2d else 8) // groups * 9

    assert 2 * (2 * positions * products) == measure_node(backward).flops


@pytest.mark.parametrize(
    ("flops", "module", "args"),
    [
        (RECURRENT, nn.LSTM(16, 32), (torch.ones(6, 2, 16),)),
        (2 * 10 * 16 * 16 * 4 + 4 * 2 * 5 * 5 * 16, nn.MultiheadAttention(16, 4, batch_first=True), 3),
        (2 * (2 * 8 * 5 * 5) * (6 * 9), nn.ConvTranspose2d(8, 6, 3, stride=2), (torch.ones(2, 8, 5, 5),)),
        (2 * 7 * 5 * (3 * 4), nn.Bilinear(3, 4, 5), (torch.ones(7, 3), torch.ones(7, 4))),
        (2 * 8 * 16, nn.LayerNorm((8, 16)), (torch.ones(2, 8, 16),)),
        (2 * 10 * 8, nn.EmbeddingBag(50, 8), (torch.zeros(2, 10, dtype=torch.int64),)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_called_module_counts_what_torch_makes_of_it(flops: int, module: nn.Module, args: Any) -> None:
    """Also where its weight alone does not tell."""
    args = args if isinstance(args, tuple) else (torch.ones(2, 5, 16),) * args
    graph = Graph()
    graph.output(graph.call_module("called", tuple(graph.placeholder(name) for name in "abc"[: len(args)])))
    traced = GraphModule(nn.ModuleDict({"called": module}), graph)
    PassManager([MeasureCosts(example_inputs=args)])(traced)

    assert flops == COST.read(next(node for node in traced.graph.nodes if node.op == "call_module")).flops


@pytest.mark.parametrize(
    ("flops", "function", "args"),
    [
        (720, lambda a, b: torch.einsum("bij,bjk->bik", a, b), (torch.ones(4, 3, 5), torch.ones(4, 5, 6))),
        (720, lambda a, b: torch.tensordot(a, b, 2), (torch.ones(3, 4, 5), torch.ones(4, 5, 6))),
        (240, lambda a, b: F.linear(input=a, weight=b), (torch.ones(4, 5), torch.ones(6, 5))),
        (20, lambda a, b: a * b, (torch.ones(4, 5), torch.ones(4, 5))),
        (25600, lambda q: F.scaled_dot_product_attention(query=q, key=q, value=q), (torch.ones(2, 8, 5, 16),)),
    ],
    ids=["einsum", "tensordot", "linear", "mul", "attention"],
)
def test_functions_of_torch_in_a_traced_graph_count_as_in_an_exported_one(
    flops: int, function: Any, args: tuple[Any, ...]
) -> None:
    """However their arguments are given."""
    traced = symbolic_trace(function)
    PassManager([MeasureCosts(example_inputs=args)])(traced)

    assert [flops] == [COST.read(node).flops for node in traced.graph.nodes if node.op == "call_function"]


def test_views_cost_nothing_but_have_a_size(exported: torch.export.ExportedProgram) -> None:
    cost = costs_by_name(exported.graph_module)["aten::view"]

    assert NodeCost(output_bytes=2 * 5 * 16 * 4) == cost


def test_what_may_be_a_view_costs_its_traffic_where_it_copies() -> None:
    class Copies(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.to(torch.float64), x.t().reshape(12)

    class Views(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.to(torch.float32), x.reshape(12)

    x = torch.randn(3, 4)
    copies = costs_by_name(torch.export.export(Copies(), (x,)).graph_module)
    views = costs_by_name(torch.export.export(Views(), (x,)).graph_module)

    assert NodeCost(12, 48, 96, 96, dtype="float32") == copies["aten::to.dtype"]
    assert (48, 48) == (copies["aten::reshape"].bytes_read, copies["aten::reshape"].bytes_written)
    assert NodeCost(output_bytes=48) == views["aten::reshape"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x.reshape(2, 6),
        lambda x: x.to(torch.float32),
        lambda x: x.chunk(2),
        lambda x: x.T,
        lambda x: torch.permute(x, (1, 0)),
        lambda x: torch.split(x, 1),
        lambda x: x.size(0),
        lambda x: x.shape,
        lambda x: F.dropout(x, 0.5, training=False),
        nn.Dropout(0.5).eval(),
        nn.Identity(),
        nn.Flatten(0),
    ],
    ids=[
        *("transpose", "reshape", "to", "chunk", "T", "permute", "split", "size", "shape", "dropout"),
        *("Dropout", "Identity", "Flatten"),
    ],
)
def test_views_and_questions_in_a_traced_graph_cost_nothing(function: Any) -> None:
    """A method, function or module of torch that only looks at a tensor moves nothing and takes no time."""
    traced = symbolic_trace(nn.Sequential(function) if isinstance(function, nn.Module) else function)
    PassManager([MeasureCosts(example_inputs=(torch.ones(3, 4),))])(traced)

    costs = [COST.read(node) for node in traced.graph.nodes if node.op.startswith("call")]
    assert [NodeCost(output_bytes=each.output_bytes) for each in costs] == costs
    assert [0.0] == [seconds_on(each, Device("cpu")) for each in costs]


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: x.t().reshape(12), torch.ones(3, 4)),
        (lambda x: x.t().contiguous(), torch.ones(3, 4)),
        (lambda x: x.clone(), torch.ones(3, 4)),
        (lambda x: x.float(), torch.ones(3, 4, dtype=torch.int32)),
        (lambda x: F.dropout(x, 0.5), torch.ones(3, 4)),
        (nn.Dropout(0.5), torch.ones(3, 4)),
        (nn.Flatten(0), torch.ones(4, 3).t()),
    ],
    ids=["reshape", "contiguous", "clone", "float", "dropout", "Dropout", "Flatten"],
)
def test_copies_in_a_traced_graph_cost_their_traffic(function: Any, x: Tensor) -> None:
    """What may be a view costs something where it makes new memory."""
    traced = symbolic_trace(nn.Sequential(function) if isinstance(function, nn.Module) else function)
    PassManager([MeasureCosts(example_inputs=(x,))])(traced)

    *_, copying, _output = traced.graph.nodes
    assert (12, 48, 48) == (COST.read(copying).flops, COST.read(copying).bytes_read, COST.read(copying).bytes_written)


def test_a_table_costs_the_rows_that_are_looked_up_or_written() -> None:
    """A vocabulary of 128,000 words is not read for one word, nor a cache written for one position."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(1000, 8)
            self.bag = nn.EmbeddingBag(1000, 8, mode="sum")
            self.register_buffer("cache", torch.zeros(100, 8))

        def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
            found = self.words(ids)
            self.cache.index_copy_(0, ids, found)
            return self.bag(ids.view(1, -1)), found[ids]

    ids = torch.tensor([1, 2, 0])
    costs = costs_by_name(torch.export.export(Tables(), (ids,)).graph_module)
    rows = 3 * 8 * 4

    assert NodeCost(24, rows + 24, rows, rows, 0, "float32") == costs["aten::embedding"]
    assert (rows + 24, rows) == (costs["aten::index_copy_"].bytes_read, costs["aten::index_copy_"].bytes_written)
    assert 24 == costs["aten::embedding_bag.padding_idx"].flops
    assert costs["aten::embedding_bag.padding_idx"].bytes_read < 2 * rows
    assert (24, 2 * rows + 24) == (costs["aten::index.Tensor"].flops, costs["aten::index.Tensor"].bytes_read + rows)


@pytest.mark.parametrize("form", ["exported", "traced"])
def test_indices_that_are_larger_than_a_table_are_not_taken_for_it(form: str) -> None:
    """A bag of 1,000 indices into 10 rows of 4 did a million additions, and read none of its indices."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(10, 4, mode="sum")
            self.words = nn.Embedding(10, 4)
            self.weight = nn.Parameter(torch.zeros(10, 4))

        def forward(self, ids: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
            weight = self.weight
            looked_up = (F.embedding(ids, weight), weight[ids], weight.index_select(0, ids))
            return self.bag(ids, offsets), F.embedding_bag(ids, weight, offsets), self.words(ids), *looked_up

    args = (torch.zeros(1000, dtype=torch.long), torch.arange(0, 1000, 10))
    model = Tables()
    graph = torch.export.export(model, args).module() if form == "exported" else symbolic_trace(model)
    PassManager([MeasureCosts(example_inputs=args)])(graph)

    costs = [cost for node in graph.graph.nodes if node.op.startswith("call") and (cost := COST.read(node)).flops]
    assert [4000] * 6 == [cost.flops for cost in costs]
    assert [8160, 8160, 8160, 8960, 8960, 8160] == [cost.bytes_read for cost in costs]


def test_a_called_bag_reads_as_many_rows_as_it_has_indices() -> None:
    """It read as many as it has bags."""
    graph = symbolic_trace(nn.Sequential(nn.EmbeddingBag(1000, 8, mode="sum")))
    PassManager([MeasureCosts(example_inputs=(torch.zeros(2, 50, dtype=torch.long),))])(graph)

    (cost,) = (COST.read(node) for node in graph.graph.nodes if node.op == "call_module")
    assert (100 * 8, 100 * 8 + 100 * 8 * 4) == (cost.flops, cost.bytes_read)


def test_what_is_made_like_another_reads_nothing_of_it() -> None:
    """Only its shape counts."""

    class Made(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return torch.zeros_like(x), torch.rand_like(x), torch.full_like(x, 2.0), x.new_ones(2, 4)

    costs = costs_by_name(torch.export.export(Made(), (torch.randn(4, 4),)).graph_module)

    assert [(0, 64), (0, 64), (0, 64), (0, 32)] == [(cost.bytes_read, cost.bytes_written) for cost in costs.values()]


def test_a_part_that_is_set_in_a_traced_graph_costs_its_rows() -> None:
    """``cache[:, 3:4] = rows`` writes one position of 100."""
    graph = Graph()
    cache, rows = graph.placeholder("cache"), graph.placeholder("rows")
    filling = graph.call_function(operator.setitem, (cache, (slice(None), slice(3, 4)), rows))
    graph.output(cache)
    traced = GraphModule(nn.Module(), graph)
    PassManager([MeasureCosts(example_inputs=(torch.zeros(2, 100, 8), torch.ones(2, 1, 8)))])(traced)

    cost = COST.read(filling)
    assert (16, 64, 64) == (cost.flops, cost.bytes_read, cost.bytes_written)


@pytest.mark.parametrize(
    ("write", "read_again"),
    [
        (lambda table, rows, ids: table.scatter_(0, ids, rows), 0),
        (lambda table, rows, ids: table.scatter_add_(0, ids, rows), 1),
        (lambda table, rows, ids: table.scatter_reduce_(0, ids, rows, "amax"), 1),
        (lambda table, rows, ids: table.index_add_(0, ids[:, 0], rows), 1),
    ],
    ids=["scatter", "scatter_add", "scatter_reduce", "index_add"],
)
def test_a_table_that_is_added_to_costs_the_rows(write: Any, read_again: int) -> None:
    class Adds(nn.Module):
        def forward(self, table: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
            return write(table, rows, ids)

    args = (torch.zeros(1000, 8), torch.ones(3, 8), torch.zeros(3, 8, dtype=torch.int64))
    graph = torch.export.export(Adds(), args).module(check_guards=False).graph
    costs = [measure_node(node) for node in graph.nodes if node.op == "call_function"]
    (cost,) = [cost for cost in costs if cost.bytes_written and cost.output_bytes == args[0].nbytes]
    rows = args[1].nbytes

    assert (24, rows) == (cost.flops, cost.bytes_written)
    assert cost.bytes_read - args[2].nbytes <= rows * (1 + read_again) <= cost.bytes_read


def test_what_hands_back_its_operand_costs_nothing() -> None:
    class Hands(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
            return [nn.functional.dropout(x, 0.5, training=False) + 1, *torch.broadcast_tensors(x, y)]

    program = torch.export.export(Hands(), (torch.ones(4, 3), torch.ones(3)))
    costs = costs_by_name(program.graph_module)

    assert NodeCost(output_bytes=48) == costs["aten::dropout"]
    assert NodeCost(output_bytes=96) == costs["aten::broadcast_tensors"]


def test_elementwise_operators_count_their_elements_and_their_traffic() -> None:
    module = torch.export.export(nn.ReLU(), (torch.randn(3, 4),)).graph_module

    assert NodeCost(12, 48, 48, 48, dtype="float32") == costs_by_name(module)["aten::relu"]


def test_symbolic_sizes_count_at_their_hint() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(nn.Linear(4, 4), (torch.randn(6, 4),), dynamic_shapes={"input": {0: batch}})

    assert 2 * 6 * 4 * 4 == costs_by_name(program.graph_module)["aten::linear"].flops


def test_a_conditional_costs_its_dearer_branch() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda t: t @ t, lambda t: t + 1, (x,))

    with torch.no_grad():
        module = torch.export.export(Branch(), (torch.randn(4, 4),)).graph_module
    (cond,) = module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)

    assert 2 * 4 * 4 * 4 == measure_node(cond).flops


def test_a_scan_costs_its_body_for_each_row_whatever_it_carries() -> None:
    """The carried value, 3 rows, comes before what is scanned, 12 rows."""

    class Recurrence(nn.Module):
        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            carry, _ = scan(lambda state, row: (state + row @ weight, state * 2), x[0] * 0, x)
            return carry

    program = torch.export.export(Recurrence(), (torch.randn(12, 3, 8), torch.randn(8, 8)))
    (node,) = program.graph.find_nodes(op="call_function", target=torch.ops.higher_order.scan)

    assert 12 * (2 * 3 * 8 * 8 + 3 * 8 + 3 * 8) == measure_node(node).flops


def test_attention_with_a_score_function_costs_its_products_and_the_function_for_each_score() -> None:
    """The body of ``flex_attention`` works on single scores; the products are in the operator itself."""

    class Flexible(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Any:
            return flex_attention(q, k, v, score_mod=lambda score, b, h, row, column: score + row - column)

    q, k = torch.randn(2, 4, 128, 8), torch.randn(2, 4, 256, 8)
    program = torch.export.export(Flexible(), (q, k, k))
    (node,) = [node for node in program.graph.nodes if "flex_attention" in str(node.target)]
    cost = measure_node(node)

    scores = 2 * 4 * 128 * 256
    assert 2 * 2 * scores * 8 + 2 * scores == cost.flops
    assert "float32" == cost.dtype
    assert cost.bytes_read < 2 * (q.nbytes + k.nbytes + k.nbytes)  # scores are in no memory


def test_a_product_under_autocast_computes_in_the_type_that_comes_out() -> None:
    """The cast is inside of the operator; the device's rate for the short type counts."""

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.linear(x)

    program = torch.export.export(Cast(), (torch.randn(2, 8),))
    (region,) = [node for node in program.graph.nodes if "autocast" in str(node.target)]

    assert "bfloat16" == measure_node(region).dtype


def test_a_size_that_is_no_number_counts_as_the_default() -> None:
    assert 7 == concrete_size(object(), 7)
    assert 3 == concrete_size(3)


def test_seconds_are_the_slower_of_arithmetic_and_memory_plus_the_launch() -> None:
    device = Device("d", flops=1e9, bandwidth=1e9, overhead=1e-6)

    assert pytest.approx(1e-6 + 2e-3) == seconds_on(NodeCost(2_000_000, 10, 10, 10), device)
    assert pytest.approx(1e-6 + 3e-3) == seconds_on(NodeCost(10, 2_000_000, 1_000_000, 10), device)
    assert 0.0 == seconds_on(NodeCost(output_bytes=100), device)


def test_what_asks_for_a_shape_costs_no_device_anything() -> None:
    """The host runs it: no kernel is launched and no element is read."""

    class Asking(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float64).reshape(x.shape[0] * 2, -1)

    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Asking(), (torch.randn(4, 6),), dynamic_shapes=({0: batch},))
    asking = [node for node in program.graph.nodes if "_assert" in node.name or "sym_size" in node.name]

    assert 2 <= len(asking)
    assert all(0.0 == seconds_on(measure_node(node), Device("a")) for node in asking)


def test_markers_of_regions_cost_nothing_and_are_not_run() -> None:
    """To count what an operator does torch runs it on tensors without data; a marker would switch autocast on."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    opened = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, None))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (opened,))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output(x)
    x.meta["val"] = torch.empty(2, device="meta")
    costs = [measure_node(node) for node in graph.nodes if node.op == "call_function"]

    assert [NodeCost()] * 3 == costs
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


A, B, C = torch.ones(4, 8, 16), torch.ones(4, 16, 8), torch.ones(4, 8, 8)


@pytest.mark.parametrize(
    ("flops", "function", "args"),
    [
        (2 * 4 * 8 * 8 * 16, lambda a, b: torch.bmm(a, mat2=b), (A, B)),
        (2 * 4 * 8 * 8 * 16, lambda a, b: torch.bmm(mat2=b, input=a), (A, B)),
        (2 * 8 * 8 * 16, lambda c, a, b: torch.addmm(c, mat2=b, mat1=a), (C[0], A[0], B[0])),
        (2 * 4 * 8 * 8 * 16, lambda c, a, b: c.baddbmm_(a, b), (C, A, B)),
        (2 * 8 * 8 * 16, lambda c, a, b: c.addmm_(a, b), (C[0], A[0], B[0])),
        (2 * 4 * 8 * 8 * 16, lambda c, a, b: c.addbmm_(a, b), (C[0], A, B)),
        (2 * 8 * 16, lambda c, a, b: c.addmv_(a, b), (C[0, 0], A[0], B[0, :, 0])),
    ],
    ids=["named", "all-named", "named-in-another-order", "baddbmm_", "addmm_", "addbmm_", "addmv_"],
)
def test_products_count_alike_by_name_and_in_place(flops: int, function: Any, args: tuple[Tensor, ...]) -> None:
    traced = symbolic_trace(function)
    PassManager([MeasureCosts(example_inputs=args)])(traced)

    assert flops == max(measure_node(node).flops for node in traced.graph.nodes)


@pytest.mark.parametrize(
    ("function", "written", "index_bytes"),
    [
        (lambda x, _: x[1:], 0, 0),
        (lambda x, _: x[..., None], 0, 0),
        (lambda x, _: x[3], 0, 0),
        (lambda x, index: x[index], 4 * 500 * 64, 8 * 500),
        (lambda x, index: x[:10, index % 64], 4 * 10 * 500, 8 * 500),
        (lambda x, _: x[[1, 2]], 4 * 2 * 64, 0),
    ],
    ids=["slice", "more-dimensions", "row", "gather", "gather-columns", "list"],
)
def test_elements_that_a_tensor_or_a_list_picks_are_copied(function: Any, written: int, index_bytes: int) -> None:
    traced = symbolic_trace(function)
    PassManager([MeasureCosts(example_inputs=(torch.ones(1000, 64), torch.arange(500)))])(traced)
    picked = [node for node in traced.graph.nodes if node.target is operator.getitem][-1]

    cost = measure_node(picked)
    assert written == cost.bytes_written
    assert written + index_bytes == cost.bytes_read


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.ops.aten._unsafe_view(x, [64, 100]),
        lambda x: torch.unsafe_split(x, 50)[1],
        lambda x: torch.ops.aten.unsafe_split_with_sizes(x, [30, 70])[1],
    ],
    ids=["view", "split", "sizes"],
)
def test_views_that_autograd_does_not_follow_move_nothing(function: Any) -> None:
    """In graphs of make_fx one stands behind each product of three dimensions; it counted as a copy."""
    graph_module = make_fx(function)(torch.ones(100, 64))

    costs = [measure_node(node) for node in graph_module.graph.nodes if node.op == "call_function"]
    assert {(0, 0, 0)} == {(cost.flops, cost.bytes_read, cost.bytes_written) for cost in costs}


def test_what_sets_a_seed_is_not_called_to_count_it() -> None:
    """Measuring a graph set the generator that everything else draws from."""
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.manual_seed, (3,))
    graph.output(x)
    before = torch.initial_seed()

    costs = [measure_node(node) for node in graph.nodes]

    assert before == torch.initial_seed()
    assert [NodeCost()] * 3 == costs


@pytest.mark.parametrize(
    ("query", "key"), [((1, 4, 6, 8), (3, 4, 7, 8)), ((4, 6, 8), (3, 4, 7, 8)), ((2, 1, 6, 8), (2, 4, 7, 8))]
)
def test_attention_of_broadcast_operands_counts_what_it_gives(query: tuple[int, ...], key: tuple[int, ...]) -> None:
    """Those of the query alone were counted."""

    class Attention(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, key)

    args = (torch.randn(query), torch.randn(key))
    costs = costs_by_name(torch.export.export(Attention(), args).graph_module)
    batch = torch.broadcast_shapes(query[:-2], key[:-2])

    assert 2 * math.prod(batch) * 6 * 7 * (8 + 8) == costs["aten::scaled_dot_product_attention"].flops


def test_a_layer_that_torch_fuses_counts_as_its_parts() -> None:
    """Of a graph that dynamo captures in eval mode; it did one operation for each element."""
    layer, x = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).eval(), torch.randn(2, 50, 64)
    graphs = list[GraphModule]()
    with torch.no_grad():
        torch.compile(layer, backend=lambda graph, _inputs: graphs.append(graph) or graph)(x)
    (fused,) = (node for node in graphs[0].graph.nodes if node.op == "call_function")
    with FlopCounterMode(display=False) as counter:
        layer(x.requires_grad_())

    assert "_transformer_encoder_layer_fwd" in str(fused.target)
    attention = 2 * 2 * 50 * 50 * (64 + 64)  # on the CPU torch's counter counts none
    assert counter.get_total_flops() + attention == measure_node(fused).flops


def test_a_product_of_a_sparse_matrix_counts_as_if_it_were_dense() -> None:
    class Product(nn.Module):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return torch.sparse.mm(left.to_sparse(), right)

    costs = costs_by_name(torch.export.export(Product(), (torch.ones(64, 32), torch.randn(32, 16))).graph_module)

    assert 2 * 64 * 32 * 16 == costs["aten::_sparse_mm"].flops


TABLE, FEW, ROWS = torch.zeros(100, 20), torch.arange(5), torch.ones(5, 20)
COLUMNS = torch.arange(3).expand(10, 3).contiguous()
WRITES: dict[str, tuple[Any, tuple[Tensor, ...], tuple[int, int, int]]] = {
    "rows": (lambda x, j, v: x.index_put_((j,), v), (TABLE, FEW, ROWS), (440, 400, 100)),
    "one row for all": (lambda x, j, v: x.index_put_((j,), v), (TABLE, FEW, ROWS[0]), (120, 400, 100)),
    "one number for all": (lambda x, j, v: x.index_put_((j,), v), (TABLE, FEW, ROWS[0, 0]), (44, 400, 100)),
    "where a mask says": (
        lambda x, mask, v: x.index_put_((mask,), v),
        (TABLE, torch.ones(100, dtype=torch.bool), ROWS[0, 0]),
        (104, 8000, 2000),
    ),
    "columns": (lambda x, j, v: torch.ops.aten.index_put_(x, [None, j], v), (TABLE, FEW, ROWS[0, 0]), (44, 2000, 500)),
    "added to": (lambda x, j, v: x.index_put_((j,), v, accumulate=True), (TABLE, FEW, ROWS), (840, 400, 100)),
    "added to by index": (lambda x, j, v: x.index_add_(0, j, v), (TABLE, FEW, ROWS), (840, 400, 100)),
    "filled": (lambda x, j: x.index_fill_(0, j, 1.0), (TABLE, FEW), (40, 400, 100)),
    "strewn": (lambda x, k, v: x.scatter_(1, k, v), (TABLE[:10].clone(), COLUMNS, TABLE[:10].clone()), (360, 120, 30)),
    "a number strewn": (lambda x, k: x.scatter_(1, k, 1.0), (TABLE[:10].clone(), COLUMNS), (240, 120, 30)),
}


@pytest.mark.parametrize("name", list(WRITES))
def test_what_writes_some_elements_costs_these(name: str) -> None:
    """Bytes read, bytes written, and operations: indices were taken for what is written, a row for all rows."""
    function, args, expected = WRITES[name]

    class Writing(nn.Module):
        def forward(self, *args: Tensor) -> Tensor:
            return function(*args)

    *_, node = (node for node in torch.export.export(Writing(), args).graph.nodes if node.op == "call_function")
    cost = measure_node(node)
    assert expected == (cost.bytes_read, cost.bytes_written, cost.flops)
