"""The main job: what goes in comes out the same, from two devices."""

from __future__ import annotations

import copy
import gc
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lowering_models import (
    Answer,
    Conditional,
    Dataclasses,
    InPlace,
    KeyValueCache,
    KeywordsAndDicts,
    Mlp,
    Tied,
    cpu_pair,
)
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from benchmarks.models import chain_program
from examples import bert, resnet
from fxpasses import CaptureError, Device, InfeasibleError, InputError, LoweredModule, PlacementError, lower, place
from fxpasses.cli.demo_model import demo_llama
from fxpasses.partitioners.placing.device_reasons import NONE_FOUND
from fxpasses.passes.placement import copies_of
from fxpasses.units import KiB, MiB


def assert_same(expected: Any, actual: Any) -> None:
    assert pytree.tree_structure(expected) == pytree.tree_structure(actual)
    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
        else:
            assert one == other


def lowered_pair(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
    """Lower onto two devices of which neither holds the whole model."""
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    budget = options.pop("budget", int(held * 0.8) + 24 * KiB)
    devices = options.pop("devices", None) or cpu_pair(budget, budget)
    return lower(model, args, kwargs, devices=devices, **options)


def devices_used(lowered: LoweredModule) -> list[str]:
    return [row.name for row in lowered.report.devices if row.nodes]


@pytest.mark.parametrize("name", ["class", "self", "training", "meta", "report", "plan", "cpu", "_guards_fn"])
def test_a_device_may_have_the_name_of_something_else(name: str) -> None:
    """A part is an attribute of a module, which Python's words and a module's own attributes cannot name."""
    model = Mlp().eval()
    x = torch.randn(2, 64)

    lowered = lowered_pair(model, (x,), devices=[Device(name, 40 * KiB), Device("other", 40 * KiB)])

    assert_same(model(x), lowered(x))
    assert_same(model(x), lowered.forward(x))
    assert [name, "other"] == [part.name for part in lowered.plan.parts]
    assert lowered.report.devices[0].name == name


def test_a_model_too_large_for_one_device_runs_on_two_with_equal_results() -> None:
    model = Mlp().eval()
    x = torch.randn(2, 64)

    lowered = lowered_pair(model, (x,), budget=40 * KiB)

    assert ["left", "right"] == devices_used(lowered)
    assert torch.equal(model(x), lowered(x))
    for row in lowered.report.devices:
        assert row.budget_bytes is not None
        assert row.peak_bytes <= row.budget_bytes


def test_a_model_that_fits_one_device_stays_whole_and_copies_nothing() -> None:
    model = Mlp().eval()
    x = torch.randn(2, 64)

    lowered = lower(model, (x,), devices=cpu_pair())

    assert 1 == len(devices_used(lowered))
    assert [] == copies_of(lowered)
    assert torch.equal(model(x), lowered(x))


def test_each_value_is_copied_once_to_each_device_and_freed_after_its_last_use() -> None:
    """Complaint 28: transfers are explicit nodes, one per (value, device), freed at last use."""
    model = Mlp(6).eval()
    x = torch.randn(2, 64)

    lowered = lowered_pair(model, (x,), budget=60 * KiB)

    copies = copies_of(lowered)
    assert copies
    assert len(copies) == len({(copy_.value, copy_.target) for copy_ in copies})
    for copy_ in copies:
        assert f"{copy_.value}_to_{copy_.target} = None" in lowered.code


@pytest.mark.parametrize("objective", ["latency", "throughput", "memory"])
def test_every_objective_keeps_the_budgets_and_the_results(objective: Any) -> None:
    model = Mlp(6).eval()
    x = torch.randn(2, 64)

    lowered = lowered_pair(model, (x,), budget=60 * KiB, objective=objective)

    assert torch.equal(model(x), lowered(x))
    assert all(row.peak_bytes <= 60 * KiB for row in lowered.report.devices)


def test_keyword_inputs_and_nested_results_keep_their_structure() -> None:
    model = KeywordsAndDicts().eval()
    batch = {"x": torch.randn(3, 8), "y": torch.randn(3, 8)}
    scale = torch.tensor(2.0)

    lowered = lowered_pair(model, (batch,), {"scale": scale}, budget=4 * KiB + 2 * KiB)

    assert_same(model(batch, scale=scale), lowered(batch, scale=scale))
    assert_same(model(batch, scale=scale), lowered(scale=scale, batch=batch))


def test_a_dataclass_comes_out_as_that_dataclass() -> None:
    model = Dataclasses().eval()
    x = torch.randn(3, 8)

    lowered = lowered_pair(model, (x,), budget=6 * KiB)

    answer = lowered(x)
    assert isinstance(answer, Answer)
    assert_same(model(x), answer)


def embedding_apart(torch_device: str) -> list[Device]:
    """Two devices of which only the first can run embeddings, and the second all else."""

    def is_embedding(_submodules: Any, node: torch.fx.Node) -> bool:
        return node.target is torch.ops.aten.embedding.default

    def is_no_embedding(submodules: Any, node: torch.fx.Node) -> bool:
        return not is_embedding(submodules, node)

    rest = Device("rest", torch_device=torch_device, supports=is_no_embedding)
    return [Device("embedder", supports=is_embedding), rest]


def test_tied_weights_stay_one_tensor_and_count_once_a_device() -> None:
    """Complaint 25: tied weights are one storage, and state_dict keeps both names."""
    model = Tied().eval()
    ids = torch.randint(0, 50, (2, 5))

    lowered = lower(model, (ids,), devices=embedding_apart("cpu"))

    assert ["embedder", "rest"] == devices_used(lowered)
    assert torch.equal(model(ids), lowered(ids))
    state = lowered.state_dict()
    assert set(model.state_dict()) >= set(state)
    weight = model.embed.weight
    assert any(value.data_ptr() == weight.data_ptr() for value in state.values())


class Scaled(nn.Module):
    """A product with what another module has, too."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        if isinstance(scale, nn.Parameter):
            self.scale = scale
        else:
            self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) @ self.scale


class SharedScale(nn.Module):
    """Two modules with one parameter, or one buffer that is only read."""

    def __init__(self, is_parameter: bool) -> None:
        super().__init__()
        scale = nn.Parameter(torch.eye(64)) if is_parameter else torch.eye(64)
        self.a, self.b = Scaled(scale), Scaled(scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


@pytest.mark.parametrize("is_parameter", [True, False])
def test_the_report_lists_the_copies_of_shared_state_that_the_plan_counts(is_parameter: bool) -> None:
    """On one torch device it is one tensor; other devices would be sent it, and the figures say so."""
    model = SharedScale(is_parameter).eval()
    options: dict[str, Any] = {"devices": cpu_pair(), "pinned": {"a": "left", "b": "right"}, "objective": "throughput"}
    planned = place(model, (torch.randn(4, 64),), **options)
    lowered = lower(model, (torch.randn(4, 64),), **options)

    assert set(lowered.report.copies) == set(planned.report().copies)
    assert sorted(row.size for row in lowered.report.copies) == [4 * 64 * 4, 64 * 64 * 4]
    assert {row.value for row in lowered.report.copies} == {row["value"] for row in lowered.plan.copies}


def test_a_tied_weight_on_two_kinds_of_device_stays_one_parameter_that_is_copied_in_each_run() -> None:
    """Complaint 25: nothing is trained twice; the copy is a node that gradients flow through."""
    model = Tied().eval()

    lowered = lower(model, (torch.randint(0, 50, (2, 5)),), devices=embedding_apart("meta"))

    weights = [p for name, p in lowered.named_parameters() if p.shape == model.embed.weight.shape]
    assert [model.embed.weight.data_ptr()] == [weight.data_ptr() for weight in weights]
    assert any(copy_.size == 50 * 32 * 4 and copy_.target == "rest" for copy_ in copies_of(lowered))


def test_tied_weights_that_one_device_uses_move_there_under_all_their_names() -> None:
    """Complaint 25: the name that no operator reads is no second parameter, which would stay behind untrained."""
    model = Tied().eval()

    lowered = lower(model, (torch.randint(0, 50, (2, 5)),), devices=[Device("gpu", torch_device="meta")])

    assert len(list(model.parameters())) == len(list(lowered.parameters()))
    assert list(model.state_dict()) == list(lowered.state_dict())
    assert {"meta"} == {value.device.type for value in lowered.state_dict().values()}
    assert lowered.get_parameter("embed.weight") is lowered.get_parameter("head.weight")


class GivingState(torch.nn.Module):
    """A model that returns a buffer that it writes to, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.cache[0] = x[0] + 1
        return self.linear(x + self.cache), self.cache, self.linear.weight


@pytest.mark.parametrize("torch_device", ["meta", "meta:0"])  # a tensor may say less, or more, of where it is
def test_state_that_a_part_uses_and_the_model_returns_is_one_tensor(torch_device: str) -> None:
    """It lives where the part runs, and is copied to where the model would give it, once all is written."""
    lowered = lower(GivingState(), (torch.ones(2, 4),), devices=[Device("gpu", torch_device=torch_device)])

    tensors = {**dict(lowered.named_parameters()), **dict(lowered.named_buffers())}
    assert 3 == len(tensors)
    assert {"meta"} == {value.device.type for value in tensors.values()}
    returned = {each.value: each.source for each in copies_of(lowered) if each.target == "main memory"}
    assert returned.keys() >= {"cache", "linear_weight"}
    assert {"gpu"} == set(returned.values())
    assert ["cpu"] * 3 == [value.meta["val"].device.type for value in lowered.graph.output_node().all_input_nodes]


def test_state_that_the_model_returns_follows_eager_on_one_memory() -> None:
    model, x = GivingState(), torch.ones(2, 4)
    lowered = lower(copy.deepcopy(model), (x,), devices=cpu_pair())

    for run in range(2):
        for expected, found in zip(model(x + run), lowered(x + run), strict=True):
            assert torch.equal(expected, found)


def test_a_cache_that_the_model_writes_to_follows_eager_over_three_steps() -> None:
    """Complaint 18: mutated buffers, persistent or not, keep their meaning in a placed model."""
    model = KeyValueCache().eval()
    x = torch.randn(1, 1, 16)
    lowered = lower(model, (x, torch.tensor([0])), devices=cpu_pair(5 * KiB, 6 * KiB))

    for step in range(3):
        x = torch.randn(1, 1, 16)
        position = torch.tensor([step])
        assert torch.equal(model(x, position), lowered(x, position))
    state = lowered.state_dict()
    assert torch.equal(model.keys, state["keys"])
    assert "calls" not in state


def test_running_the_lowered_model_leaves_the_models_own_buffers_alone() -> None:
    model = KeyValueCache().eval()
    x = torch.randn(1, 1, 16)
    before = copy.deepcopy(model.state_dict())

    lower(model, (x, torch.tensor([0])), devices=[Device("cpu")], check=True)(x, torch.tensor([1]))

    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value)


