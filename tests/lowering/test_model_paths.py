"""The model's own paths in a lowered model: what torch's tools make of the names of a state dict."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from lowering_models import Mlp, cpu_pair
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict
from torch.func import functional_call, grad

from fxpasses import Device, LoweredModule, lower
from fxpasses.lowering.submodule_names import submodule_names


class Speaking(nn.Module):
    """A tied weight, a parameter of its own, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        self.count.add_(1)
        hidden = self.embed(ids) * self.scale
        for layer in self.layers:
            hidden = layer(hidden).relu()
        result: Tensor = self.head(hidden) + self.count
        return result


IDS = torch.arange(6)
MAPS = (
    {"": "left"},
    {"": "left", "layers.1": "right", "head": "right"},
    {"": "right", "head": "left", "layers.0": "left"},
)
maps = pytest.mark.parametrize("device_map", MAPS, ids=("one device", "tied over two", "there and back"))


def pair(device_map: dict[str, str]) -> tuple[Speaking, LoweredModule]:
    model = Speaking()
    return model, lower(copy.deepcopy(model), (IDS,), devices=cpu_pair(), device_map=device_map)


def state(model: nn.Module) -> dict[str, Tensor]:
    """Other numbers for all that the model has; what is tied once."""
    torch.manual_seed(0)
    return {name: torch.rand_like(each) for name, each in model.state_dict().items() if name != "head.weight"}


@maps
def test_a_functional_call_takes_the_models_names(device_map: dict[str, str]) -> None:
    model, lowered = pair(device_map)
    before, held = copy.deepcopy(lowered.state_dict()), [*lowered.parameters()]

    result = functional_call(lowered, state(model), (IDS,))

    torch.testing.assert_close(result, functional_call(model, state(model), (IDS,)))

    assert all(one is other for one, other in zip(held, lowered.parameters(), strict=True))
    torch.testing.assert_close(lowered.state_dict(), before, rtol=0, atol=0)
    around = functional_call(nn.Sequential(lowered), {f"0.{name}": each for name, each in state(model).items()}, (IDS,))
    torch.testing.assert_close(around, result)


@maps
def test_gradients_of_a_functional_call_are_the_models(device_map: dict[str, str]) -> None:
    model, lowered = pair(device_map)
    given = state(model)
    count = given.pop("count")

    def gradients(module: nn.Module) -> dict[str, Tensor]:
        return grad(lambda each: functional_call(module, {**each, "count": count.clone()}, (IDS,)).square().sum())(
            given
        )

    torch.testing.assert_close(gradients(lowered), gradients(model))


@maps
def test_a_tied_weight_is_given_once(device_map: dict[str, str]) -> None:
    """Torch refuses two values for what is tied in a model; here the second name says so, and nothing is left of it."""
    model, lowered = pair(device_map)
    held, given = [*lowered.parameters()], state(model)

    with pytest.raises(ValueError, match="tied"):
        functional_call(lowered, {**given, "head.weight": torch.zeros(11, 8)}, (IDS,))

    assert all(one is other for one, other in zip(held, lowered.parameters(), strict=True))
    assert lowered.get_parameter("embed.weight") is lowered.get_parameter("head.weight")


@maps
def test_checkpoints_of_models_and_optimizers_go_there_and_back(device_map: dict[str, str]) -> None:
    model, lowered = pair(device_map)
    optimizer = torch.optim.Adam(lowered.parameters())
    lowered(IDS).sum().backward()
    optimizer.step()

    kept, steps = get_state_dict(lowered, optimizer)
    kept = copy.deepcopy(kept)
    lowered.load_state_dict(model.state_dict())
    set_state_dict(lowered, optimizer, model_state_dict=kept, optim_state_dict=steps)

    assert list(get_model_state_dict(model)) == list(kept)
    torch.testing.assert_close(dict(lowered.state_dict()), kept, rtol=0, atol=0)


