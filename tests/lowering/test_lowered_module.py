"""A lowered model is a module like others: trained, saved, copied and pickled."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from lowering_models import Answer, Dataclasses, KeyValueCache, Mlp, Tied, cpu_pair
from torch import Tensor, nn

from fxpasses import Device, InputError, LoweredModule, load, lower, place, save
from fxpasses.lowering.captured_mode import captured_otherwise
from fxpasses.passes.placement import loads_of
from fxpasses.plan import PartPlan
from fxpasses.plan.keys import stable_keys
from fxpasses.units import KiB


class Training(nn.Module):
    """What behaves differently in training: running statistics and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.drop, self.second = nn.Dropout(0.3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(torch.relu(self.norm(self.first(x)))))


def in_two(model: nn.Module, *args: Any) -> LoweredModule:
    names = [name for name, _ in model.named_children()]
    device_map = {name: "left" if index < len(names) // 2 else "right" for index, name in enumerate(names)}
    return lower(model, args, devices=cpu_pair(), device_map={**device_map, "": "left"})


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[Tensor]:
    """The losses of a few steps."""
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        x, wanted = torch.randn(6, 8), torch.randn(6, 4)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_training_on_two_devices_follows_the_model() -> None:
    """Losses, weights and running statistics of five steps with Adam, to the last bit."""
    reference = Training().train()
    lowered = in_two(copy.deepcopy(reference), torch.randn(6, 8))
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (reference, lowered)]

    losses = [trained(each, optimizer, 5) for each, optimizer in zip((reference, lowered), optimizers, strict=True)]

    assert losses[0] == losses[1]
    assert list(reference.state_dict()) == list(lowered.state_dict())
    for name, value in reference.state_dict().items():
        assert torch.equal(value, lowered.state_dict()[name])


def test_a_model_that_is_lowered_in_inference_mode_can_be_trained() -> None:
    """What was moved to a device, or copied because it is written to, could only be used in that mode."""
    reference = Training().train()
    model = copy.deepcopy(reference)
    devices = [Device("left"), Device("right", torch_device="cpu:1")]  # main memory, and yet another torch device
    with torch.inference_mode():
        lowered = lower(model, (torch.randn(6, 8),), devices=devices, device_map={"second": "right", "": "left"})

    expected, actual = (trained(each, torch.optim.SGD(each.parameters(), 0.1), 3) for each in (reference, lowered))

    assert all(map(torch.equal, expected, actual))