def test_a_write_between_two_reads_keeps_its_place() -> None:
    """Complaint 1: y = x + 1; x.sin_(); z = x + 2 equals eager after placement."""
    model = InPlace().eval()
    x = torch.randn(2, 16)

    lowered = lower(model, (x,), devices=cpu_pair(3 * KiB, 3 * KiB))

    assert_same(model(x.clone()), lowered(x.clone()))


def test_a_branch_in_the_graph_runs_where_its_part_is() -> None:
    model = Conditional().eval()
    x = torch.randn(2, 16)

    lowered = lower(model, (x,), devices=cpu_pair(2 * KiB, 2 * KiB))

    assert ["left", "right"] == devices_used(lowered)
    for value in (x, -x):
        with torch.no_grad():  # dynamo, under torch.cond, warns about tensors that are no leaves
            assert torch.equal(model(value), lowered(value))


def test_a_dynamic_batch_runs_at_every_size_in_its_range() -> None:
    model = Mlp(6).eval()
    batch = torch.export.Dim("batch", min=2, max=16)

    lowered = lowered_pair(model, (torch.randn(4, 64),), budget=64 * KiB, dynamic_shapes={"x": {0: batch}})

    for size in (2, 5, 16):
        x = torch.randn(size, 64)
        assert torch.equal(model(x), lowered(x))