@maps
@pytest.mark.parametrize("around", [nn.Sequential, lambda module: module], ids=("inside", "itself"))
def test_an_optimizers_checkpoint_has_the_models_names(
    device_map: dict[str, str], around: Callable[[nn.Module], nn.Module]
) -> None:
    """Those of the model and of the lowered model are the same, and each is loaded by the other."""
    modules = [around(each) for each in pair(device_map)]
    optimizers, kept = [], []
    for module in modules:
        decayed = {"params": [each for name, each in module.named_parameters() if "layers" in name]}
        other = {"params": [each for name, each in module.named_parameters() if "layers" not in name], "lr": 0.5}
        optimizers.append(torch.optim.Adam([decayed, other]))
        module(IDS).square().sum().backward()
        optimizers[-1].step()
        kept.append(copy.deepcopy(get_state_dict(module, optimizers[-1])))

    (state, steps), (our_state, our_steps) = kept
    assert steps["param_groups"] == our_steps["param_groups"]
    torch.testing.assert_close((our_state, our_steps["state"]), (state, steps["state"]))
    for module, optimizer, (state, steps) in zip(modules, optimizers, reversed(kept), strict=True):
        set_state_dict(module, optimizer, model_state_dict=copy.deepcopy(state), optim_state_dict=copy.deepcopy(steps))
        now, steps_now = get_state_dict(module, optimizer)
        torch.testing.assert_close((now, steps_now["state"]), (state, steps["state"]), rtol=0, atol=0)


@maps
def test_parameters_and_buffers_are_listed_under_the_models_names(device_map: dict[str, str]) -> None:
    model, lowered = pair(device_map)

    for ours, own in ((lowered, model), (nn.Sequential(lowered), nn.Sequential(model))):
        assert [name for name, _ in own.named_parameters("net")] == [name for name, _ in ours.named_parameters("net")]
        torch.testing.assert_close(dict(ours.named_parameters()), dict(own.named_parameters()))
        torch.testing.assert_close(dict(ours.named_buffers()), dict(own.named_buffers()))
    for name, parameter in lowered.named_parameters():
        assert lowered.get_parameter(name) is parameter
    assert {*lowered.qualified_names} <= {
        *dict(lowered.named_parameters(remove_duplicate=False)),
        *dict(lowered.named_buffers(remove_duplicate=False)),
    }


@maps
def test_tensors_are_found_and_set_by_the_models_paths(device_map: dict[str, str]) -> None:
    model, lowered = pair(device_map)

    for name, parameter in model.named_parameters():
        assert torch.equal(lowered.get_parameter(name), parameter)
    assert torch.equal(lowered.get_buffer("count"), model.count)
    assert torch.equal(lowered.layers.get_submodule("1").weight, model.layers[1].weight)
    for each in (model, lowered):
        each.scale = nn.Parameter(torch.full((8,), 2.0))
        each.get_submodule("layers.0").bias = nn.Parameter(torch.ones(8))
    torch.testing.assert_close(lowered(IDS), model(IDS))
    assert len(list(lowered.parameters())) == len(list(model.parameters()))


def test_what_the_model_does_not_have_is_said() -> None:
    _model, lowered = pair(MAPS[1])

    with pytest.raises(AttributeError, match="'LoweredModule' object has no attribute 'nothing'"):
        _ = lowered.nothing
    with pytest.raises(AttributeError, match=r"the model has no layers.0.nothing"):
        _ = lowered.get_submodule("layers.0").nothing
    with pytest.raises(NotImplementedError) as caught:
        lowered.get_submodule("layers.0")(torch.rand(8))
    assert str(caught.value) == (
        "layers.0 is a path to the model's tensors; its operators run in the parts. Call the model."
    )


