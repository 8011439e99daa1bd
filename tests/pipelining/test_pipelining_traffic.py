"""What travels between stages and what is computed again; parameters that one stage sends to the others."""

import copy
import re

import pytest
import torch
from pipeline_models import MODELS
from torch import nn
from torch.utils import _pytree as pytree

from fxpasses import Device, Link, StageError
from fxpasses.pipelining import MultiUseParameterConfig, SplitPoint, pipeline

BEGINNING = SplitPoint.BEGINNING
TRANSMIT, REPLICATE = MultiUseParameterConfig.TRANSMIT, MultiUseParameterConfig.REPLICATE


def machines(count, *, bandwidth, latency=0.0, overhead=1e-6):
    """Quick devices, and links that are quick or slow."""
    devices = [Device(f"gpu{index}", flops=1e14, bandwidth=1e12, overhead=overhead) for index in range(count)]
    links = [Link(f"gpu{index}", f"gpu{index + 1}", bandwidth, latency) for index in range(count - 1)]
    return {"devices": devices, "links": links}


class Tables(nn.Module):
    """A table made of nothing, one made of an input, a mask, and a value that only the first layer can make."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.register_buffer("freq", torch.arange(64.0), persistent=False)

    def forward(self, x, ids):
        table = torch.outer(torch.arange(32.0), self.freq).cos()
        mask = (ids > 3).unsqueeze(1).expand(32, 64)
        for layer in self.layers:
            x = layer(x) * table + mask
        return x


def tables(**options):
    torch.manual_seed(0)
    model, args = Tables(), (torch.randn(32, 64), torch.arange(32))
    pipe = pipeline(model, args, None, {"layers.1": BEGINNING, "layers.2": BEGINNING}, **options)
    return model, args, pipe


def test_over_a_slow_link_only_what_no_stage_can_make_travels():
    """A table is computed again from a small buffer; a mask of 32 bits is less than the numbers it is made of."""
    model, args, pipe = tables(**machines(3, bandwidth=1e8))

    assert torch.equal(model(*args), pipe(*args))
    assert [["add", "expand"], ["add_1", "expand"]] == [
        sorted(name for name, _ in hop.values) for hop in pipe.traffic.hops
    ]
    assert [32 * 64 * 4 + 32 * 2] * 2 == [hop.bytes for hop in pipe.traffic.hops]
    assert "cos" in pipe.traffic.recomputed[1]
    assert pipe.traffic.recomputed[0] == ()


def test_over_a_quick_link_everything_is_sent():
    """Computing a table costs more than its bytes; what ``expand`` repeats is sent once."""
    model, args, pipe = tables(**machines(3, bandwidth=1e15, overhead=1e-3))

    assert torch.equal(model(*args), pipe(*args))
    assert [["add", "cos", "expand"], ["add_1", "cos", "expand"]] == [
        sorted(name for name, _ in hop.values) for hop in pipe.traffic.hops
    ]
    assert ((), (), ()) == pipe.traffic.recomputed


def test_never_sends_all():
    """``recompute="never"`` leaves each value where it is made."""
    model, args, pipe = tables(recompute="never", **machines(3, bandwidth=1e8))

    assert torch.equal(model(*args), pipe(*args))
    assert ((), (), ()) == pipe.traffic.recomputed
    assert str(pipe.traffic).startswith("stage 0 -> 1: 16448 bytes\n  cos: 8192 bytes\n  expand: 64 bytes\n")


def test_the_report_says_what_is_computed_again():
    """One line for each hop, value and stage."""
    _, _, pipe = tables(**machines(3, bandwidth=1e8))

    assert re.search(r"^stage 1 computes again: .*cos.*$", str(pipe.traffic), re.MULTILINE)
    assert "one stage, nothing travels" == str(pipeline(Tables(), (torch.randn(32, 64), torch.arange(32))).traffic)


def test_a_value_reaches_the_next_stage_from_the_last_one_that_has_it():
    """What was sent to stage 1 is sent on from there: one hop for stage 2, not two."""
    _, _, pipe = tables(**machines(3, bandwidth=1e9, overhead=5e-6))
    names = [[name for name, _ in hop.values] for hop in pipe.traffic.hops]

    assert "cos" in pipe.traffic.recomputed[1] or "cos" in names[0]
    assert ("cos" in pipe.traffic.recomputed[2]) == ("cos" not in names[1])


def test_random_and_written_values_are_sent_whatever_they_cost():
    """A second draw would give other numbers; a second read of a written buffer another value."""

    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x):
            noise = torch.rand(4)
            before = self.count * 2
            self.count.add_(1)
            return self.second(self.first(x)) * noise + before + noise

    model, x = Drawing(), torch.randn(2, 4)
    other = copy.deepcopy(model)
    pipe = pipeline(model, (x,), None, {"second": BEGINNING}, **machines(2, bandwidth=1.0))
    for seed in range(2):
        torch.manual_seed(seed)
        expected = other(x)
        torch.manual_seed(seed)

        assert torch.equal(expected, pipe(x))
    assert ((), ()) == pipe.traffic.recomputed


@pytest.mark.parametrize("name", ["llama", "t5", "mixtral"])
def test_complaint_11_with_all_that_can_be_computed_again(name):
    """Complaint 11: rotary tables and masks computed in each stage give exactly the model's output."""
    make, points = MODELS[name]
    model, args, kwargs = make()
    slow = machines(4, bandwidth=1e6, latency=1e-3)
    pipe = pipeline(model, args, kwargs, dict.fromkeys(points, BEGINNING), **slow)
    expected, found = model(*args, **kwargs), pipe(*args, **kwargs)

    assert all(map(torch.equal, pytree.tree_leaves(expected), pytree.tree_leaves(found)))
    assert any(pipe.traffic.recomputed)
    if name == "llama":
        assert [1, 1, 1] == [len(hop.values) for hop in pipe.traffic.hops]