def test_gradients_flow_through_the_copies() -> None:
    model = Mlp(6)
    x = torch.randn(2, 64)
    lowered = lowered_pair(model, (x,), budget=60 * KiB)

    model(x).sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    lowered(x).sum().backward()

    assert expected
    for name, parameter in model.named_parameters():
        assert torch.equal(expected[name], parameter.grad)


def test_parameters_are_shared_and_a_checkpoint_of_the_model_loads() -> None:
    """Complaint 37: no copy of the model's tensors is made on one device type."""
    model = Mlp(6)
    x = torch.randn(2, 64)
    lowered = lowered_pair(model, (x,), budget=60 * KiB)
    other = Mlp(6)

    assert set(model.state_dict()) == set(lowered.state_dict())
    for name, value in lowered.state_dict().items():
        assert value.data_ptr() == model.state_dict()[name].data_ptr()

    lowered.load_state_dict(other.state_dict())
    assert torch.equal(other(x), lowered(x))


@pytest.mark.parametrize("flavour", ["program", "module_of_program", "symbolic_trace", "decomposed"])
def test_every_flavour_of_graph_is_taken(flavour: str) -> None:
    """Complaints 29 and 30: the same model traced in several ways is placed and runs the same."""
    model = Mlp(6).eval()
    x = torch.randn(2, 64)
    program = torch.export.export(model, (x,))
    given: Any = {
        "program": lambda: program,
        "module_of_program": program.module,
        "symbolic_trace": lambda: torch.fx.symbolic_trace(model),
        "decomposed": program.run_decompositions,
    }[flavour]()

    lowered = lower(given, (x,), devices=cpu_pair(60 * KiB, 60 * KiB))

    assert ["left", "right"] == devices_used(lowered)
    assert torch.equal(model(x), lowered(x))


