"""Measured seconds: what is run, what is left alone, and the file that keeps them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hash_seeds import printed_under_two_hash_seeds
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.fx import Graph, GraphModule, Node, symbolic_trace, wrap

from fxpasses import Device, PassManager, lower
from fxpasses.devices import detect, fake_devices
from fxpasses.errors import InfeasibleError, InputError, PassError, PlacementError
from fxpasses.partitioners import SECONDS, STEP_WORKSPACE, WORKSPACE, StepWorkspace, Training, seconds_of
from fxpasses.partitioners.costs.kernels.followed_storages import FollowedStorages
from fxpasses.passes import MeasureCosts, Measurements, OpenRegions, ProfileCosts, profile_node
from fxpasses.passes.profiling import profile_costs, taken_bytes
from fxpasses.passes.profiling.measurements import hardware
from fxpasses.passes.profiling.running_alone import AloneCall, key_of
from fxpasses.programs import load, save
from fxpasses.units import KiB

CPU = Device("cpu")
ROW = torch.ones(1, 4, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.dropout(self.norm(self.second(self.first(x))).view(-1), 0.5, True)


def exported() -> GraphModule:
    module: GraphModule = export(Block(), (torch.randn(4, 8),)).module(check_guards=False)
    return module


def calls(graph_module: GraphModule) -> dict[str, Node]:
    return {node.name: node for node in graph_module.graph.nodes if node.op.startswith("call")}


def test_every_call_gets_seconds_and_views_get_none() -> None:
    module = exported()

    ProfileCosts(CPU, repeats=1)(module)

    seconds = {name: SECONDS.read(node)["cpu"] for name, node in calls(module).items()}
    assert 0.0 == seconds["view"]
    assert all(value > 0 for name, value in seconds.items() if name != "view")
    assert seconds["linear"] == seconds_of(calls(module)["linear"], CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_found_and_measured() -> None:
    """By its number, and as the current one; its random numbers stay where they were."""
    module, gpu = exported(), detect()[0]
    generator = torch.cuda.get_rng_state()

    ProfileCosts((gpu, Device("current", torch_device="cuda")), repeats=1)(module)

    for name, node in calls(module).items():
        assert (name != "view") == (SECONDS.read(node)[gpu.name] > 0) == (SECONDS.read(node)["current"] > 0)
    assert torch.equal(generator, torch.cuda.get_rng_state())


class Reader(nn.Module):
    """What cuDNN needs for its layers is many times what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(200, 64), nn.LSTM(64, 128, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Any:
        return self.read(self.embed(tokens))[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:The tensor attributes")  # torch's export, in some versions
def test_with_measured_bytes_the_peak_of_a_gpu_is_what_it_allocates() -> None:
    gpu, tokens = Device("gpu", torch_device="cuda:0"), torch.randint(0, 200, (64, 100))
    before = torch.cuda.memory_allocated()
    program = PassManager([ProfileCosts(gpu)])(export(Reader(), (tokens,))).exported_program
    lowered, given = lower(program, devices=[gpu]), tokens.cuda()
    with torch.no_grad():
        lowered(given)
        torch.cuda.reset_peak_memory_stats()
        lowered(given)

    taken = torch.cuda.max_memory_allocated() - before
    (row,) = lowered.report.devices
    assert row.peak_bytes > 3 * (row.parameter_bytes + 2 * 64 * 100 * 128 * 4)
    assert taken == pytest.approx(row.peak_bytes, rel=0.05)


class Allocator:
    """Tells what each call took: 3 KiB at the most, of which 1 KiB is its result."""

    def __init__(self) -> None:
        self.taken = [5 * KiB, 6 * KiB]

    def memory_allocated(self, _device: torch.device) -> int:
        self.taken.reverse()
        return self.taken[1]

    def reset_peak_memory_stats(self, _device: torch.device) -> None:
        assert 6 * KiB == self.taken[0]

    def max_memory_allocated(self, _device: torch.device) -> int:
        return 8 * KiB


def test_bytes_are_measured_where_the_allocator_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was made without them is added to."""
    file = tmp_path / "seconds.json"
    ProfileCosts(CPU, str(file), repeats=1)(exported())
    assert not Measurements.load(file).workspaces
    allocator = Allocator()
    monkeypatch.setattr(taken_bytes, "_allocator", lambda _device: allocator)
    statistics = []
    for _ in range(2):
        module = exported()
        result = PassManager([ProfileCosts(CPU, str(file), repeats=1)])(module)
        statistics.append(result.records[0].statistics.get("nodes measured", 0))
        assert {"cpu": 2 * KiB} == WORKSPACE.read(calls(module)["linear"])
        assert not WORKSPACE.has(calls(module)["view"])

    assert [len(calls(module)) - 2, 0] == statistics
    (kept,) = Measurements.load(file).workspaces.values()
    assert {2 * KiB} == set(kept.values())


class StepAllocator:
    """Tells what each step took: 4 KiB stay of a forward, 6 KiB come and go; a backward takes 9 KiB at the most."""

    def __init__(self) -> None:
        self.taken, self.most = itertools.cycle((10, 14, 14, 16)), itertools.cycle((20, 25))

    def memory_allocated(self, _device: torch.device) -> int:
        return next(self.taken) * KiB

    def reset_peak_memory_stats(self, _device: torch.device) -> None:
        pass

    def max_memory_allocated(self, _device: torch.device) -> int:
        return next(self.most) * KiB


def test_bytes_of_a_training_step_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all through which gradients flow: in a program, whose parameters are inputs, and in called modules."""
    file, block = tmp_path / "seconds.json", 512
    gradients = {"linear": 3, "batch_norm": 4, "norm": 4}  # the result's, and those of operands: the input has none
    monkeypatch.setattr(profile_costs, "workspace_bytes", lambda _call, _device: 0)
    traced = symbolic_trace(Block())
    MeasureCosts(example_inputs=(torch.randn(4, 8),))(traced)
    allocator = StepAllocator()
    monkeypatch.setattr(taken_bytes, "_allocator", lambda _device: allocator)
    for given in (export(Block(), (torch.randn(4, 8),)), exported(), traced):
        result = PassManager([ProfileCosts(CPU, str(file), repeats=1, training=True)])(given)
        nodes = calls(result.graph_module)
        measured = {name: STEP_WORKSPACE.read(node)["cpu"] for name, node in nodes.items() if STEP_WORKSPACE.has(node)}
        for name in gradients.keys() & nodes.keys():
            assert StepWorkspace(6 * KiB, 4 * KiB - block, 9 * KiB - gradients[name] * block) == measured[name]
        assert not {"view", "add_"} & measured.keys()  # no gradient flows through the number of batches

    (kept,) = Measurements.load(file).steps.values()
    assert set(measured.values()) <= set(kept.values())


def test_what_has_no_backward_after_all_needs_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = StepAllocator()
    monkeypatch.setattr(taken_bytes, "_allocator", lambda _device: allocator)

    step = taken_bytes.step_workspace(AloneCall(lambda: torch.ones(4), [], []), torch.device("cpu"))

    assert StepWorkspace(6 * KiB, 4 * KiB - 512, 0) == step


def told_of_steps(**needed: StepWorkspace) -> ExportedProgram:
    program = export(Block(), (torch.randn(4, 8),))
    STEP_WORKSPACE.write(next(node for node in program.graph.nodes if node.name == "linear_1"), needed)
    return program


def test_measured_bytes_of_a_step_count_in_the_peak_of_a_training() -> None:
    """What is kept is there when most is, what comes and goes only when it does."""
    nothing, few = StepWorkspace(0, 0, 0), 16

    def peak(needed: StepWorkspace) -> int:
        lowered = lower(told_of_steps(cpu=needed), devices=[CPU], training=Training(0))
        return lowered.report.devices[0].peak_bytes

    assert few * KiB < peak(attrs.evolve(nothing, kept=20 * KiB)) - peak(nothing) <= 20 * KiB
    assert few * KiB < peak(attrs.evolve(nothing, inside=20 * KiB)) - peak(nothing) <= 20 * KiB
    assert few * KiB < peak(attrs.evolve(nothing, backward=20 * KiB)) - peak(nothing) <= 20 * KiB
    assert peak(StepWorkspace(10 * KiB, 0, 20 * KiB)) == peak(attrs.evolve(nothing, backward=20 * KiB))
    with pytest.raises(InfeasibleError, match=r"linear_1 .* needs 2\d\.\d+ KiB on one device"):
        lower(told_of_steps(cpu=StepWorkspace(20 * KiB, 0, 0)), devices=[Device("cpu", 20 * KiB)], training=Training(0))


class CountedStorages(FollowedStorages):
    """An allocator of what operators make on the CPU, in whole blocks."""

    def follow(self, key: int, reference: Any, size: int) -> None:
        super().follow(key, reference, -(-size // 512) * 512)

    def memory_allocated(self, _device: torch.device) -> int:
        self.forget_gone()
        return self.held

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak = self.memory_allocated(device)

    def max_memory_allocated(self, _device: torch.device) -> int:
        return self.peak


class Sequences(nn.Module):
    """Layers whose backward is one kernel, several, and hundreds; a value that two read, and one written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read, self.norm = nn.Embedding(50, 32), nn.GRU(32, 64, batch_first=True), nn.LayerNorm(64)
        self.attend = nn.MultiheadAttention(64, 4, batch_first=True)
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.read(self.embed(tokens))[0])
        x = x + self.attend(x, x, x, need_weights=False)[0]
        y = self.first(x)
        return (x * self.second(y.mul_(y.sigmoid()).relu_())).pow(2).mean()


def test_bytes_of_a_step_are_saved_with_a_program(tmp_path: Path) -> None:
    step = StepWorkspace(inside=1, kept=2, backward=-3)
    save(told_of_steps(gpu=step), tmp_path / "told.pt2")

    (found,) = (
        STEP_WORKSPACE.read(node) for node in load(tmp_path / "told.pt2").graph.nodes if STEP_WORKSPACE.has(node)
    )

    assert {"gpu": step} == found


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # torch's export of recurrent layers
def test_measured_steps_add_up_to_what_the_run_without_data_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as both can know: what each operator was measured to take alone, and what autograd holds in all."""
    monkeypatch.setattr(Device, "has_known_kernels", False)
    program, training = export(Sequences().train(), (torch.randint(0, 50, (8, 20)),)), Training(0)
    (told,) = lower(program, devices=[CPU], training=training).report.devices
    with CountedStorages() as allocator:
        monkeypatch.setattr(taken_bytes, "_allocator", lambda _device: allocator)
        measured = PassManager([ProfileCosts(CPU, repeats=1, training=True)])(program).exported_program

    (row,) = lower(measured, devices=[CPU], training=training).report.devices

    blocks = 24 * 512  # of each number that is counted, as allocators give whole ones
    assert told.peak_bytes <= row.peak_bytes <= told.peak_bytes + blocks


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:The tensor attributes")  # torch's export, in some versions
def test_with_measured_steps_the_peak_of_training_on_a_gpu_is_what_it_allocates() -> None:
    gpu, tokens = Device("gpu", torch_device="cuda:0"), torch.randint(0, 200, (64, 100))
    torch.ones(8, 8, device="cuda").matmul(torch.ones(8, 8, device="cuda"))  # cuBLAS keeps a workspace
    before = torch.cuda.memory_allocated()
    program = PassManager([ProfileCosts(gpu, training=True)])(export(Reader().train(), (tokens,))).exported_program
    lowered, given = lower(program, devices=[gpu], training=Training(0)), tokens.cuda()

    def step() -> None:
        lowered.zero_grad()
        lowered(given).pow(2).sum().backward()

    step()
    lowered.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    step()

    taken = torch.cuda.max_memory_allocated() - before
    (row,) = lowered.report.devices
    assert taken == pytest.approx(row.peak_bytes, rel=0.02)


def hungry(**needed: int) -> ExportedProgram:
    """A program whose second layer needs something for itself."""
    program = export(Block(), (torch.randn(4, 8),))
    WORKSPACE.write(next(node for node in program.graph.nodes if node.name == "linear_1"), needed)
    return program


def test_measured_bytes_count_in_the_peak() -> None:
    plain, told = (lower(hungry(**needed), devices=[CPU]).report.devices[0] for needed in ({}, {"cpu": 20 * KiB}))

    assert told.parameter_bytes + 20 * KiB < told.peak_bytes < plain.peak_bytes + 20 * KiB
    with pytest.raises(InfeasibleError, match=r"linear_1 .* needs 20\.\d+ KiB on one device"):
        lower(hungry(cpu=20 * KiB), devices=[Device("cpu", 20 * KiB)])


def test_what_needs_much_on_one_device_goes_to_another() -> None:
    devices = [Device("cpu", 20 * KiB), Device("wide", 20 * KiB)]

    lowered = lower(hungry(cpu=20 * KiB, wide=KiB), devices=devices, pinned={"norm": "cpu"})

    assert "wide" == lowered.plan.device_map()["second"]


def test_nodes_that_do_the_same_are_measured_once() -> None:
    module = exported()

    result = PassManager([ProfileCosts(CPU, repeats=1)])(module)

    assert SECONDS.read(calls(module)["linear"]) == SECONDS.read(calls(module)["linear_1"])
    assert len(calls(module)) - 2 == result.records[0].statistics["nodes measured"]


def test_measuring_changes_neither_the_state_of_the_model_nor_the_random_numbers() -> None:
    module = symbolic_trace(Block())
    MeasureCosts(example_inputs=(torch.randn(4, 8),))(module)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()

    ProfileCosts(CPU, repeats=1)(module)

    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in state.items())
    assert SECONDS.read(calls(module)["norm"])["cpu"] > 0


def test_a_recurrent_layer_lists_its_own_weights_again() -> None:
    """It has them twice; the copies that it ran with would stay in the second list."""
    module = symbolic_trace(nn.Sequential(nn.LSTM(4, 4)))
    MeasureCosts(example_inputs=(torch.randn(3, 2, 4),))(module)

    result = PassManager([ProfileCosts(CPU, repeats=1)])(module)

    layer = module.get_submodule("0")
    assert isinstance(layer, nn.LSTM)
    assert all(one is other for one, other in zip(layer.parameters(), layer._flat_weights, strict=True))
    assert not result.records[0].modified


def test_types_without_random_numbers_are_measured() -> None:
    """Numbers of one byte: they cannot be drawn, and any will do."""

    class Eighth(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.float8_e4m3fn).to(torch.float32)

    module: GraphModule = export(Eighth(), (torch.randn(4, 8),)).module(check_guards=False)

    result = PassManager([ProfileCosts(CPU, repeats=1)])(module)

    assert all(SECONDS.read(calls(module)[name])["cpu"] > 0 for name in ("to", "to_1"))
    assert not any(record.remarks for record in result.records)


def test_control_flow_runs_with_its_bodies() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda y: y @ y, lambda y: y + 1, (x,))

    module = export(Branches(), (torch.randn(4, 4),)).module(check_guards=False)

    ProfileCosts(CPU, repeats=1)(module)

    assert SECONDS.read(calls(module)["cond"])["cpu"] > 0


def test_a_file_saves_measuring_again(tmp_path: Path) -> None:
    file = tmp_path / "seconds.json"
    ProfileCosts(CPU, str(file), repeats=1)(exported())
    found = Measurements.load(file)
    doubled = Measurements({where: dict.fromkeys(known, 2.0) for where, known in found.seconds.items()})
    doubled.save(file)
    module = exported()

    result = PassManager([ProfileCosts(CPU, str(file))])(module)

    assert 2.0 == SECONDS.read(calls(module)["linear"])["cpu"]
    assert "nodes measured" not in result.records[0].statistics
    assert ["seconds.json"] == [path.name for path in tmp_path.iterdir()]


def test_a_file_keeps_kinds_of_processors_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of one are not those of another, whose architecture may have the same name."""
    file = tmp_path / "seconds.json"
    for capability in ("AVX2", "AVX512"):
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda name=capability: name)
        ProfileCosts(CPU, str(file), repeats=1)(exported())

    first, second = json.loads(file.read_text())["seconds"]
    assert "AVX2," in first
    assert "AVX512," in second


def test_a_file_keeps_products_of_less_precision_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they take an eighth."""
    file = tmp_path / "seconds.json"
    for precision in ("highest", "high"):
        monkeypatch.setattr("torch.get_float32_matmul_precision", lambda found=precision: found)
        ProfileCosts(CPU, str(file), repeats=1)(exported())

    first, second = json.loads(file.read_text())["seconds"]
    assert f"{first}, high precision" == second


def test_a_file_keeps_kernels_of_another_library_apart() -> None:
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        without = hardware("cpu")

    assert f"{hardware('cpu')}, without oneDNN" == without


@wrap
def by_mode(x: Tensor, mode: str) -> Tensor:
    return x.relu() if mode in {"a", "bb", "ccc", "dddd"} else -x


class Functions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = by_mode(x, "a")
        return nn.functional.softmax(nn.functional.relu(x) + torch.sin(x), dim=-1).mul(2)


def test_a_file_knows_what_a_traced_graph_calls_in_another_process() -> None:
    """Functions were known by where they lay in memory, so all were measured again by each process."""
    code = (
        "from test_profiling import *\n"
        "module = symbolic_trace(Functions())\n"
        "MeasureCosts(example_inputs=(torch.ones(4, 8),))(module)\n"
        "print([key_of(node) for node in calls(module).values()])"
    )

    first, second = printed_under_two_hash_seeds(code, "tests/passes")

    assert first == second
    assert all(f"'{name} " in first for name in ("by_mode", "relu", "sin", "softmax", "add", "mul"))


def leaf(module: nn.Module, *inputs: Tensor) -> str:
    """The key of a module that is called as it is."""
    graph = Graph()
    graph.output(graph.call_module("leaf", tuple(graph.placeholder(f"x{place}") for place in range(len(inputs)))))
    root = GraphModule(nn.ModuleDict({"leaf": module}), graph)
    MeasureCosts(example_inputs=inputs)(root)
    return key_of(calls(root)["leaf"])


def part(module: nn.Module) -> GraphModule:
    return symbolic_trace(nn.Sequential(module, nn.ReLU()))


def repeated(times: int, *, least: float = 0.0) -> str:
    """The key of a function that does something so many times, with a number that it has by default."""

    def product(x: Tensor, bound: float = least) -> Tensor:
        for _ in range(times):
            x = (x @ x).clamp_min(bound)
        return x

    def product_again(x: Tensor) -> Tensor:
        return product(x) if times > 5 else product_again(product(x))

    graph = Graph()
    x = graph.placeholder("x")
    called = graph.call_function(product_again, (x,))
    x.meta["val"] = called.meta["val"] = torch.empty(4, 4, device="meta")
    return key_of(called)


def branches(function: Callable[[Tensor], Tensor]) -> GraphModule:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda y: torch.cond(y.mean() > 0, function, torch.cos, (y,)), abs, (x,))

    return export(Inner(), (torch.ones(4),)).module(check_guards=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: leaf(nn.Dropout(), ROW), lambda: leaf(nn.Dropout().eval(), ROW)),
        (lambda: leaf(nn.MultiheadAttention(8, 1), *[ROW] * 3), lambda: leaf(nn.MultiheadAttention(8, 8), *[ROW] * 3)),
        (lambda: leaf(part(nn.Conv1d(4, 4, 3)), ROW), lambda: leaf(part(nn.Conv1d(4, 4, 3, 2)), ROW)),
        (lambda: key_of(calls(branches(torch.sin))["cond"]), lambda: key_of(calls(branches(torch.exp))["cond"])),
        (lambda: repeated(1), lambda: repeated(1000)),
        (lambda: repeated(1), lambda: repeated(1, least=0.5)),
    ],
    ids=["mode", "heads", "stride in a part", "branch in a branch", "closed over", "a default"],
)
def test_what_does_not_do_the_same_is_measured_apart(one: Callable[[], str], other: Callable[[], str]) -> None:
    """The second got the seconds of the first, of another model, too, where a file kept them."""
    assert one() == one()
    assert one() != other()