# --- parameters of several stages ----------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.bias = nn.Parameter(torch.ones(4))

    def forward(self, ids):
        x = self.embed(ids) + self.bias
        return self.head(self.middle(x) * self.bias)


IDS = torch.arange(6).reshape(2, 3)


def tied(spec):
    torch.manual_seed(0)
    model = Tied()
    return model, pipeline(model, (IDS,), None, {"middle": BEGINNING, "head": BEGINNING}, multi_use_param_spec=spec)


def holders(pipe):
    held = [dict(pipe.get_stage_module(index).named_parameters()) for index in range(pipe.num_stages)]
    return {
        name: [index for index, own in enumerate(held) if name in own]
        for name in dict.fromkeys(n for h in held for n in h)
    }


@pytest.mark.parametrize(
    ("spec", "weight", "bias"),
    [
        (None, [0, 2], [0, 1]),
        (REPLICATE, [0, 2], [0, 1]),
        (TRANSMIT, [0], [0]),
        ({"embed.weight": TRANSMIT}, [0], [0, 1]),
        ({"bias": TRANSMIT, "head.weight": REPLICATE}, [0, 2], [0]),
    ],
)
def test_each_parameter_is_copied_or_sent_as_asked(spec, weight, bias):
    """Complaint 25: sent parameters lie in one stage; outputs and gradients are the model's either way."""
    model, pipe = tied(spec)
    twin = copy.deepcopy(model)
    twin(IDS).square().sum().backward()
    expected = model(IDS)
    found = pipe(IDS)
    found.square().sum().backward()
    places = holders(pipe)
    state = {name for index in range(3) for name in pipe.get_stage_module(index).state_dict()}

    assert torch.equal(expected, found)
    assert (weight, bias) == (places["head.weight"], places["bias"])
    assert set(model.state_dict()) == state
    for (name, value), want in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(want.grad, value.grad, msg=name)


def test_a_pipe_says_which_parameters_are_sent_and_which_are_copied():
    """And how many bytes they cost on each hop."""
    _, pipe = tied({"bias": TRANSMIT})

    assert {"bias": 0} == pipe.transmitted_params
    assert [{"submod_pp_0": "head.weight", "submod_pp_2": "head.weight"}] == pipe.replicated_params
    assert ("bias", 16) in pipe.traffic.hops[0].values
    assert "bias" not in dict(pipe.traffic.hops[1].values)


BAD = {
    "name": (
        {"heads.weight": TRANSMIT},
        "multi_use_param_spec names 'heads.weight', which is no parameter of the model; the nearest names are "
        "'head.weight', 'embed.weight', 'middle.weight'",
    ),
    "config": (
        {"bias": "send"},
        "multi_use_param_spec has 'send' for 'bias'; write MultiUseParameterConfig.TRANSMIT or REPLICATE",
    ),
    "kind": (
        "send",
        "multi_use_param_spec is 'send'; write MultiUseParameterConfig.TRANSMIT or REPLICATE, or a dict of these by "
        "parameter name",
    ),
    "both": (
        {"embed.weight": TRANSMIT, "head.weight": REPLICATE},
        "'embed.weight' and 'head.weight' are one parameter, but multi_use_param_spec asks for TRANSMIT and REPLICATE; "
        "name it once",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_spec_gets_one_sentence(name):
    """What is wrong, and what to write."""
    spec, message = BAD[name]
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        tied(spec)


def test_other_bad_input():
    """One device for each stage; two words for recompute."""
    with pytest.raises(StageError, match=r"^there are 2 devices for 3 stages; give one for each stage$"):
        tables(**machines(2, bandwidth=1e9))
    with pytest.raises(StageError, match=r"^recompute is \"cheaper\" or \"never\", not 'always'$"):
        tables(recompute="always")