@pytest.mark.parametrize("name", ["graph", "code", "meta", "recompile", "shape_env"])
def test_a_module_with_a_name_that_graphs_use_is_told_by_that_name(name: str) -> None:
    """torch cannot make a module of the program then; deeper inside the name is free."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Any:
            return getattr(self, name)(x)

    x = torch.randn(2, 4)
    inside = nn.Sequential(Named())

    with pytest.raises(CaptureError) as caught:
        lower(Named(), (x,), devices=[Device("only")])

    assert (
        f"The model has a module, parameter or buffer called {name!r}, and so is something that every GraphModule of "
        "torch.fx has; give it another name." == str(caught.value)
    )
    assert torch.equal(inside(x), lower(inside, (x,), devices=[Device("only")])(x))


@pytest.mark.parametrize("name", ['a"b', "a\nb", "in"])
def test_a_name_that_breaks_the_code_of_a_graph_is_refused(name: str) -> None:
    """Torch writes it between quotes, or as an attribute; that gave a syntax error in code that nobody knows."""
    model = nn.Sequential()
    model.add_module("part", nn.Sequential())
    model.part.add_module(name, nn.Linear(4, 4))

    with pytest.raises(CaptureError, match="which torch cannot write into the code of a graph; give it a name without"):
        lower(model, (torch.randn(2, 4),), devices=[Device("only")])


class Named(nn.Module):
    """A parameter by any name, which is read or not."""

    def __init__(self, name: str, *, is_read: bool) -> None:
        super().__init__()
        self.name, self.is_read = name, is_read
        self.register_parameter(name, nn.Parameter(torch.rand(4)))

    def forward(self, x: Tensor) -> Tensor:
        return x * getattr(self, self.name) if self.is_read else x + 1


@pytest.mark.parametrize("name", ["plan", "report", "program", "submodule_of", "_inputs"])
def test_a_name_that_every_lowered_model_has_is_free_in_parts(name: str) -> None:
    """What no part holds would take the place of it."""
    x = torch.randn(2, 4)
    model, unread = Named(name, is_read=True), Named(name, is_read=False)

    lowered = lower(model, (x,), devices=[Device(name)])
    with pytest.raises(CaptureError) as caught:
        lower(unread, (x,), devices=[Device("only")])

    assert (
        f"The model has a module, parameter or buffer called {name!r} that no part holds alone, and so is something "
        "that every lowered model has; give it another name, or lower a module that holds the model."
        == str(caught.value)
    )
    assert torch.equal(model(x), lowered(x))
    assert list(model.state_dict()) == list(lowered.state_dict())
    for inside in (nn.Sequential(model), nn.Sequential(unread)):
        lowered, given = lower(inside, (x,), devices=[Device("only")]), {f"0.{name}": torch.rand(4)}
        assert torch.equal(
            torch.func.functional_call(inside, given, (x,)), torch.func.functional_call(lowered, given, (x,))
        )


def test_a_model_on_a_device_without_data_can_be_looked_at_but_not_run() -> None:
    """So a plan is tried where its hardware is not; torch itself says that it cannot copy out of a meta tensor."""
    x = torch.randn(2, 64)
    devices = [Device("real"), Device("paper", torch_device="meta")]

    lowered = lower(Mlp(), (x,), devices=devices, device_map={"layers.0": "real", "": "paper"})

    assert ["real", "paper"] == [part.device for part in lowered.plan.parts]
    for each in (lowered, copy.deepcopy(lowered)):
        with pytest.raises(PlacementError) as caught:
            each(x)
        assert (
            "The device 'paper' is the torch device meta, which holds no data: the lowered model can be looked at, not "
            "run; to run it, give another torch_device, such as cpu." == str(caught.value)
        )


def test_a_size_among_the_inputs_says_how_to_compile_without_one() -> None:
    """So torch.compile hands a graph over to its backend when a size has changed."""
    size = ShapeEnv().create_unbacked_symint()

    with pytest.raises(CaptureError) as caught:
        lower(torch.fx.symbolic_trace(Mlp()), (size, torch.randn(2, 64)), devices=[Device("only")])

    assert str(caught.value).startswith(f"Mlp takes the size {size} as an input, as graphs do that torch.compile makes")
    assert str(caught.value).endswith("write torch.compile(..., dynamic=False), and each size gets a graph of its own.")


class Slopes(nn.Module):
    """Derives inside of its forward: of everything, or row by row."""

    def __init__(self, *, by_row: bool = False) -> None:
        super().__init__()
        slope = torch.func.grad(lambda x: x.sin().sum())
        self.slope = torch.vmap(slope) if by_row else slope

    def forward(self, x: Tensor) -> Tensor:
        return self.slope(x)


def test_a_derivative_that_torch_forgets_the_input_of_is_refused() -> None:
    """What was captured gave tensors without data."""
    with pytest.raises(CaptureError) as caught:
        lower(Slopes(), (torch.randn(2, 3),), devices=[Device("only")])

    assert (
        "torch.export cannot capture torch.func.grad, vjp or jacrev, and the forward of Slopes calls one: it forgets "
        "what the function is given. Write it with torch.autograd.grad inside of torch.enable_grad(), or with "
        "torch.func.jvp." == str(caught.value)
    )


class RowsOfRows(nn.Module):
    """Of which torch takes one for a constant, where the inner rows lie along the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        each = torch.vmap(torch.mv, (None, 0))
        return torch.vmap(each, (None, 0))(self.weight, x)


