"""CUDA and the CPU together: the model's own results, its state where it runs, and copies beside computation."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lowering_models import KeyValueCache, Mlp, Tied
from torch import nn
from torch.overrides import BaseTorchFunctionMode
from torch.utils import _pytree as pytree

from fxpasses import Device, LoweredModule, lower
from fxpasses.cli.demo_model import demo_llama
from fxpasses.errors import PlacementError
from fxpasses.passes.placement import copies_of, loads_of
from fxpasses.units import MiB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def all_digits() -> Iterator[None]:
    """No TF32, whatever the environment says: the CPU has the other results."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
    torch.set_float32_matmul_precision(before)


def gpu_and_cpu(memory: int | None = None) -> list[Device]:
    return [Device("gpu", memory, torch_device="cuda:0"), Device("host")]


def halves(layers: int) -> dict[str, str]:
    blocks = {f"model.layers.{i}": "gpu" if i < layers // 2 else "host" for i in range(layers)}
    return {"model": "gpu", **blocks, "model.norm": "host", "lm_head": "gpu"}


def assert_close(expected: Any, actual: Any, share: float = 1e-4) -> None:
    """Sums in another order are off by a share of the largest value; what nearly cancels out is off by more than that
    of its own."""
    for one, other in zip(pytree.tree_leaves(expected), pytree.tree_leaves(actual), strict=True):
        largest = one.detach().abs().max().item() if one.is_floating_point() else 0
        torch.testing.assert_close(other.cpu(), one.cpu(), rtol=0, atol=share * largest)


def assert_gradients_close(model: nn.Module, lowered: LoweredModule) -> None:
    mine = {lowered.qualified_names.get(name, name): p.grad for name, p in lowered.named_parameters()}
    compared = 0
    for name, parameter in model.named_parameters():
        if name in mine:
            assert_close(parameter.grad, mine[name])
            compared += 1
    assert compared


def test_a_llama_on_both_gives_the_models_outputs_and_gradients() -> None:
    model, args, kwargs = demo_llama(4)
    lowered = lower(model, args, kwargs, devices=gpu_and_cpu(), device_map=halves(4))

    with torch.no_grad():
        assert_close(model(*args, **kwargs), lowered(*args, **kwargs))
    model(*args, **kwargs).logits.sum().backward()
    lowered(*args, **kwargs).logits.sum().backward()

    assert {"cuda", "cpu"} == {parameter.device.type for parameter in lowered.parameters()}
    assert copies_of(lowered)
    assert_gradients_close(model, lowered)


def test_results_are_the_same_in_every_run() -> None:
    """A race would show: twenty runs, each into memory that the one before it has just given back."""
    model, args, kwargs = demo_llama(4)
    lowered = lower(model, args, kwargs, devices=gpu_and_cpu(), device_map=halves(4))

    with torch.no_grad():
        first = lowered(*args, **kwargs).logits
        for _ in range(20):
            assert_close(first, lowered(*args, **kwargs).logits, 1e-6)


def test_pinned_inputs_may_be_written_to_when_the_model_returns() -> None:
    model = Mlp(6, 512)
    lowered = lower(model, (torch.randn(64, 512),), devices=[Device("gpu", torch_device="cuda:0")])

    with torch.no_grad():
        for _ in range(10):
            x = torch.randn(64, 512).pin_memory()
            expected = model(x)
            actual = lowered(x)
            x.zero_()
            assert_close(expected, actual)


@pytest.mark.parametrize("device_map", [{"first": "host", "": "gpu"}, {"second": "gpu", "": "host"}])
def test_broadcast_values_cross_to_the_gpu(device_map: dict[str, str]) -> None:
    """As inputs, and between parts: page-locked memory cannot be broadcast."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            wide = self.first(mask).expand(4, 8)
            return self.second(wide) + x

    model, args = Masked(), (torch.randn(1, 8).expand(4, 8), torch.randn(8))
    lowered = lower(model, args, devices=gpu_and_cpu(), device_map=device_map)

    with torch.no_grad():
        assert_close(model(*args), lowered(*args))
    model(*args).sum().backward()
    lowered(*args).sum().backward()
    assert_gradients_close(model, lowered)


@pytest.mark.parametrize("device_map", [{"layers.0": "host", "": "gpu"}, {"layers.0": "gpu", "": "host"}])
def test_a_model_that_is_on_the_gpu_gives_its_results_there(device_map: dict[str, str]) -> None:
    model, x = Mlp(4, 64).to("cuda"), torch.randn(2, 64, device="cuda")
    lowered = lower(model, (x,), devices=gpu_and_cpu(), device_map=device_map)

    with torch.no_grad():
        actual = lowered(x)
        assert x.device == actual.device
        assert_close(model(x), actual)
        if device_map["layers.0"] == "host":  # an input in main memory is there already
            assert_close(actual, lowered(x.cpu()))
    assert {"cuda"} == {parameter.device.type for parameter in model.parameters()}


def test_comparing_leaves_the_random_numbers_of_the_gpu_where_they_were() -> None:
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    x = torch.randn(2, 64)

    lower(Mlp(4, 64), (x,), devices=gpu_and_cpu(), device_map={"layers.0": "host", "": "gpu"}, check=True)

    assert torch.equal(before, torch.cuda.get_rng_state())


def test_a_cache_on_the_gpu_follows_eager() -> None:
    model = KeyValueCache().eval()
    args = (torch.randn(1, 1, 16), torch.tensor([0]))
    device_map = {"qkv": "gpu", "out": "host", "": "gpu"}
    lowered = lower(model, args, devices=gpu_and_cpu(), device_map=device_map)

    with torch.no_grad():
        for step in range(3):
            x, position = torch.randn(1, 1, 16), torch.tensor([step])
            assert_close(model(x, position), lowered(x, position))
    assert "cuda" == lowered.state_dict()["keys"].device.type
    assert_close(model.keys, lowered.state_dict()["keys"])


def test_a_tied_weight_on_both_is_trained_once() -> None:
    """Complaint 25: one parameter, one gradient, the sum over both devices."""
    model, ids = Tied(), torch.randint(0, 50, (2, 5))
    device_map = {"embed": "gpu", "middle": "gpu", "head": "host"}
    lowered = lower(model, (ids,), devices=gpu_and_cpu(), device_map=device_map)

    model(ids).sum().backward()
    lowered(ids).sum().backward()

    assert len(list(model.parameters())) == len(list(lowered.parameters()))
    assert_gradients_close(model, lowered)


def test_a_tied_weight_that_only_the_gpu_uses_moves_there_under_both_names() -> None:
    """Complaint 25: a checkpoint by the first name holds what was trained."""
    model, ids = Tied(), torch.randint(0, 50, (2, 5))
    lowered = lower(copy.deepcopy(model), (ids,), devices=[Device("gpu", torch_device="cuda:0")])

    for module in (model, lowered):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(ids).sum().backward()
        optimizer.step()

    assert len(list(model.parameters())) == len(list(lowered.parameters()))
    for name, tensor in model.state_dict().items():
        assert_close(tensor, lowered.state_dict()[name])


def test_a_checkpoint_is_assigned_where_the_model_runs() -> None:
    """One that was read into main memory does not take a parameter away from its device."""
    model, ids = Tied(), torch.randint(0, 50, (2, 5))
    lowered = lower(Tied(), (ids,), devices=[Device("gpu", torch_device="cuda:0")])

    lowered.load_state_dict(model.state_dict(), assign=True)

    assert {"cuda"} == {parameter.device.type for parameter in lowered.parameters()}
    assert_close(model(ids), lowered(ids))


def test_two_names_of_one_gpu_copy_nothing_between_them() -> None:
    """Complaint 28: logical devices on one GPU share its memory."""
    model, args, kwargs = demo_llama(4)
    devices = [Device("gpu", torch_device="cuda:0"), Device("host", torch_device="cuda:0")]
    lowered = lower(model, args, kwargs, devices=devices, device_map=halves(4))

    with torch.no_grad():
        assert_close(model(*args, **kwargs), lowered(*args, **kwargs))
    assert "_to_copy" not in (lowered.direct_code or "")


def test_the_graphs_own_code_gives_the_same() -> None:
    """Somebody who looks meets the graph, which has the same kernels; with gradients."""
    model, args, kwargs = demo_llama(4)
    lowered = lower(model, args, kwargs, devices=gpu_and_cpu(), device_map=halves(4))

    def outcome() -> list[torch.Tensor]:
        lowered.zero_grad()
        logits = lowered(*args, **kwargs).logits
        logits.sum().backward()
        return [logits.detach(), *(p.grad.clone() for p in lowered.parameters() if p.grad is not None)]

    direct = outcome()
    with BaseTorchFunctionMode():
        by_graph = outcome()

    assert_close(direct, by_graph, 1e-6)


def test_the_callers_stream_is_kept() -> None:
    """Another current stream than the default one, with work on it that makes the inputs."""
    model = Mlp(6, 512)
    device_map = {"layers.0": "host", "": "gpu"}
    lowered = lower(model, (torch.randn(64, 512),), devices=gpu_and_cpu(), device_map=device_map)
    stream = torch.cuda.Stream()

    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(10):
            x = torch.randn(64, 512)
            assert_close(model(x), lowered(x))
            assert stream == torch.cuda.current_stream()


def test_training_a_tied_weight_warns_of_nothing() -> None:
    """Autograd meets each leaf first on the stream of the operators, not on that of the copies."""
    model, ids = Tied(), torch.randint(0, 50, (2, 5))
    device_map = {"embed": "gpu", "middle": "gpu", "head": "host"}
    lowered = lower(model, (ids,), devices=gpu_and_cpu(), device_map=device_map)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # torch's own, in a thread that is new
        for _ in range(3):
            lowered(ids).sum().backward()


def allocated() -> int:
    """Bytes that are allocated when all is done and nobody waits to be collected."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def offloaded(
    layers: int = 8, width: int = 2048, spare: int = 64 * MiB, rows: int = 512
) -> tuple[nn.Module, torch.Tensor, LoweredModule, int]:
    """Half of the layers find room, and ``spare`` bytes of values."""
    model, x = Mlp(layers, width), torch.randn(rows, width)
    budget = (layers // 2) * width * width * 4 + spare
    lowered = lower(model, (x,), devices=[Device("gpu", budget, torch_device="cuda:0")], offload="cpu")
    return model, x, lowered, budget


def test_offloaded_parameters_keep_the_budget_of_the_gpu() -> None:
    """What CUDA really allocates stays within the budget, in inference; cuBLAS has workspaces beside it."""
    before = allocated()
    model, x, lowered, budget = offloaded()
    resident = sum(p.nbytes for p in lowered.parameters() if p.is_cuda)
    with torch.no_grad():
        lowered(x)
    workspaces = allocated() - before - resident  # taken in the first run, and kept
    torch.cuda.reset_peak_memory_stats()

    with torch.no_grad():
        actual = lowered(x)

    torch.cuda.synchronize()
    (row,) = lowered.report.devices
    assert loads_of(lowered)
    assert_close(model(x), actual)
    assert 0 < torch.cuda.max_memory_allocated() - before - workspaces <= budget + 64 * MiB
    assert row.peak_bytes <= budget


def test_offloaded_parameters_are_trained_in_main_memory() -> None:
    model, x, lowered, _ = offloaded(6, 512, 7 * MiB // 2)
    reference = copy.deepcopy(model)

    reference(x).sum().backward()
    lowered(x).sum().backward()

    assert_gradients_close(reference, lowered)
    loaded = {load.value for load in loads_of(lowered)}
    homes = {name.replace(".", "_"): p.device.type for name, p in lowered.named_parameters()}
    assert {"cpu"} == {homes[name] for name in loaded if name in homes}


def test_loads_run_beside_computation() -> None:
    """The profiler sees transfers to the GPU while kernels run there; these take longer than what starts them."""
    _, x, lowered, _ = offloaded(spare=160 * MiB, rows=4096)
    with torch.no_grad():
        lowered(x)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            lowered(x)
            torch.cuda.synchronize()

    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    if not spans:
        pytest.skip("the profiler may not look at this GPU")
    transfers = [(start, end) for name, start, end in spans if "HtoD" in name]
    kernels = [(start, end) for name, start, end in spans if "Memcpy" not in name and "Memset" not in name]
    beside = sum(any(a < d and c < b for c, d in kernels) for a, b in transfers)
    assert transfers
    assert beside


class Attending(nn.Module):
    """On a GPU attention gives another layout than on the CPU, where ``contiguous()`` has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.MultiheadAttention(64, 4, batch_first=True)
        self.second = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x, x, x)[0])


@pytest.mark.parametrize("device_map", [{"": "gpu"}, {"first": "gpu", "second": "host"}])
def test_views_hold_in_the_layouts_of_the_gpu(device_map: dict[str, str]) -> None:
    model, x = Attending().eval(), torch.randn(2, 10, 64)
    lowered = lower(model, (x,), devices=gpu_and_cpu(), device_map=device_map)

    with torch.no_grad():
        assert_close(model(x), lowered(x))
    loss_of = torch.randn_like(x)  # the sum of what is normalized is always the same
    (model(x) * loss_of).sum().backward()
    (lowered(x) * loss_of).sum().backward()
    assert_gradients_close(model, lowered)


@pytest.mark.filterwarnings("ignore")  # the compiler warns about itself, by version
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_takes_the_whole_model(backend: str) -> None:
    """It sees plain copies, without a break in the graph."""
    model, x = Mlp(4, 64), torch.randn(2, 64)
    device_map = {"layers.0": "host", "layers.2": "host", "": "gpu"}
    lowered = lower(model, (x,), devices=gpu_and_cpu(), device_map=device_map)
    torch._dynamo.reset()
    compiled = torch.compile(lowered, backend=backend, fullgraph=True)

    with torch.no_grad():
        assert_close(model(x), compiled(x))
    model(x).sum().backward()
    compiled(x).sum().backward()
    assert_gradients_close(model, lowered)


def test_a_region_for_gpus_does_what_it_did_where_the_model_was_captured() -> None:
    """Autocast for GPUs changes nothing on the CPU, so the captured model has no cast behind it."""

    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                x = self.first(x)
            return self.second(x.float())

    model, x = Casting(), torch.randn(2, 8)
    for device_map in ({"first": "gpu", "second": "host"}, {"": "gpu"}):
        lowered = lower(model, (x,), devices=gpu_and_cpu(), device_map=device_map)
        with torch.no_grad():
            assert_close(model(x), lowered(x))
    there = copy.deepcopy(model).to("cuda")
    lowered = lower(there, (x.to("cuda"),), devices=gpu_and_cpu(), device_map={"": "gpu"})
    with torch.no_grad():
        assert torch.equal(there(x.to("cuda")), lowered(x.to("cuda")))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_weights_of_recurrent_layers_are_in_one_piece(kind: type[nn.RNNBase]) -> None:
    """Otherwise cuDNN puts them together in every run, and says so."""
    model, x = kind(16, 32, 2, bidirectional=True, batch_first=True), torch.randn(2, 5, 16)
    lowered = lower(model, (x,), devices=gpu_and_cpu(), device_map={"": "gpu"})

    for module in (lowered, copy.deepcopy(lowered), copy.deepcopy(lowered).double().float()):
        assert 1 == len({parameter.untyped_storage().data_ptr() for parameter in module.parameters()})
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "RNN module weights")
            assert_close(model(x), module(x))
    model(x)[0].sum().backward()
    lowered(x)[0].sum().backward()
    assert_gradients_close(model, lowered)


def test_inputs_are_taken_from_the_other_device() -> None:
    """Parts that read them without a copy, and those that have one; gradients find their way back."""
    model, x = Mlp(4, 64), torch.randn(2, 64)
    for device_map in ({"layers.0": "host", "": "gpu"}, {"": "host"}, {"": "gpu"}):
        lowered = lower(model, (x,), devices=gpu_and_cpu(), device_map=device_map)
        there = x.to("cuda").requires_grad_()
        lowered(there).sum().backward()
        here = x.clone().requires_grad_()
        model(here).sum().backward()

        assert there.grad is not None
        assert there.is_cuda
        assert_close(here.grad, there.grad)
        assert_close(model(x), lowered(x.to("cuda")))


def test_a_lowered_model_is_not_moved() -> None:
    device_map = {"layers.0": "host", "": "gpu"}
    lowered = lower(Mlp(4, 64), (torch.randn(2, 64),), devices=gpu_and_cpu(), device_map=device_map)

    with pytest.raises(PlacementError, match="A lowered model cannot be moved from cpu to cuda:0: its plan says where"):
        lowered.cuda()
