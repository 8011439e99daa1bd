"""A model, or much of it, inside of autocast or a grad mode is shared out over devices like any other."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, InfeasibleError, LoweredModule, lower, place
from fxpasses.errors import PlanError
from fxpasses.lowering import load, save
from fxpasses.outlining.regions import is_region, switches_regions
from fxpasses.partitioners import place_by_device
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.plan import Plan
from fxpasses.programs import capture

WIDTH = 32
LAYER = WIDTH * (WIDTH + 1) * 4


def lower_precision(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


class Layers(nn.Module):
    """Six layers, a norm, a dropout, and two buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros(()))


class Whole(Layers):
    """All of it under autocast, with random operators."""

    def forward(self, x: Tensor) -> Tensor:
        with lower_precision():
            for layer in self.layers:
                x = self.drop(torch.relu(layer(x)))
            return self.norm(x)


class Decorated(Layers):
    """Without gradients, by a decorator."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.drop(torch.relu(layer(x)))
        return self.norm(x)


class Half(Layers):
    """The second half is under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:3]:
            x = torch.relu(layer(x))
        with lower_precision():
            for layer in self.layers[3:]:
                x = self.drop(torch.relu(layer(x)))
        return self.norm(x.float()) + x


class InARow(Layers):
    """One region behind the other, one of them switched off."""

    def forward(self, x: Tensor) -> Tensor:
        with lower_precision():
            for layer in self.layers[:2]:
                x = torch.relu(layer(x))
        with lower_precision(enabled=False):
            for layer in self.layers[2:4]:
                x = torch.relu(layer(x.float()))
        with lower_precision():
            for layer in self.layers[4:]:
                x = torch.relu(layer(x))
        return self.norm(x)


class FrozenTrunk(Layers):
    """A trunk without gradients, with layers in lower precision inside of it; then layers that are trained."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = torch.relu(self.layers[0](x))
            with lower_precision():
                for layer in self.layers[1:4]:
                    x = torch.relu(layer(x))
            self.seen.copy_(x[0])
        x = x.float() + 1
        for layer in self.layers[4:]:
            x = self.drop(layer(x))
        return self.norm(x)


class Writes(Layers):
    """Values, views and buffers are written inside of regions."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        with lower_precision():
            y = self.layers[0](x)
            x.mul_(2)
            z = self.layers[1](x)
            x.add_(z)
            self.seen += x.mean(0)
            x[:, :4].zero_()
            y = y + self.layers[2](x)
            y.relu_()
        with torch.no_grad():
            self.count.add_(self.layers[3](x).sum())
            t = self.layers[4](x)
        return self.layers[5](x + t) + y


KINDS = (Whole, Decorated, Half, InARow, FrozenTrunk, Writes)


def three_devices(layers: float = 3.3) -> list[Device]:
    """They stand for others: what this machine's kernels lay out in half precision is as much as a layer."""
    return [Device(name, int(layers * LAYER), is_fake=True) for name in ("left", "middle", "right")]


def x() -> Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))


def run(module: nn.Module, given: Tensor, seed: int) -> Tensor:
    torch.manual_seed(seed)
    result: Tensor = module(given)
    return result