def test_a_value_inside_of_vmap_that_torch_takes_for_a_constant_is_told() -> None:
    """It was said that the forward calls a derivative."""
    with pytest.raises(CaptureError) as caught:
        lower(RowsOfRows(), (torch.randn(2, 3, 8),), devices=[Device("only")])

    assert (
        "torch.export takes a value inside of a torch.vmap in the forward of RowsOfRows for a constant, which has no "
        "data. Write its operators over all rows at once." == str(caught.value)
    )


class Einsums(nn.Module):
    """Operators that torch takes apart by itself, row by row, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda row: torch.einsum("ij,jk->ki", row, self.weight))(x)


def test_measuring_what_is_inside_of_vmap_opens_no_level() -> None:
    """What opens one was called to count it; the next operator failed, and so did all that the process did then."""
    model, x = Einsums(), torch.randn(4, 3, 8)

    lowered = lower(model, (x,), devices=[Device("only")])

    assert 0 == torch._C._functorch.get_dynamic_layer_stack_depth()
    torch.testing.assert_close(lowered(x), model(x))


class RowsUnderAutocast(nn.Module):
    """Rows inside of autocast, or autocast inside of each row."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.inside, self.weight = inside, nn.Parameter(torch.randn(8, 8))

    def cast(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ self.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.inside:
            return torch.vmap(self.cast)(x)
        with torch.autocast("cpu", torch.bfloat16):
            return torch.vmap(lambda row: row @ self.weight)(x)


@pytest.mark.parametrize("inside", [False, True])
def test_rows_may_be_cast(inside: bool) -> None:
    """They were refused as captured with strict=True."""
    model, x = RowsUnderAutocast(inside=inside), torch.randn(4, 3, 8)

    lowered = lower(model, (x,), devices=[Device("only")])

    assert torch.equal(lowered(x), model(x))


def test_a_capture_that_fails_inside_of_vmap_leaves_no_level_open() -> None:
    """torch refused each backward() from then on."""
    with pytest.raises(CaptureError):
        lower(Slopes(by_row=True), (torch.randn(2, 3),), devices=[Device("only")], strict=True)

    assert 0 == torch._C._functorch.get_dynamic_layer_stack_depth()


def test_results_of_a_traced_model_are_plain_lists_and_dicts() -> None:
    """A graph of torch.fx keeps its results frozen; the model and the traced module give what can be written to."""
    model = KeywordsAndDicts().eval()
    batch = {"x": torch.randn(3, 8), "y": torch.randn(3, 8)}
    scale = torch.tensor(2.0)

    lowered = lowered_pair(torch.fx.symbolic_trace(model), (batch,), {"scale": scale}, budget=6 * KiB)

    assert_same(model(batch, scale=scale), lowered(batch, scale=scale))
    assert dict is type(lowered(batch, scale=scale))
    assert list is type(lowered(batch, scale=scale)["extra"][1])


def test_the_check_says_bit_by_bit() -> None:
    model = Mlp().eval()

    lowered = lowered_pair(model, (torch.randn(2, 64),), budget=40 * KiB, check=True)

    assert lowered.report.check is not None
    assert "equal to the model itself, bit by bit (1 tensors)" == lowered.report.check.sentence()


def test_every_operator_says_why_it_sits_where_it_sits() -> None:
    model = Mlp().eval()

    lowered = lowered_pair(model, (torch.randn(2, 64),), budget=40 * KiB)

    assert lowered.report.nodes == len(lowered.report.reasons)
    assert all(why.startswith(("left on left: ", "right on right: ")) for why in lowered.report.reasons.values())


def test_operators_go_where_they_are_supported_and_come_back() -> None:
    """Capability and memory decide together: what an accelerator cannot run goes to the fallback."""

    def only_linear(_submodules: Any, node: torch.fx.Node) -> bool:
        return node.target is torch.ops.aten.linear.default

    model = Mlp(3).eval()
    x = torch.randn(2, 64)
    devices = [Device("npu", supports=only_linear, flops=1e13, bandwidth=1e12), Device("host", flops=1e7)]

    lowered = lower(model, (x,), devices=devices)

    assert torch.equal(model(x), lowered(x))
    placed = lowered.report.reasons
    assert all(why.startswith("host") for key, why in placed.items() if "relu" in key)
    assert any(why.startswith("npu") for why in placed.values())


def test_an_operator_that_no_device_supports_is_named() -> None:
    def nothing(_submodules: Any, node: torch.fx.Node) -> bool:
        return node.target is not torch.ops.aten.relu.default

    said = r"^No device supports relu \(aten\.relu\.default, from .* in forward: .*\); allow it on one of npu, or"
    with pytest.raises(InfeasibleError, match=said):
        lower(Mlp(), (torch.randn(2, 64),), devices=[Device("npu", supports=nothing)])


@pytest.mark.parametrize("name", ["llama", "resnet", "resnet in training", "bert"])
def test_real_models_are_lowered_onto_two_devices_with_budgets_kept(name: str) -> None:
    model, args, kwargs, budget = real_model(name)

    lowered = lower(model, args, kwargs, devices=cpu_pair(budget, budget), check=True)

    assert ["left", "right"] == devices_used(lowered)
    assert all(row.peak_bytes <= budget for row in lowered.report.devices)
    assert lowered.report.check is not None
    assert lowered.report.check.exact
    assert set(model.state_dict()) >= set(lowered.state_dict())


def real_model(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], int]:
    if name == "llama":
        return (*demo_llama(4), 10 * MiB)
    if name == "bert":
        return (*bert.model(), 3 * MiB)
    return (*(resnet.model() if name == "resnet" else resnet.training_model()), {}, 8 * MiB)