def test_a_checkpoint_goes_through_a_file_into_the_model_and_back() -> None:
    """``torch.save`` of the state, loaded without pickles of code."""
    model = Training().train()
    lowered = in_two(copy.deepcopy(model), torch.randn(6, 8))
    trained(lowered, torch.optim.SGD(lowered.parameters(), lr=0.1), 3)
    file = io.BytesIO()
    torch.save(lowered.state_dict(), file)
    file.seek(0)

    model.load_state_dict(torch.load(file, weights_only=True))
    other = in_two(Training().train(), torch.randn(6, 8))
    other.load_state_dict(model.state_dict())

    results = []
    for each in (model, lowered, other):
        torch.manual_seed(0)
        results.append(each(torch.ones(6, 8)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


class Shuffled(nn.Module):
    """Modules run in another order than they are registered in, one is tied, one never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.embed = nn.Linear(8, 20, bias=False), nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.unused = nn.Linear(2, 2)
        self.register_buffer("runs", torch.zeros(1))
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        self.runs.add_(1)
        x = self.embed(x)
        for layer in reversed(self.layers):
            x = layer(x).relu()
        return self.head(x)


def test_an_optimizers_checkpoint_fits_the_lowered_model_and_back() -> None:
    """It counts parameters; those of a lowered model stand in the model's own order."""
    model, x = Shuffled(), torch.randint(0, 20, (2, 5))
    lowered = in_two(copy.deepcopy(model), x)
    optimizers = [torch.optim.Adam(each.parameters()) for each in (model, lowered)]
    for _ in range(2):
        for each, optimizer in zip((model, lowered), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).square().mean().backward()
            optimizer.step()
        optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))

    assert [name for name, _ in lowered.named_parameters()] == [name for name, _ in model.named_parameters()]
    for mine, theirs in zip(lowered.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert ["net." + name for name, _ in lowered.named_parameters()] == [
        name for name, _ in lowered.named_parameters(prefix="net")
    ]


def test_a_checkpoint_is_in_the_models_order() -> None:
    """Buffers stand with the parameters of their module, though programs keep them apart, and devices hold others."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    lowered = in_two(model, torch.randn(6, 8))

    assert list(model.state_dict()) == list(lowered.state_dict())


def test_inside_of_another_module_a_checkpoint_has_the_models_names() -> None:
    """As ``DistributedDataParallel``, a trainer or the user's own module holds it; names and values go both ways."""
    model = Training().train()
    lowered = in_two(copy.deepcopy(model), torch.randn(6, 8))
    outer, wanted = nn.ModuleDict({"net": lowered}), nn.ModuleDict({"net": Training()})

    assert list(wanted.state_dict()) == list(outer.state_dict())
    assert "<All keys matched successfully>" == str(outer.load_state_dict(wanted.state_dict()))
    assert all(torch.equal(value, outer.state_dict()[name]) for name, value in wanted.state_dict().items())
    assert "<All keys matched successfully>" == str(nn.ModuleDict({"net": model}).load_state_dict(outer.state_dict()))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        outer.load_state_dict({**wanted.state_dict(), "net.more": torch.ones(1)})
    less = {name: value for name, value in wanted.state_dict().items() if name != "net.second.bias"}
    for each in (outer, copy.deepcopy(outer)):
        assert ["net.second.bias"] == each.load_state_dict(less, strict=False).missing_keys
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "net\.second\.bias"\.'):
            each.load_state_dict(less)


def test_what_is_assigned_to_a_weight_of_two_parts_is_one_parameter() -> None:
    """An optimizer would step it once for each part."""
    model, ids = Tied(), torch.randint(0, 50, (2, 5))
    two = [Device("left"), Device("right")]
    lowered = lower(model, (ids,), devices=two, device_map={"embed": "left", "middle": "left", "head": "right"})
    exported = torch.export.export(copy.deepcopy(model), (ids,)).module()
    losses = []
    for each in (lowered, exported):
        each.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        optimizer = torch.optim.Adam(each.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            loss = each(ids).square().sum()
            loss.backward()
            optimizer.step()
        losses.append(loss)

    assert len(list(lowered.parameters())) == len(list(model.parameters()))
    assert torch.allclose(*losses)


def test_a_checkpoint_of_another_shape_is_told_under_the_models_names() -> None:
    """Torch names the part that the tensor is in, which no checkpoint knows."""
    model = Training().train()
    lowered = in_two(model, torch.randn(6, 8))
    outer = nn.ModuleDict({"net": lowered})

    with pytest.raises(RuntimeError, match=r"size mismatch for second\.weight: copying a param with shape"):
        lowered.load_state_dict({**model.state_dict(), "second.weight": torch.zeros(3, 3)})
    with pytest.raises(RuntimeError, match=r"size mismatch for net\.second\.weight: copying a param with shape"):
        outer.load_state_dict({**outer.state_dict(), "net.second.weight": torch.zeros(3, 3)})


def test_a_copy_has_the_buffers_of_the_model() -> None:
    """A plain tensor is no buffer of it, either: averages of weights go along the buffers of both."""

    class WithConstant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.places = nn.Linear(4, 4), torch.arange(4.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.places

    x = torch.randn(2, 4)
    lowered = lower(WithConstant(), (x,), devices=[Device("only")])
    averaged = torch.optim.swa_utils.AveragedModel(lowered)

    averaged.update_parameters(lowered)

    assert [] == list(copy.deepcopy(lowered).buffers()) == list(lowered.buffers())
    assert torch.equal(lowered(x), averaged(x))


def test_a_copy_is_trained_alone() -> None:
    lowered = in_two(Training().train(), torch.randn(6, 8))
    before = {name: value.clone() for name, value in lowered.state_dict().items()}

    copied = copy.deepcopy(lowered)
    losses = trained(copied, torch.optim.SGD(copied.parameters(), lr=0.1), 2)

    for name, value in lowered.state_dict().items():
        assert torch.equal(before[name], value)
    assert losses == trained(lowered, torch.optim.SGD(lowered.parameters(), lr=0.1), 2)


class Batched(nn.Module):
    """Looks rows up in a table, one by one for torch.vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.vmap(lambda row: self.head(self.table(row)))(ids)


def test_a_run_that_fails_inside_of_vmap_leaves_no_level_open() -> None:
    """torch refused each backward() from then on."""
    lowered = in_two(Batched(), torch.tensor([[0, 1], [2, 3]]))

    with pytest.raises(IndexError, match="out of range"):
        lowered(torch.tensor([[0, 1], [2, 5]]))

    assert 0 == torch._C._functorch.get_dynamic_layer_stack_depth()


def pickled(lowered: LoweredModule) -> LoweredModule:
    again = pickle.loads(pickle.dumps(lowered))
    assert isinstance(again, LoweredModule)
    return again


def test_a_pickle_goes_on_where_the_module_was() -> None:
    """Weights, running statistics, mode and plan; what is frozen stays frozen."""
    lowered = in_two(Training().train(), torch.randn(6, 8))
    lowered.get_parameter("left.first.bias").requires_grad_(False)
    trained(lowered, torch.optim.SGD([p for p in lowered.parameters() if p.requires_grad], lr=0.1), 2)

    again = pickled(lowered)

    assert lowered.plan == again.plan
    assert lowered.training == again.training
    assert {name: p.requires_grad for name, p in lowered.named_parameters()} == {
        name: p.requires_grad for name, p in again.named_parameters()
    }
    for name, value in lowered.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    losses = [
        trained(each, torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.1), 2)
        for each in (lowered, again)
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_converted_model_takes_inputs_of_the_new_type(dtype: torch.dtype) -> None:
    """So do its copies, and those that another process has of it."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(6, 8)
    lowered = in_two(copy.deepcopy(model), x).to(dtype)
    expected = model.to(dtype)(x.to(dtype))

    for each in (lowered, pickled(lowered), copy.deepcopy(lowered), copy.copy(lowered)):
        assert torch.equal(expected, each(x.to(dtype)))
        with pytest.raises(InputError, match=r"'input' has dtype torch.float32, but the model takes torch.float"):
            each(x)
    assert torch.equal(lowered.float()(x), pickled(lowered)(x))


class Twice(nn.Module):
    """One layer that runs on both devices, and the buffer that it is scaled by."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.first(x)) * self.scale
        result: Tensor = self.shared(self.last(x)) * self.scale
        return result


def test_what_several_parts_hold_is_one_tensor_when_the_model_comes_from_meta() -> None:
    model, x = Twice(), torch.randn(3, 8)
    pins = {"first": "left", "shared/linear#0": "left", "last": "right", "shared/linear#1": "right"}
    lowered = lower(copy.deepcopy(model), (x,), devices=cpu_pair(), pinned=pins)

    lowered.to("meta")
    lowered.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)

    assert [name for name, _ in model.named_parameters()] == [name for name, _ in lowered.named_parameters()]
    assert [name for name, _ in model.named_buffers()] == [name for name, _ in lowered.named_buffers()]
    for module in (model, lowered):
        optimizer = torch.optim.Adam(module.parameters())
        module(x).sum().backward()
        optimizer.step()
    assert all(map(torch.equal, model.state_dict().values(), lowered.state_dict().values()))


def test_what_was_moved_to_meta_is_not_written_with_older_state(tmp_path: Path) -> None:
    """torch said that it cannot copy out of a meta tensor."""
    model, x = Mlp(), torch.randn(2, 64)
    lowered = lower(model, (x,), devices=cpu_pair())
    state = copy.deepcopy(lowered.state_dict())

    lowered.to("meta")
    for write in (lambda: save(lowered, tmp_path / "model"), lambda: pickle.dumps(lowered)):
        with pytest.raises(InputError) as caught:
            write()
        assert (
            "'layers.0.weight' of the lowered model is on meta and holds no data that could be written. Save the model "
            "before it is moved there, or give it its state back: load_state_dict(state, assign=True)."
        ) == str(caught.value)
    assert [] == list(tmp_path.iterdir())

    lowered.load_state_dict(state, assign=True)
    save(lowered, tmp_path / "model")
    for again in (load(tmp_path / "model"), pickled(lowered)):
        assert torch.equal(model(x), again(x))


def test_a_model_that_was_lowered_onto_meta_is_written_with_its_own_state(tmp_path: Path) -> None:
    model, x = Mlp(), torch.randn(2, 64)
    devices = [Device("real"), Device("paper", torch_device="meta")]
    lowered = lower(model, (x,), devices=devices, device_map={"layers.0": "real", "": "paper"})
    with torch.no_grad():
        lowered.get_parameter("layers.0.weight").zero_()

    save(lowered, tmp_path)
    written = torch.export.load(tmp_path / "program.pt2").state_dict

    for again in (load(tmp_path), pickled(lowered)):
        assert lowered.plan == again.plan
        assert {"cpu", "meta"} == {each.device.type for each in again.state_dict().values()}
        assert not again.get_parameter("layers.0.weight").any()
    for name, value in model.state_dict().items():
        assert torch.equal(value if name != "layers.0.weight" else torch.zeros_like(value), written[name])

    with pytest.raises(InputError, match=r"^'layers\.0\.weight' of the lowered model is on meta and holds no data"):
        save(lowered.to("meta"), tmp_path)


def test_a_pickled_cache_holds_what_was_written() -> None:
    model = KeyValueCache().eval()
    lowered = in_two(model, torch.randn(1, 1, 16), torch.tensor([0]))
    steps = [(torch.randn(1, 1, 16), torch.tensor([step])) for step in range(2)]

    with torch.no_grad():
        lowered(*steps[0])
        again = pickled(lowered)
        assert torch.equal(lowered(*steps[1]), again(*steps[1]))


def test_a_pickled_module_keeps_what_was_written_to_a_tensor_that_nobody_registered() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = torch.zeros(4)

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x * self.count

    lowered, x = lower(Counting(), (torch.ones(4),), devices=[Device("a")]), torch.ones(4)
    lowered(x)

    again = pickled(lowered)

    assert torch.equal(2 * x, again(x))
    assert torch.equal(2 * x, lowered(x))


def test_a_pickled_tied_weight_is_one_parameter() -> None:
    """Complaint 25: also after a pickle."""
    lowered = in_two(Tied(), torch.randint(0, 50, (2, 5)))

    again = pickled(lowered)

    assert [name for name, _ in lowered.named_parameters()] == [name for name, _ in again.named_parameters()]


def without_second_name(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """As checkpoints leave out the second name of what is tied."""
    return {name: tensor for name, tensor in state.items() if name != "head.weight"}


@pytest.mark.parametrize("written", [dict, without_second_name], ids=["both names", "one name"])
def test_an_assigned_tied_weight_stays_one_parameter(written: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Complaint 25: whichever of its names a checkpoint has, operators compute with what was loaded, and train it."""
    model, ids = Tied(), torch.randint(0, 50, (2, 5))
    lowered = in_two(Tied(), ids)
    state = written({name: tensor.clone() for name, tensor in model.state_dict().items()})

    result = lowered.load_state_dict(state, assign=True, strict=False)

    assert list(model.state_dict().keys() - state.keys()) == result.missing_keys
    assert torch.equal(model(ids), lowered(ids))
    assert len(list(model.parameters())) == len(list(lowered.parameters()))
    for module in (model, lowered):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(ids).pow(2).sum().backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(lowered.state_dict()[name], tensor)


@pytest.mark.parametrize("around", [lambda module: module, nn.Sequential], ids=["itself", "in a module"])
def test_it_is_compiled_before_its_first_run(around: Callable[[nn.Module], nn.Module]) -> None:
    """Parts that nobody has run have no code yet, but already the class that torch.compile notes."""
    x = torch.randn(6, 8)
    lowered = in_two(Training().eval(), x)
    expected = copy.deepcopy(lowered)(x)
    torch._dynamo.reset()

    compiled = torch.compile(around(lowered), backend="eager", fullgraph=True)

    assert torch.equal(expected, compiled(x))


def test_a_pickle_gives_results_in_their_class_and_checks_inputs() -> None:
    x = torch.randn(2, 8)
    lowered = in_two(Dataclasses(), x)

    again = pickled(lowered)

    assert isinstance(again(x), Answer)
    assert torch.equal(lowered(x).logits, again(x).logits)
    with pytest.raises(InputError, match="is missing"):
        again()


def test_a_pickled_offloaded_module_loads_its_parameters() -> None:
    x = torch.randn(2, 64)
    lowered = lower(Mlp(8), (x,), devices=[Device("small", 60 * KiB)], offload="cpu")

    again = pickled(lowered)

    assert loads_of(lowered) == loads_of(again)
    assert torch.equal(lowered(x), again(x))


class Elements(nn.Module):
    """Of most tuples some elements are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, _ = self.rnn(x)
        (_, left, _, right), (_, places) = hidden.split(2, -1), hidden.max(-1)
        return left * right.sort(-1)[1], places


def test_elements_of_tuples_that_nobody_uses_do_not_come_back(tmp_path: Path) -> None:
    """torch's format writes all of them; plans that name single operators fit the program that is loaded."""
    model, x = Elements(), torch.randn(2, 3, 8)
    keys = list(stable_keys(place(model, (x,), devices=cpu_pair()).graph_module).values())
    cut = keys.index("/max#0")
    parts = (PartPlan("left", "left", tuple(keys[:cut])), PartPlan("right", "right", tuple(keys[cut:])))
    plan = attrs.evolve(place(model, (x,), devices=cpu_pair()).plan, parts=parts)
    lowered = lower(model, (x,), plan=plan)
    save(lowered, tmp_path)

    for again in (pickled(lowered), load(tmp_path)):
        assert [node.name for node in lowered.program.graph.nodes] == [node.name for node in again.program.graph.nodes]
        assert plan.parts == again.plan.parts
        for mine, wanted in zip(again(x), model(x), strict=True):
            assert torch.equal(mine, wanted)


def test_a_model_that_gives_back_a_text_cannot_be_pickled() -> None:
    """It would be written, and not be read again."""

    class Named(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"x": x + 1, "kind": "sum", "count": 3}

    lowered = lower(Named(), (torch.ones(2),), devices=[Device("a")])

    assert {"x": 2, "kind": "sum", "count": 3} == {**lowered(torch.ones(2)), "x": 2}
    with pytest.raises(InputError, match=r"gives back the text 'sum', which torch's file format cannot hold"):
        pickle.dumps(lowered)


class Quantised(nn.Module):
    """Torch writes no quantised types to files."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("write", [pickle.dumps, lambda lowered: save(lowered, "nowhere")], ids=["pickle", "save"])
def test_an_operator_that_torch_cannot_write_is_named(
    write: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lowered = lower(Quantised(), (torch.randn(3),), devices=[Device("only")])

    with pytest.raises(InputError) as error:
        write(lowered)

    assert str(error.value).startswith(
        "Torch's file format cannot hold this program: Failed serializing node quantize_per_tensor in graph: "
    )
    assert str(error.value).endswith("; to save or pickle it, leave that operator out.")


@pytest.mark.parametrize("write", [pickle.dumps, lambda lowered: save(lowered, "nowhere")], ids=["pickle", "save"])
def test_a_tensor_that_torch_cannot_write_is_named(
    write: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mixing", torch.eye(3).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(self.mixing, x)

    monkeypatch.chdir(tmp_path)
    lowered = lower(Sparse(), (torch.ones(3, 3),), devices=[Device("only")])

    with pytest.raises(InputError) as error:
        write(lowered)

    assert str(error.value) == (
        "Torch's file format cannot hold 'mixing', whose layout is torch.sparse_coo; to save or pickle it, keep the "
        "tensor dense (and call to_sparse() in the model), or make it an input."
    )


def test_the_mode_in_which_a_model_was_captured_stays_and_is_told() -> None:
    """``eval()`` reaches no operator: dropout and batch norm go on as in training."""
    x = torch.randn(6, 8)
    trained, evaluated = in_two(Training().train(), x), in_two(Training().eval(), x)

    with pytest.warns(UserWarning, match=r"captured in training, and stays so in batch_norm, dropout\. To run"):
        trained.eval()
    with pytest.warns(UserWarning, match=r"captured in evaluation, .* so in batch_norm\. .* call model\.train\(\) and"):
        nn.ModuleDict({"net": evaluated}).train()
    trained.train()
    evaluated.eval()
    in_two(Mlp(), torch.randn(2, 64)).eval().train()

    assert trained.training
    assert not evaluated.training
    assert not pickled(evaluated).training


class FromZeros(nn.Module):
    """Starts from zeros of the type of its input, and branches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        start = self.layer(torch.zeros(8, dtype=x.dtype))
        return x + torch.cond(start.sum() > 0, lambda x: x.to(torch.int64).float(), lambda x: x + 1, (start,))


def test_the_types_that_operators_name_stay_and_are_told() -> None:
    """``half()`` reaches no operator: an LSTM begins with zeros of the type in which it was captured."""
    x = torch.randn(6, 8)
    lowered = in_two(FromZeros(), x)

    with pytest.warns(
        UserWarning,
        match=r"captured in torch\.float32, and stays so in zeros, to.*\. To run it in torch\.float64, convert the "
        r"model \(model\.to\(torch\.float64\)\) and lower it again",
    ):
        lowered.double()
    in_two(FromZeros(), x).float()
    assert torch.float64 == in_two(Mlp(), torch.randn(2, 64)).double()(torch.randn(2, 64).double()).dtype


@pytest.mark.parametrize(
    ("share", "warned"), [(0.0, False), (0.2, True)], ids=["no dropout in attention", "dropout in attention"]
)
def test_dropout_inside_of_attention_counts_as_training(share: float, warned: bool) -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=share)

    lowered = lower(Attention(), (torch.randn(1, 2, 4, 8),), devices=[Device("a")])

    assert warned == bool(captured_otherwise(lowered.program.graph, False))
    assert [] == captured_otherwise(lowered.program.graph, True)


@pytest.mark.parametrize("offload", [None, "cpu"])
def test_a_shallow_copy_is_a_lowered_model_with_the_same_tensors(offload: str | None) -> None:
    model, x = Mlp(6), torch.randn(2, 64)
    lowered = lower(model, (x,), devices=[Device("small", 60 * KiB if offload else None)], offload=offload)
    lowered.register_forward_hook(lambda *_: None)

    copied = copy.copy(lowered)

    assert isinstance(copied, LoweredModule)
    assert (lowered.plan, lowered.report, lowered.program) == (copied.plan, copied.report, copied.program)
    assert all(mine is theirs for mine, theirs in zip(lowered.parameters(), copied.parameters(), strict=True))
    assert list(model.state_dict()) == list(copied.state_dict())
    assert bool(offload) == bool(loads_of(copied))
    assert not copied._forward_hooks
    for each in (copied, lowered, copy.deepcopy(copied), pickle.loads(pickle.dumps(copied))):
        assert torch.equal(model(x), each(x))
    with pytest.raises(InputError):
        copied(torch.randn(3, 64))