def test_what_is_asserted_holds_where_it_is_measured() -> None:
    """Where it does not, a GPU takes no further work from the process."""

    class Checked(nn.Module):
        def forward(self, labels: Tensor) -> Tensor:
            torch._assert_async((labels > 0).any(), "no label")
            return nn.functional.one_hot(labels, 8)

    program = export(Checked(), (torch.tensor([1, 2, 3]),)).run_decompositions()

    result = PassManager([ProfileCosts(CPU, repeats=1)])(program)

    assert not result.records[0].remarks
    assert {"_assert_async", "_assert_async_1", "_assert_async_2"} <= calls(program.graph_module).keys()


def test_operators_on_numbers_that_a_tensor_gives_are_measured() -> None:
    class Filled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full_like(x, x.sum().item()) * x.mean().item()

    module = export(Filled(), (torch.ones(4),)).module(check_guards=False)

    result = PassManager([ProfileCosts(CPU, repeats=1)])(module)

    assert not result.records[0].remarks
    assert SECONDS.read(calls(module)["full_like"])["cpu"] > 0


def test_sparse_operands_are_measured() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.eye(8).to_sparse())

        def forward(self, x: Tensor) -> Tensor:
            return torch.sparse.mm(self.table, x)

    module = export(Sparse(), (torch.ones(8, 2),)).module(check_guards=False)

    ProfileCosts(CPU, repeats=1)(module)

    assert SECONDS.read(calls(module)["_sparse_mm"])["cpu"] > 0