@pytest.mark.slow
def test_a_chain_of_twenty_thousand_operators_is_lowered_without_recursion() -> None:
    """Complaint 38: nothing recurses over nodes."""
    program = chain_program(20_000)
    x = torch.randn(3)

    lowered = lower(program, devices=cpu_pair())

    assert 20_000 == lowered.report.nodes
    assert torch.equal(x, lowered(x))


def test_no_device_is_refused() -> None:
    with pytest.raises(InputError, match=r"^There is no device to place the model on; give at least one"):
        lower(Mlp(), (torch.randn(2, 64),), devices=[])


def test_two_devices_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match=r"^Two devices are called 'a'; give each its own name\.$"):
        lower(Mlp(), (torch.randn(2, 64),), devices=[Device("a"), Device("a")])


def test_a_model_that_torch_cannot_export_shows_the_reason_and_the_users_line() -> None:
    class Undecided(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return x + 1
            return x - 1

    with pytest.raises(CaptureError) as caught:
        lower(Undecided(), (torch.randn(3),), devices=[Device("cpu")])

    assert str(caught.value).startswith("torch.export cannot capture Undecided: ")
    assert "in forward: if x.sum() > 0:" in str(caught.value)


def test_an_operator_without_a_fake_kernel_is_named_with_what_to_do() -> None:
    """Torch says the name of the operator, and nothing else."""
    with torch.library._scoped_library("fxpasses_tests", "FRAGMENT") as library:
        library.define("undescribed(Tensor x) -> Tensor")
        library.impl("undescribed", torch.neg, "CPU")

        class Undescribed(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.fxpasses_tests.undescribed(x)

        with pytest.raises(CaptureError) as caught:
            lower(Undescribed(), (torch.randn(3),), devices=[Device("cpu")])

    assert str(caught.value).startswith(
        "torch.export cannot capture Undescribed: fxpasses_tests.undescribed.default has no fake kernel; add one with "
        "torch.library.register_fake('fxpasses_tests::undescribed')\n  at "
    )


def test_a_result_that_torch_cannot_take_apart_is_named_with_what_to_do() -> None:
    """As the cache of a language model; torch asks to leave a comment in its tracker."""

    class Cache:
        pass

    class Caching(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Cache]:
            return x + 1, Cache()

    with pytest.raises(CaptureError) as caught:
        lower(Caching(), (torch.randn(3),), devices=[Device("cpu")])

    assert "it returns a test_lowering.test_a_result_that_torch_" in str(caught.value)
    assert "Cache, which torch does not know how to take apart; leave it out (a cache of Hugging Face: " in str(
        caught.value
    )
    assert "leave a comment" not in str(caught.value)


def test_a_program_with_a_backward_is_refused_instead_of_losing_its_gradients(tmp_path: Path) -> None:
    from torch.export.experimental import _export_forward_backward

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).square().mean()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _export_forward_backward(torch.export.export(Loss(), (torch.randn(2, 4),)))
        torch.export.save(program, tmp_path / "joint.pt2")

    for given in (program, tmp_path / "joint.pt2"):
        with pytest.raises(CaptureError, match="This program holds a backward as well, whose gradients would be lost"):
            lower(given, devices=[Device("cpu")])


def test_offloading_is_named_where_no_placement_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing proves then that there is none; a slip in what is asked for is told without it."""
    found = PlacementError("No placement was found.", reason=NONE_FOUND)
    slip = PlacementError("There is no objective 'speed'.")
    place = Mock(side_effect=[found, slip])
    monkeypatch.setattr("fxpasses.lowering.model_placement.place_measured", place)

    with pytest.raises(PlacementError, match=r'^No placement was found\. Or allow offload="cpu": parameters'):
        lower(Mlp(1), (torch.randn(2, 64),), devices=cpu_pair())
    with pytest.raises(PlacementError, match=r"^There is no objective 'speed'\.$"):
        lower(Mlp(1), (torch.randn(2, 64),), devices=cpu_pair())


def test_sizes_that_cannot_change_as_asked_are_told_with_why_and_what_could() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(3, 4) * 2

    with pytest.raises(CaptureError) as caught:
        lower(Fixed(), (torch.randn(12),), devices=[Device("cpu")], dynamic_shapes=({0: torch.export.Dim("batch")},))

    first, why, *fixes, what = str(caught.value).splitlines()
    assert "torch.export cannot capture Fixed: Constraints violated (batch)!" == first
    assert "You marked batch as dynamic but your code specialized it to be a constant (12)" in why
    assert ["Suggested fixes:", "  batch = 12"] == fixes
    assert "Change the model or dynamic_shapes, or hand over a program that is exported already." == what


def test_a_single_op_too_large_for_every_device_is_named_with_its_bytes() -> None:
    with pytest.raises(InfeasibleError) as caught:
        lower(Mlp(1, 256), (torch.randn(2, 256),), devices=cpu_pair(100 * KiB, 120 * KiB))

    assert (
        "linear (aten.linear.default) needs 261 KiB on one device for what it reads and makes, but the largest device "
        "that can run it has 120 KiB: 141 KiB are missing"
    ) in str(caught.value)
    assert 261 * KiB - 120 * KiB == caught.value.missing_bytes


def test_a_model_too_large_for_all_devices_says_by_how_much() -> None:
    with pytest.raises(InfeasibleError) as caught:
        lower(Mlp(8), (torch.randn(2, 64),), devices=cpu_pair(50 * KiB, 50 * KiB))

    assert str(caught.value).startswith("The model needs 13")
    assert "but all devices together have 100 KiB (left 50.0 KiB, right 50.0 KiB): " in str(caught.value)
    assert caught.value.missing_bytes is not None
    assert caught.value.missing_bytes > 30 * KiB


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "The input 'x' is missing; the model takes x."),
        ((torch.zeros(2, 64), 1), "The model takes 1 input (x), but 2 came."),
        (
            (torch.zeros(3, 64),),
            "The input 'x' has shape (3, 64), but the model was captured for (2, 64): dimension 0 is fixed at 2.",
        ),
        (
            (torch.zeros(2, 64, dtype=torch.float64),),
            "The input 'x' has dtype torch.float64, but the model takes torch.float32.",
        ),
        (
            ([torch.zeros(2, 64)],),
            "The input 'x' has another structure than the captured one: a list of 1 instead of one value.",
        ),
        ((3,), "The input 'x' is a int, but the model was captured with a tensor there."),
    ],
)
def test_arguments_that_do_not_fit_the_captured_shapes_are_refused(args: tuple[Any, ...], sentence: str) -> None:
    lowered = lower(Mlp(), (torch.randn(2, 64),), devices=[Device("cpu")])

    with pytest.raises(InputError) as caught:
        lowered(*args)

    assert sentence == str(caught.value)


def test_a_dynamic_size_out_of_its_range_is_refused() -> None:
    batch = torch.export.Dim("batch", min=2, max=16)
    lowered = lower(Mlp(), (torch.randn(4, 64),), devices=[Device("cpu")], dynamic_shapes={"x": {0: batch}})

    with pytest.raises(InputError, match=r"has size 17 in dimension 0, but the model was captured for 2 to 16\.$"):
        lowered(torch.randn(17, 64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_parts_really_run_on_cuda_and_cpu() -> None:
    model = Mlp(6)
    x = torch.randn(2, 64)
    devices = [Device("gpu", 60 * KiB, torch_device="cuda:0"), Device("host", 60 * KiB)]

    lowered = lower(model, (x,), devices=devices)

    assert {"cuda", "cpu"} == {p.device.type for p in lowered.parameters()}
    torch.testing.assert_close(model(x), lowered(x))
    assert "cpu" == lowered(x).device.type
    lowered(x).sum().backward()
    assert all(p.grad is not None for p in lowered.parameters())
    with torch.no_grad():
        lowered(x)
        gc.collect()
        before = torch.cuda.memory_allocated()
        lowered(x)
    gc.collect()
    assert before == torch.cuda.memory_allocated()


def test_what_is_cut_off_from_gradients_stays_cut_off() -> None:
    """A straight-through estimator: its gradient is that of the model, not that of rounding."""

    class StraightThrough(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.layer(x)
            return hidden + (hidden.round() - hidden).detach()

    model, x = StraightThrough(), torch.randn(2, 4)
    lowered = lower(copy.deepcopy(model), (x,), devices=[Device("only")])

    model(x).sum().backward()
    lowered(x).sum().backward()

    ours = {lowered.qualified_names.get(name, name): value.grad for name, value in lowered.named_parameters()}
    assert all(torch.equal(value.grad, ours[name]) for name, value in model.named_parameters())  # type: ignore[arg-type]


class Mixing(nn.Module):
    """Layers between products with sparse matrices: a buffer, and what is given."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("mixing", torch.eye(4).roll(1).to_sparse(layout=layout))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return torch.sparse.mm(self.mixing, self.second(torch.sparse.mm(other, self.first(x))))


@pytest.mark.filterwarnings("ignore:Sparse C:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize("first", ["left", "right"])
def test_matrices_of_rows_that_have_no_strides_are_used_and_copied(layout: torch.layout, first: str) -> None:
    devices = [Device("left"), Device("right", torch_device="cpu:1")]
    second = "left" if first == "right" else "right"
    model, given = Mixing(layout), (torch.randn(4, 4), torch.eye(4).roll(1, 1).to_sparse(layout=layout))
    lowered = lower(model, given, devices=devices, pinned={"first": first, "second": second})

    assert torch.equal(model(*given), lowered(*given))