class Nested(nn.Module):
    """A tied weight inside of a module that has more, and a statistic that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"embed": nn.Embedding(11, 8), "middle": nn.Linear(8, 8)})
        self.body.register_buffer("unused", torch.ones(3))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.body["embed"].weight

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.body["middle"](self.body["embed"](ids)))
        return result


@pytest.mark.parametrize("device_map", [{"": "left"}, {"": "left", "head": "right"}], ids=("one device", "two"))
@pytest.mark.parametrize(
    "made", [lambda lowered: lowered, copy.deepcopy, lambda lowered: pickle.loads(pickle.dumps(lowered))]
)
def test_a_module_that_is_here_for_what_is_shared_leads_to_the_rest(
    device_map: dict[str, str], made: Callable[[LoweredModule], LoweredModule]
) -> None:
    model = Nested()
    lowered = made(lower(copy.deepcopy(model), (IDS,), devices=cpu_pair(), device_map=device_map))
    given = {name: torch.rand_like(each) for name, each in model.state_dict().items() if name != "head.weight"}

    assert torch.equal(lowered.get_parameter("body.middle.weight"), model.body["middle"].weight)
    assert lowered.get_parameter("body.embed.weight") is lowered.get_parameter("head.weight")
    assert torch.equal(lowered.get_buffer("body.unused"), torch.ones(3))
    torch.testing.assert_close(functional_call(lowered, given, (IDS,)), functional_call(model, given, (IDS,)))
    torch.testing.assert_close(dict(get_model_state_dict(lowered)), dict(get_model_state_dict(model)))
    assert list(lowered.state_dict()) == list(model.state_dict())


def test_lists_of_modules_are_indexed() -> None:
    model = Mlp(3, 8)
    lowered = lower(model, (torch.randn(2, 8),), devices=cpu_pair(), device_map={"layers.1": "right", "": "left"})

    assert lowered.layers[1].weight is model.layers[1].weight
    with pytest.raises(IndexError, match=r"^the model has no layers\.3$"):
        lowered.layers[3]


class Named(nn.Module):
    """A parameter at the top, and a module with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.gpu_1 = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(self.gpu_1(self.encoder(x)) @ self.weight)
        return hidden


@pytest.mark.parametrize("devices", [("encoder", "weight"), ("gpu", "on_encoder"), ("weight", "gpu_1")])
def test_a_part_takes_no_name_from_the_model(devices: tuple[str, str]) -> None:
    model, x = Named(), torch.randn(2, 8)
    first, second = devices
    pair = [Device(first), Device(second)]
    lowered = lower(copy.deepcopy(model), (x,), devices=pair, device_map={"": first, "gpu_1": second})
    given = {name: torch.rand_like(each) for name, each in model.state_dict().items()}

    assert [part.name for part in lowered.plan.parts] == list(lowered.submodule_of) == [first, second, f"{first}_1"]
    assert torch.equal(lowered(x), model(x))
    for name, parameter in model.named_parameters():
        assert torch.equal(lowered.get_parameter(name), parameter)
    torch.testing.assert_close(functional_call(lowered, given, (x,)), functional_call(model, given, (x,)))
    torch.testing.assert_close(dict(get_model_state_dict(lowered)), dict(get_model_state_dict(model)))
    assert torch.equal(lowered(x), model(x))


def test_parts_whose_names_the_model_has_are_told_apart() -> None:
    """Names that become one identifier, and a name that would be free but for another part."""
    program = torch.export.export(Named(), (torch.randn(2, 8),))
    names = submodule_names(["encoder", "on_encoder", "on encoder", "report", "plain"], program)

    assert ["on_encoder", "on_on_encoder", "on_on_on_encoder", "on_report", "plain"] == [*names.values()]


def test_a_module_may_have_tensors_by_any_name() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.root, self.path, self.names = (nn.Parameter(torch.rand(2, 2)) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.root @ self.path @ self.names

    model, x = nn.Sequential(Holder()), torch.randn(2, 2)
    lowered = lower(copy.deepcopy(model), (x,), devices=cpu_pair(), device_map={"": "left"})
    given = {name: torch.rand_like(each) for name, each in model.state_dict().items()}

    torch.testing.assert_close(functional_call(lowered, given, (x,)), functional_call(model, given, (x,)))