def test_a_file_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tmp' cannot be written: File name too long\."):
        Measurements().save(tmp_path / ("long" * 62))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"repeats": 0}, "repeats is a number of runs from 1 on, not 0."),
        ({"warmup": -1}, "warmup is a number of runs from 0 on, not -1."),
        ({"devices": []}, "There is no device to measure on; give at least one, such as Device('cpu')."),
        ({"devices": [CPU, CPU]}, "Two devices are called 'cpu'; give each its own name."),
        ({"devices": ["cpu"]}, "Devices are fxpasses.Device objects, not str ('cpu')."),
        ({"training": 1}, "training is True or False, not 1."),
        ({"file": 3}, "file is the path of a JSON file, not 3."),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    """Without a run there is no median, and every node would silently be counted by the roofline."""
    with pytest.raises(InputError) as caught:
        ProfileCosts(**{"devices": CPU, **options})

    assert sentence == str(caught.value)


def test_a_fake_device_is_not_measured() -> None:
    """It runs on the CPU, but stands for hardware that is not here; its own peak rates count."""
    sentence = "'device0' is a fake device, and what it stands for is not here to be measured; leave it out, and the"

    with pytest.raises(PassError, match=sentence) as caught:
        ProfileCosts(fake_devices(1))(exported())

    assert isinstance(caught.value, PlacementError)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """Measuring takes minutes; a slip in the path must not throw them away."""
    module = exported()
    file = tmp_path / "nowhere" / "seconds.json"

    with pytest.raises(PassError, match=f"{file} cannot be written: there is no folder '{file.parent}'"):
        ProfileCosts(CPU, str(file))(module)
    with pytest.raises(PassError, match=f"{tmp_path} cannot be read: Is a directory; name another file"):
        ProfileCosts(CPU, str(tmp_path))(module)
    assert not any(SECONDS.has(node) for node in module.graph.nodes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '{"format": 1, "seconds": {"cpu": {"aten.relu": "fast"}}}',
            "holds what is no number: could not convert string to float: 'fast'. Delete it, or name another file.",
        ),
        (
            '{"format": 1, "seconds": {"cpu": {"aten.relu": true}}}',
            "holds what is no number: 'aten.relu' is true. Delete it, or name another file.",
        ),
        (
            "[1]",
            "is JSON, but holds no measured seconds as ProfileCosts writes them; delete it, or name another file.",
        ),
        (
            '{"format": 1,',
            "is not JSON: Expecting property name enclosed in double quotes: line 1 column 14 (char 13). Delete it, or",
        ),
        (
            '{"format": 1, "seconds": {"cpu": {"aten.relu": -1}}}',
            "has -1.0 for 'aten.relu', but what is measured is finite and not negative; delete this entry, and it is "
            "measured again.",
        ),
        ('{"format": 1, "seconds": {"cpu": {"aten.relu": NaN}}}', "has nan for 'aten.relu', but"),
        ('{"format": 1, "seconds": {}, "workspaces": {"cuda": {"aten.mm": -8}}}', "has -8 for 'aten.mm', but"),
        (
            '{"format": 1, "seconds": {}, "steps": {"cuda": {"aten.mm": {"inside": 1, "kept": -8, "backward": -3}}}}',
            "has -8 for 'aten.mm', but",
        ),
        (
            '{"format": 1, "seconds": {}, "steps": {"cuda": {"aten.mm": {"inside": 1}}}}',
            "is JSON, but holds no measured seconds as ProfileCosts writes them; delete it, or name another file.",
        ),
        (
            '{"format": 1, "seconds": {}, "workspaces": {"cuda": {"aten.mm": 1e400}}}',
            "holds what is no number: cannot convert float infinity to integer. Delete it, or name another file.",
        ),
        ("\xff", "is not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte. Delete it, or"),
        ('{"format": 9, "seconds": {}}', "is in format 9, and this version reads 1; measure again."),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text, encoding="latin-1")

    with pytest.raises(InputError) as failure:
        Measurements.load(file)

    assert sentence in str(failure.value)


