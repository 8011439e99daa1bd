"""A lowered model captured again keeps the names of the model it was made of, and asks for what it was made for."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.fx import GraphModule, Interpreter, symbolic_trace

from fxpasses import Device, lower
from fxpasses.errors import InputError
from fxpasses.lowering.lowered_module import LoweredModule
from fxpasses.passes import StripGuards

TWO = [Device("left"), Device("right")]
FIXED = r"The input 'x' has shape \(5,\), but the model was captured for \(2,\): dimension 0 is fixed at 2\."


class Mean(nn.Module):
    """A graph of it for two numbers divides by two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() / x.shape[0]


class Tied(nn.Module):
    """A head with the weight of the embedding, buffers that are written and that are in no checkpoint, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.randn(8))
        self.register_buffer("kept_out", torch.randn(8), persistent=False)
        self.constant = torch.full((8,), 2.0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(self.embed(ids)).relu())
        result: torch.Tensor = self.head(hidden + self.scale * self.kept_out * self.constant)
        return result


IDS = torch.arange(5)
MAPPED = {"embed": "left", "first": "left", "norm": "right", "head": "right", "": "right"}


def lowered_tied() -> tuple[Tied, LoweredModule]:
    torch.manual_seed(0)
    model = Tied()
    return model, lower(model, (IDS,), devices=TWO, device_map=MAPPED)


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        lambda lowered, x: export(lowered, (x,)),
        lambda lowered, x: Interpreter(lowered).run(x),
        lambda lowered, x: lowered.forward(x),
        lambda lowered, x: symbolic_trace(lowered)(x),
        lambda lowered, x: symbolic_trace(nn.Sequential(lowered))(x),
        lambda lowered, x: GraphModule(lowered, lowered.graph)(x),
        lambda lowered, x: export(copy.copy(lowered), (x,)),
        lambda lowered, x: export(copy.deepcopy(lowered), (x,)),
        lambda lowered, x: export(nn.Sequential(lowered), (x,)),
        lambda lowered, x: lower(lowered, (x,), devices=TWO),
    ],
)
def test_a_graph_that_is_run_without_its_module_asks_for_the_captured_sizes(run: Callable[[Any, Any], Any]) -> None:
    """It holds numbers that were captured: the mean of five ones was 2.5."""
    lowered = lower(Mean(), (torch.ones(2),), devices=TWO)

    with pytest.raises(InputError, match=FIXED):
        run(lowered, torch.ones(5))
    run(lowered, torch.ones(2))


def test_a_graph_that_is_exported_asks_for_types_and_constants() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, factor: int) -> torch.Tensor:
            return x * factor

    lowered = lower(Scaled(), (torch.ones(2), 3), devices=TWO)

    with pytest.raises(InputError, match="'factor' is 4, but the model was captured for 3 alone"):
        export(lowered, (torch.ones(2), 4))
    with pytest.raises(InputError, match=r"'x' has dtype torch\.int64, but the model takes torch\.float32"):
        export(lowered, (torch.ones(2, dtype=torch.int64), 3))
    lowered.double()
    doubled = torch.ones(2, dtype=torch.float64)
    assert torch.equal(doubled * 3, export(lowered, (doubled, 3)).module()(doubled, 3))


def test_sizes_that_may_change_still_may() -> None:
    class Even(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() / x.shape[0] if x.shape[0] % 2 == 0 else x.sum()

    shapes = {"x": {0: Dim("size", min=2, max=64)}}
    lowered = lower(Mean(), (torch.ones(4),), devices=TWO, dynamic_shapes=shapes)
    branching = lower(Even(), (torch.ones(4),), devices=TWO, dynamic_shapes={"x": {0: Dim.AUTO}})

    exported = export(lowered, (torch.ones(6),), dynamic_shapes=shapes)
    assert torch.equal(torch.tensor(1.0), exported.module()(torch.ones(9)))
    assert torch.equal(torch.tensor(1.0), export(lowered, (torch.ones(7),)).module()(torch.ones(7)))
    with pytest.raises(InputError, match="'x' has size 70 in dimension 0, but the model was captured for 2 to 64"):
        export(lowered, (torch.ones(70),))
    with pytest.raises(InputError, match=r"captured for sizes with .*; the input 'x' has shape \(5,\)"):
        export(branching, (torch.ones(5),))


class Keywords(nn.Module):
    """Keyword inputs, and a dictionary."""

    def forward(self, x: torch.Tensor, *, a: torch.Tensor, b: dict[str, torch.Tensor]) -> torch.Tensor:
        return x + 10 * a + 100 * b["c"] + 1000 * b["d"]


@pytest.mark.parametrize("make", [lambda *given: lower(*given, devices=TWO), lambda *given: export(*given).module()])
def test_a_graph_that_is_captured_again_gets_keywords_in_any_order(make: Callable[..., Any]) -> None:
    """torch.export gives them to a graph by position, in the order in which they come."""
    one, two, three, four = (torch.full((2,), number) for number in (1.0, 2.0, 3.0, 4.0))
    graph = make(Keywords(), (one,), {"a": two, "b": {"c": three, "d": four}})
    expected = one + 10 * two + 100 * three + 1000 * four

    for args, kwargs in (
        ((one,), {"b": {"d": four, "c": three}, "a": two}),
        ((), {"b": {"d": four, "c": three}, "a": two, "x": one}),
    ):
        again = lower(graph, args, kwargs, devices=TWO)
        assert torch.equal(expected, again(*args, **kwargs))
        assert torch.equal(expected, again(one, a=two, b={"c": three, "d": four}))
    with pytest.raises(InputError, match="'b' has another structure than the captured one"):
        lower(graph, (one,), {"a": two, "b": {"c": three}}, devices=TWO)


def test_the_check_is_no_operator_of_what_is_exported() -> None:
    model, lowered = lowered_tied()

    again = export(lowered, (IDS,))
    file = io.BytesIO()
    torch.export.save(again, file)
    file.seek(0)
    loaded = torch.export.load(file).module()

    lowered.graph.eliminate_dead_code()
    assert ["_guards_fn", "left", "right"] == [str(each.target) for each in lowered.graph.find_nodes(op="call_module")]
    assert not again.graph.find_nodes(op="call_module")
    assert torch.equal(model(IDS), loaded(IDS))


def test_the_check_can_be_taken_out() -> None:
    lowered = lower(Mean(), (torch.ones(2),), devices=TWO)

    StripGuards()(lowered)

    lowered.double()
    assert torch.equal(torch.tensor(1.0, dtype=torch.float64), lowered(torch.ones(2, dtype=torch.float64)))
    assert torch.equal(torch.tensor(2.5), Interpreter(lowered).run(torch.ones(5)))
    with pytest.raises(InputError, match="has shape"):
        lowered(torch.ones(5, dtype=torch.float64))


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_model_lowered_twice_has_the_names_of_the_model() -> None:
    model, lowered = lowered_tied()
    again = lower(lowered, (IDS,), devices=TWO)

    assert [*model.state_dict()] == [*again.state_dict()]
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in again.named_parameters()]
    assert [name for name, _ in model.named_buffers()] == [name for name, _ in again.named_buffers()]
    assert {*model.state_dict(), "constant", "kept_out"} == {*again.program.state_dict, *again.program.constants}
    assert {"", "embed", "first", "norm", "head"} == {entry.fqn for entry in again.program.module_call_graph}


def test_a_model_lowered_twice_computes_trains_and_loads_as_the_model_does() -> None:
    model, lowered = lowered_tied()
    again = lower(lower(lowered, (IDS,), devices=TWO), (IDS,), devices=TWO)

    results = model(IDS), again(IDS)
    for result in results:
        result.square().sum().backward()
    gradients = dict(again.named_parameters())
    torch.manual_seed(1)
    other = Tied()
    missing = again.load_state_dict(other.state_dict())

    assert torch.equal(*results)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad)
    assert ([], []) == (missing.missing_keys, missing.unexpected_keys)
    assert again.embed.weight is again.head.weight
    again.kept_out.copy_(other.kept_out)
    assert torch.equal(other(IDS), again(IDS))


def test_a_model_that_holds_a_lowered_one_has_its_names_too() -> None:
    model, lowered = lowered_tied()
    around, plain = nn.Sequential(nn.Identity(), lowered, nn.Linear(10, 2)), nn.Sequential(nn.Identity(), model)
    names = [*plain.state_dict(), "2.weight", "2.bias"]

    again = lower(around, (IDS,), devices=TWO)

    assert names == [*again.state_dict()]
    assert torch.equal(around(IDS), again(IDS))
    again.load_state_dict(around.state_dict())


def test_what_was_put_in_one_part_alone_stays_apart() -> None:
    """Two tensors cannot have one name."""
    _model, lowered = lowered_tied()
    part = lowered.get_submodule(lowered.submodule_of["right"])
    part.head.weight = nn.Parameter(torch.randn(10, 8))  # type: ignore[union-attr]

    again = lower(lowered, (IDS,), devices=TWO)

    assert torch.equal(lowered(IDS), again(IDS))
    assert {"head.weight", "right.head.weight"} <= {*again.state_dict()}
