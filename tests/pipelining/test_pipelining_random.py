"""Random models, cut anywhere, over links of any speed: always the model's outputs, gradients and state."""

import copy

import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fxpasses import Device, Link
from fxpasses.pipelining import LossWrapper, MultiUseParameterConfig, pipe_split, pipeline

OPERATORS = ("linear", "linear", "relu", "add", "mask", "fill", "table", "repeat", "turn", "count", "rows", "detach")


class Drawn(nn.Module):
    """Does what it is told: each step takes two earlier values and may use a layer that another step uses, too."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x):
        floats, masks, counts = [x], [x > 0], [torch.arange(x.shape[0])]
        for name, first, second in self.steps:
            one, other = floats[first % len(floats)], floats[second % len(floats)]
            if name == "linear":
                floats.append(self.layers[second % 3](one))
            elif name == "mask":
                masks.append((one > other) | masks[first % len(masks)])
            elif name == "fill":
                floats.append(one.masked_fill(masks[second % len(masks)], 0.5))
            elif name == "count":
                counts.append(counts[first % len(counts)] + masks[second % len(masks)].sum(1))
            elif name == "rows":
                floats.append(one * (counts[second % len(counts)].unsqueeze(1) % 3) + x.shape[0])
            else:
                floats.append(self.plain(name, one, other))
        return floats[-1] + floats[len(floats) // 2] + self.layers[0](x), masks[-1], {"count": counts[-1]}

    def plain(self, name, one, other):
        if name == "relu":
            return torch.relu(one)
        if name == "add":
            return one + other
        if name == "table":
            return one * torch.outer(torch.arange(one.shape[0]), self.table).cos()
        if name == "repeat":
            return one[:1].exp().clamp(max=2.0).expand(one.shape[0], 4)
        if name == "turn":
            return one.t().contiguous().t() * 0.5
        return one.detach() * 2


class WithLoss(LossWrapper):
    def forward(self, x):
        output = self.module(x)
        return {"loss": self.loss_fn(output[0]), "output": output}


STEP = st.tuples(st.sampled_from(OPERATORS), st.integers(0, 7), st.integers(0, 7))


def marker(positions):
    """A policy that begins stages at some of the operators."""
    pipe_split()

    def mark(graph_module):
        nodes = [node for node in graph_module.graph.nodes if node.op == "call_function"]
        for node in {nodes[1 + position % (len(nodes) - 1)]: None for position in positions}:
            with graph_module.graph.inserting_before(node):
                graph_module.graph.call_function(torch.ops.fxpasses.pipe_split.default)
        return graph_module

    return mark


@settings(max_examples=examples(8), deadline=None)
@given(
    steps=st.lists(STEP, min_size=3, max_size=10),
    positions=st.lists(st.integers(0, 60), min_size=1, max_size=3),
    transmit=st.booleans(),
    dynamic=st.booleans(),
    speed=st.sampled_from([1.0, 1e8, 1e18]),
)
def test_a_pipe_is_the_model(steps, positions, transmit, dynamic, speed):
    """Exactly the outputs, the gradients up to the order of sums, and all of the state."""
    torch.manual_seed(0)
    model = WithLoss(Drawn(steps), lambda output: output.square().mean())
    twin = copy.deepcopy(model)
    config = MultiUseParameterConfig.TRANSMIT if transmit else MultiUseParameterConfig.REPLICATE
    options = {"multi_use_param_spec": config, "dynamic_shapes": "batch" if dynamic else None}
    x = torch.randn(3, 4)
    marked = pipeline(model, (x,), None, None, marker(positions), **options)
    count = marked.num_stages
    devices = [Device(f"d{index}", flops=1e13, bandwidth=1e12, overhead=1e-7) for index in range(count)]
    links = [Link(f"d{index}", f"d{index + 1}", speed, 0.0) for index in range(count - 1)]
    pipe = pipeline(model, (x,), None, None, marker(positions), devices=devices, links=links, **options)

    for rows in (3, 5, 2) if dynamic else (3,):
        given_rows = torch.randn(rows, 4)
        expected, found = twin(given_rows), pipe.forward_and_backward(given_rows)
        expected["loss"].backward()
        assert torch.equal(expected["output"][0], found["output"][0])
        assert torch.equal(expected["output"][1], found["output"][1])
        assert torch.equal(expected["output"][2]["count"], found["output"][2]["count"])
    for (name, want), have in zip(twin.named_parameters(), model.parameters(), strict=True):
        want_gradient = torch.zeros_like(want) if want.grad is None else want.grad
        have_gradient = torch.zeros_like(have) if have.grad is None else have.grad
        torch.testing.assert_close(want_gradient, have_gradient, rtol=1e-4, atol=1e-5, msg=name)
    saved = {name for index in range(count) for name in pipe.get_stage_module(index).state_dict()}
    assert set(model.state_dict()) == saved