def test_a_node_that_cannot_run_alone_falls_back_to_the_roofline_and_says_so() -> None:
    class Index(nn.Module):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            return torch.linalg.cholesky(x) + at

    module = export(Index(), (torch.eye(16), torch.ones(16))).module(check_guards=False)
    node = calls(module)["linalg_cholesky"]

    result = PassManager([ProfileCosts(CPU, repeats=1)])(module)

    assert SECONDS.get(node) is None or "cpu" not in SECONDS.read(node)
    assert seconds_of(node, CPU) > 0
    (said,) = result.records[0].remarks
    assert said.text.startswith("not measured on cpu, counted by its roofline: linalg.cholesky")
    with pytest.raises(PlacementError, match=r"linalg_cholesky \(aten.linalg_cholesky.default\) does not run on cpu: "):
        profile_node(node, "cpu")


@torch.library.custom_op("fxpasses_profiling::refuses", mutates_args=())
def refuses(x: Tensor, kind: int) -> Tensor:
    raise (AssertionError, KeyError, AttributeError, ZeroDivisionError)[kind]("index must be positive")


@refuses.register_fake
def _(x: Tensor, kind: int) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("kind", range(4))
def test_whatever_an_operator_raises_on_made_up_inputs_ends_in_a_remark(kind: int) -> None:
    class Refusing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = refuses(x, kind)
            return made

    module = export(Refusing(), (torch.randn(4, 4),)).module(check_guards=False)

    result = PassManager([ProfileCosts(CPU, repeats=1)])(module)

    (said,) = result.records[0].remarks
    assert said.text.startswith("not measured on cpu, counted by its roofline: ")
    assert "index must be positive" in said.text