def assert_alike(model: nn.Module, lowered: LoweredModule, steps: int = 2) -> None:
    """Outputs, gradients of inputs and parameters, and buffers, bit for bit."""
    for step in range(steps):
        given = [x().requires_grad_() for _ in range(2)]
        want, found = run(model, given[0], step), run(lowered, given[1], step)
        assert torch.equal(want, found)
        assert (want.dtype, want.requires_grad) == (found.dtype, found.requires_grad)
        if want.requires_grad:
            want.float().square().sum().backward()
            found.float().square().sum().backward()
            assert (given[0].grad is None) == (given[1].grad is None)
            assert given[0].grad is None or torch.equal(given[0].grad, given[1].grad)
    own = {lowered.qualified_names.get(name, name): each for name, each in lowered.named_parameters()}
    for name, parameter in model.named_parameters():
        if name in own:
            assert (parameter.grad is None) == (own[name].grad is None)
            assert parameter.grad is None or torch.equal(parameter.grad, own[name].grad)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, lowered.state_dict()[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_model_inside_of_a_region_is_shared_out(kind: type[Layers], mode: str) -> None:
    """It fits no device alone; on three it computes, trains and writes what it does in one piece."""
    model = kind().train(mode == "train")
    lowered = lower(copy.deepcopy(model), (x(),), devices=three_devices())

    assert {"left", "middle", "right"} == {part.device for part in lowered.plan.parts}
    assert_alike(model, lowered)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("kind", [Whole, FrozenTrunk])
def test_it_is_placed_for_training(kind: type[Layers]) -> None:
    """What autograd saves is known operator by operator, as in a model without regions."""
    model = kind().train()
    devices = three_devices(14)
    lowered = lower(copy.deepcopy(model), (x(),), devices=devices, training=Training(optimizer_slots=2))

    assert 1 < len(lowered.plan.parts)
    assert_alike(model, lowered)


def test_each_part_has_a_body_of_its_own() -> None:
    """Adjacent operators are in one region again; no marker is left, and copies are called after what they copy."""
    lowered = lower(Whole().eval(), (x(),), devices=three_devices())
    parts = [lowered.get_submodule(name) for name in lowered.submodule_of.values()]

    assert [1, 1, 1] == [sum(map(is_region, part.graph.nodes)) for part in parts]
    assert not any(switches_regions(node) for part in parts for node in part.graph.nodes)
    assert all(copied.value.startswith(("linear", "relu")) for copied in lowered.report.copies)


def test_plans_name_the_operators_inside() -> None:
    """Keys are those of the model without its region: one plan is for both, after another export, too."""

    class Bare(Whole):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = self.drop(torch.relu(layer(x)))
            return self.norm(x)

    model = Whole().eval()
    lowered = lower(copy.deepcopy(model), (x(),), devices=three_devices())
    plan = Plan.from_json(lowered.plan.to_json())
    bare = Bare().eval()
    bare.load_state_dict(model.state_dict())

    assert "layers.0/*" in plan.parts[0].ops
    assert [] == plan.check(place(copy.deepcopy(model), (x(),), plan=plan).prepared.graph_module)
    assert_alike(model, lower(copy.deepcopy(model), (x(),), plan=plan))
    assert_alike(bare, lower(copy.deepcopy(bare), (x(),), plan=plan))


def test_plans_are_checked_simulated_and_pickled() -> None:
    """The program that a lowered module keeps has its regions closed; all that follows a plan opens them."""
    model = Whole().eval()
    lowered = lower(copy.deepcopy(model), (x(),), devices=three_devices())
    simulated = lowered.plan.simulate(lowered.program, detail="ops")

    assert [] == lowered.plan.check(lowered.program)
    assert 13 <= len(simulated.timeline.spans)
    assert_alike(model, pickle.loads(pickle.dumps(lowered)))


def test_parameters_are_loaded_where_devices_are_too_small() -> None:
    """Offloading goes part by part through a region."""
    model = Whole().eval()
    lowered = lower(copy.deepcopy(model), (x(),), devices=[Device("small", 4 * LAYER, is_fake=True)], offload="cpu")

    assert lowered.plan.offloaded
    assert_alike(model, lowered)


def test_modules_inside_follow_maps_and_pins() -> None:
    """A device map and a pin reach into the region that its model runs in."""
    device_map = {"": "left", "layers.3": "right", "layers.4": "right"}
    model = Decorated().eval()
    mapped = lower(copy.deepcopy(model), (x(),), devices=[Device("left"), Device("right")], device_map=device_map)
    pins = {"layers.0": "left", "layers.3": "right"}
    pinned = place(model, (x(),), devices=[Device("left"), Device("right")], pinned=pins)

    assert device_map == mapped.plan.device_map(strict=False)
    assert_alike(model, mapped)
    assert pins.items() <= {op.removesuffix("/*"): part.device for part in pinned.plan.parts for op in part.ops}.items()


def test_cheap_values_inside_are_computed_again() -> None:
    """What is pure and used in the same region is computed where it is used instead of being sent."""

    class Masked(Layers):
        def forward(self, x: Tensor) -> Tensor:
            with lower_precision():
                mask = torch.arange(WIDTH).expand(256, WIDTH) % 7 > 2
                for layer in self.layers:
                    x = layer(x) * mask
                return x

    given = torch.randn(256, WIDTH)
    model = Masked()
    pins = {"layers.0": "left", "layers.2": "left", "layers.3": "right"}
    lowered = lower(
        model, (given,), devices=[Device("left"), Device("right")], pinned=pins, replicate="always", check=True
    )

    assert any("gt#0" in op for part in lowered.plan.parts for op in part.again)
    assert lowered.report.check is not None
    assert lowered.report.check.exact


def test_who_places_a_closed_region_is_told_how_to_open_it() -> None:
    """A partitioner changes no graph; it says why this one cannot be cut, and so does a plan."""
    model = Whole().eval()
    closed = capture(copy.deepcopy(model), (x(),)).module(check_guards=False)
    with pytest.raises(InfeasibleError, match=r"one operator because torch.export makes one .* OpenRegions\(\)"):
        place_by_device(closed, three_devices())
    with pytest.raises(PlanError, match=r"as one operator: OpenRegions\(\) opens it"):
        place(model, (x(),), devices=three_devices()).plan.assign(closed)


def test_who_follows_an_old_plan_is_told_to_place_again() -> None:
    """A plan that names a region was made when it was one operator."""
    old = place(Whole().eval(), (x(),), devices=[Device("only")]).plan.to_json()
    old["parts"][0]["ops"] = ["/wrap_with_autocast#0", "/getitem#0"]
    with pytest.raises(PlanError, match="regions of autocast and of grad modes are placed operator by operator"):
        lower(Whole().eval(), (x(),), plan=Plan.from_json(old))


def test_a_branch_that_is_too_large_says_that_it_is_one_operator() -> None:
    """What a condition runs cannot be cut; the message says so."""

    class Branches(Layers):
        def forward(self, x: Tensor) -> Tensor:
            def deep(x: Tensor) -> Tensor:
                for layer in self.layers:
                    x = layer(x)
                return x

            return torch.cond(x.sum() > 0, deep, torch.clone, (x,))

    with pytest.raises(InfeasibleError, match="cond is one operator with all that its body runs"):
        lower(Branches(), (x(),), devices=three_devices())


def test_a_region_may_write_and_give_nothing() -> None:
    """It needs memory for itself and has no result to count."""

    class Scales(Layers):
        def forward(self, x: Tensor) -> Tensor:
            y = self.layers[0](x).clone()
            flat = y.view(-1)
            with lower_precision():
                y.mul_((y * 2).mean())
            return self.layers[1](flat.view(4, WIDTH))

    model = Scales()
    lowered = lower(copy.deepcopy(model), (x(),), devices=[Device("only")])

    assert_alike(model, lowered)


class BranchInside(Layers):
    """A condition under autocast: torch then leaves the region open, between markers."""

    def forward(self, x: Tensor) -> Tensor:
        with lower_precision():
            x = self.layers[0](x)
            x = torch.cond(x.sum() > 0, lambda x: self.layers[1](x).relu(), torch.sin, (x,))
            for layer in self.layers[2:]:
                x = layer(x)
            return x


def test_a_region_that_torch_left_open_is_shared_out_and_saved(tmp_path: Path) -> None:
    """Torch cannot save its markers; the program of a lowered module has a body instead."""
    model = BranchInside()
    lowered = lower(copy.deepcopy(model), (x(),), devices=three_devices())
    save(lowered, tmp_path / "lowered")

    assert 1 < len(lowered.plan.parts)
    assert not any(switches_regions(node) for node in lowered.program.graph.nodes)
    assert [] == lowered.plan.check(lowered.program)
    with torch.no_grad():  # torch's own cond warns of gradients
        for each in (lowered, load(tmp_path / "lowered"), pickle.loads(pickle.dumps(lowered))):
            assert torch.equal(model(x()), each(x()))