def test_measured_seconds_are_plain_json(tmp_path: Path) -> None:
    file = tmp_path / "seconds.json"

    ProfileCosts(CPU, str(file), repeats=1)(exported())

    (known,) = json.loads(file.read_text())["seconds"].values()
    assert all(key.startswith("aten.") and value > 0 for key, value in known.items())


def test_a_device_that_is_not_here_cannot_be_measured() -> None:
    with pytest.raises(PlacementError, match="'gpu' is the torch device cuda:99, and this machine has none to"):
        ProfileCosts(Device("gpu", torch_device="cuda:99"))(exported())


def test_what_stands_between_markers_is_measured_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that casts its operands there, and the same one outside, are two things to measure."""
    seen = []

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.layers[1](self.layers[0](x))
            return self.layers[2](x) + y

    graph_module = OpenRegions()(torch.export.export(Twice(), (torch.randn(2, 4),)).module()).graph_module

    def note(call: Any, *_rest: Any) -> float:
        seen.append((torch.is_autocast_enabled("cpu"), call().dtype))
        return 1e-6

    monkeypatch.setattr(profile_costs, "median_seconds", note)
    ProfileCosts([Device("cpu")])(graph_module)

    assert (True, torch.bfloat16) in seen
    assert (False, torch.float32) in seen
    assert 4 == len(seen)
    assert not torch.is_autocast_enabled("cpu")
