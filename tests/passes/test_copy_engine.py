"""Copies on side streams: nobody uses one too early, and no memory is given away too early."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from fake_streams import ClockedStreams, LateStreams
from lowering_models import InPlace, KeyValueCache, Mlp, cpu_pair
from torch import nn
from torch.overrides import BaseTorchFunctionMode

from fxpasses import Device, LoweredModule, lower
from fxpasses.partitioners.assignment import Assignment
from fxpasses.passes import placement, split
from fxpasses.passes.placement import PlaceOnDevices, copies_of
from fxpasses.passes.placing_parts.copy_engine import CopyEngine, begin_load
from fxpasses.passes.placing_parts.loading import loading_again
from fxpasses.passes.placing_parts.streams import CudaStreams, streams_for

HOST, GPU, OTHER = torch.device("cpu"), torch.device("meta"), torch.device("meta", 1)


def on(device: torch.device) -> torch.Tensor:
    return torch.empty(4, device=device)


WAYS = {"in": (HOST, GPU), "out": (GPU, HOST), "across": (GPU, OTHER), "within": (GPU, GPU)}


@pytest.mark.parametrize(("source", "target"), WAYS.values(), ids=WAYS)
def test_a_copy_has_happened_before_it_is_used(source: torch.device, target: torch.device) -> None:
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    where = streams.compute(source) if streams.overlaps(source) else "host"
    streams.happens("make", where)

    ticket = engine.begin(on(source), target)
    engine.wait(ticket)
    streams.happens("use", streams.compute(target) if streams.overlaps(target) else "host")

    assert streams.is_before("make", "copy")
    assert streams.is_before("copy", "use")


def test_a_copy_does_not_wait_for_what_is_computed_meanwhile() -> None:
    """The point of it all: compute queued before the copy on the target is no reason to wait."""
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    streams.happens("compute", streams.compute(GPU))

    engine.begin(on(HOST), GPU)

    assert not streams.is_before("compute", "copy")


@pytest.mark.parametrize("source", [GPU, HOST])
def test_who_writes_to_the_source_waits_until_it_was_read(source: torch.device) -> None:
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    value = on(source)
    value.is_pinned_here = True
    ticket = engine.begin(value, OTHER)

    engine.let_read(ticket, source)
    streams.happens("write", streams.compute(source) if source is GPU else "host")

    assert streams.is_before("copy", "write")


@pytest.mark.parametrize("target", [HOST, OTHER])
def test_the_memory_that_a_copy_reads_is_held_until_it_was_read(target: torch.device) -> None:
    """Also where nobody ever waits for the copy, as something raises."""
    streams = ClockedStreams()

    CopyEngine(streams).begin(on(GPU), target)

    assert [streams.lane(GPU, "out")] == streams.held


def test_what_the_host_has_waited_for_is_free_at_once() -> None:
    """The allocator need not look: nothing is held for the rest of the run, or until it looks next."""
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    value = on(GPU)
    there = weakref.ref(value)

    ticket = engine.begin(value, HOST)
    del value
    assert there() is not None
    engine.wait(ticket)

    assert there() is None
    assert [] == streams.held


@pytest.mark.parametrize("training", [False, True])
def test_the_memory_of_a_copy_is_used_again_only_after_its_last_use(training: bool) -> None:
    """Without autograd the lane waits and the memory is free at once; with it the allocator is told to look."""
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    with torch.set_grad_enabled(training):
        ticket = engine.begin(on(HOST), GPU)
        engine.wait(ticket)
        streams.happens("use", streams.compute(GPU))
        engine.release(ticket)
    streams.happens("copy into the same memory", streams.lane(GPU, "in"))

    assert ticket.copy is None
    assert (not training) == streams.is_before("use", "copy into the same memory")
    assert ([streams.compute(GPU)] if training else []) == streams.held


def test_memory_is_free_at_once_where_torch_compile_has_failed_before() -> None:
    """From then on each call of a Python function holds its arguments once more."""

    def breaking(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(breaking, backend="eager", fullgraph=True)(torch.ones(1))
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    with torch.no_grad():
        ticket = engine.begin(on(HOST), GPU)
        engine.wait(ticket)
        engine.release(ticket)

    assert [] == streams.held


def test_memory_on_another_gpu_is_used_again_only_after_its_last_use() -> None:
    """The next copy is queued on the GPU that sends, and waits for the one that receives."""
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    with torch.no_grad():
        ticket = engine.begin(on(GPU), OTHER)
        engine.wait(ticket)
        streams.happens("use", streams.compute(OTHER))
        engine.release(ticket)
        engine.begin(on(GPU), OTHER)

    assert streams.is_before("use", "copy")


def test_a_leaf_is_first_used_on_the_stream_of_the_operators() -> None:
    """Autograd accumulates its gradient on the stream of its first use, which must not be a side stream."""
    streams = create_autospec(ClockedStreams(), instance=True)
    streams.overlaps.side_effect = lambda device: device == GPU
    parameter = nn.Parameter(on(GPU))

    CopyEngine(streams).begin(parameter, HOST)
    with torch.no_grad():
        CopyEngine(streams).begin(parameter, HOST)

    views = [call.args[0] for call in streams.send.call_args_list]
    assert [False, True] == [view is parameter for view in views]
    assert [False, True] == [view.is_leaf for view in views]


@pytest.mark.parametrize("holder", ["variable", "view"])
def test_a_copy_that_somebody_still_holds_is_left_to_the_allocator(holder: str) -> None:
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    with torch.no_grad():
        ticket = engine.begin(on(HOST), GPU)
        kept = engine.wait(ticket) if holder == "variable" else engine.wait(ticket)[1:]
        engine.release(ticket)

    assert kept is not None
    assert [streams.compute(GPU)] == streams.held


def test_an_error_between_use_and_release_gives_no_memory_away() -> None:
    streams = ClockedStreams()
    ticket = CopyEngine(streams).begin(on(HOST), GPU)
    ticket.streams.wait(streams.compute(GPU), ticket.event)
    ticket.used = True

    del ticket

    assert [streams.compute(GPU)] == streams.held


def test_the_caller_may_write_to_pinned_inputs_when_the_model_returns() -> None:
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    value = on(HOST)
    value.is_pinned_here = True
    ticket = engine.begin(value, GPU)

    engine.finish(ticket)
    streams.happens("write", "host")

    assert streams.is_before("copy", "write")


def test_an_input_that_is_where_it_is_wanted_is_copied_at_once() -> None:
    """A model captured with inputs on a GPU may be called with inputs in main memory, where its first part runs."""
    streams = ClockedStreams()
    streams.send = lambda tensor, device: tensor.to(device, copy=True)  # type: ignore[method-assign]
    engine = CopyEngine(streams)
    value = torch.arange(4.0)

    ticket = engine.begin(value, HOST)
    engine.let_read(ticket, GPU)
    copied = engine.wait(ticket)
    engine.release(ticket)
    engine.finish(ticket)

    assert torch.equal(value, copied)
    assert value.data_ptr() != copied.data_ptr()


def test_an_engine_is_copied_and_pickled_with_its_model() -> None:
    engine = CopyEngine(ClockedStreams())

    assert engine is copy.deepcopy(engine)
    assert isinstance(pickle.loads(pickle.dumps(engine)), CopyEngine)


class Branches(nn.Module):
    """A value that two devices need, one of them late, and a write to what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(x)
        there = self.second(hidden + y)
        back = self.third(there) + hidden
        return back, there


MAPS = {
    "chain": (lambda: Mlp(6), lambda: (torch.randn(2, 64),), {"layers.0": "left", "layers.3": "left", "": "right"}),
    "branches": (
        Branches,
        lambda: (torch.randn(2, 8), torch.randn(8)),
        {"first": "left", "second": "right", "third": "left"},
    ),
    "in place": (InPlace, lambda: (torch.randn(2, 16),), {"first": "left", "second": "right", "": "left"}),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_model_is_right_when_every_copy_is_as_late_as_it_may_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients are eager's, although a copy holds nonsense until it is awaited."""
    make, inputs, device_map = MAPS[name]
    model, args = make(), inputs()
    streams = LateStreams()
    monkeypatch.setattr(placement, "streams_for", lambda _devices: streams)

    lowered = lower(model, args, devices=cpu_pair(), device_map=device_map)
    expected, actual = model(*args), lowered(*args)
    wanted = torch.autograd.grad(sum(map(torch.sum, expected)), list(model.parameters()))
    given = torch.autograd.grad(sum(map(torch.sum, actual)), list(lowered.parameters()))
    with torch.no_grad():
        inferred = lowered(*args)
        with BaseTorchFunctionMode():  # somebody looks: the code of the graph runs
            by_graph = lowered(*args)

    assert streams.sent
    assert 0 == streams.lost
    for one, *others in zip(expected, actual, inferred, by_graph, strict=True):
        assert [True] * 3 == [torch.equal(one, other) for other in others]
    assert {g.sum().item() for g in wanted} == {g.sum().item() for g in given}


@pytest.mark.parametrize("name", MAPS)
def test_a_capture_sees_plain_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So torch.compile takes the whole model, gradients included, and torch.export exports it again."""
    make, inputs, device_map = MAPS[name]
    model, args = make(), inputs()
    monkeypatch.setattr(placement, "streams_for", lambda _devices: LateStreams())
    lowered = lower(model, args, devices=cpu_pair(), device_map=device_map)
    expected = model(*args)
    wanted = torch.autograd.grad(sum(map(torch.sum, expected)), list(model.parameters()))

    torch._dynamo.reset()
    actual = torch.compile(lowered, backend="aot_eager", fullgraph=True)(*args)
    given = torch.autograd.grad(sum(map(torch.sum, actual)), list(lowered.parameters()))
    again = torch.export.export(lowered, args)

    for one, other, third in zip(expected, actual, again.module()(*args), strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, third)
    assert sorted(g.sum().item() for g in wanted) == pytest.approx(sorted(g.sum().item() for g in given), rel=1e-4)
    copies = again.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default)
    assert len(copies_of(lowered)) == len(copies)


def test_a_cache_is_right_when_every_copy_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a decoder follow eager; its state stays where it is written."""
    streams = LateStreams()
    monkeypatch.setattr(placement, "streams_for", lambda _devices: streams)
    model = KeyValueCache().eval()
    lowered = lower(
        model,
        (torch.randn(1, 1, 16), torch.tensor([0])),
        devices=cpu_pair(),
        device_map={"qkv": "left", "out": "right"},
    )

    with torch.no_grad():
        for step in range(3):
            x, position = torch.randn(1, 1, 16), torch.tensor([step])
            assert torch.equal(model(x, position), lowered(x, position))
    assert torch.equal(model.keys, lowered.state_dict()["keys"])
    assert 0 == streams.lost


class Sent(nn.Module):
    """A view is sent; then what it shows is written to."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        sent = y.t() + 1
        y.add_(1)
        return sent, y


def test_who_writes_to_memory_of_which_a_view_is_on_its_way_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """That two results of a part share memory is seen only inside of it."""
    monkeypatch.setattr(placement, "streams_for", lambda _devices: LateStreams())
    x = torch.randn(2, 2)
    graph_module = torch.export.export(Sent(), (x,)).module(check_guards=False)
    home = {"mul": "a", "t": "a", "add": "b", "add_": "c"}
    chosen = {node: home[node.name] for node in graph_module.graph.nodes if node.name in home}
    placed = split(graph_module, Assignment.of(graph_module, chosen, order=["a", "b", "c"]), names=str).graph_module

    PlaceOnDevices({"a": Device("left"), "b": Device("right"), "c": Device("left")})(placed)

    names = [node.name for node in placed.graph.nodes]
    assert names.index("b") < names.index("let_read") < names.index("c")
    for expected, actual in zip(Sent()(x), placed(x), strict=True):
        assert torch.equal(expected, actual)


def test_copies_begin_early_only_where_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is there earlier takes memory earlier; without room it begins right before its use."""
    monkeypatch.setattr(placement, "streams_for", lambda _devices: LateStreams())

    def lowered(budget: int | None) -> LoweredModule:
        return lower(
            Branches(),
            (torch.randn(2, 8), torch.randn(8)),
            devices=[Device("left"), Device("middle"), Device("right", budget)],
            device_map={"first": "left", "second": "middle", "third": "right"},
        )

    def is_early(module: LoweredModule) -> bool:
        names = [node.name for node in module.graph.nodes]
        return names.index("linear_to_right_begun") < names.index("middle")

    peak = lowered(None).report.devices[2].peak_bytes

    assert is_early(lowered(None))
    assert is_early(lowered(peak + 64))
    assert not is_early(lowered(peak))


def test_a_loaded_parameter_is_free_at_once_in_training_too() -> None:
    """Autograd keeps none of them, so that the next load may take the same memory."""
    streams = ClockedStreams()
    engine = CopyEngine(streams)
    with loading_again():
        ticket = begin_load(engine, on(HOST), GPU)
        engine.wait(ticket)
        streams.happens("use", streams.compute(GPU))
        engine.release(ticket)
    streams.happens("next load", streams.lane(GPU, "in"))

    assert streams.is_before("use", "next load")
    assert [] == streams.held


def test_cuda_is_spoken_to_in_its_own_verbs() -> None:
    """Without the hardware: each verb is a method that torch's classes have."""
    stream = create_autospec(torch.cuda.Stream, instance=True)
    event = create_autospec(torch.cuda.Event, instance=True)
    tensor = create_autospec(torch.Tensor, instance=True)
    streams = CudaStreams()

    streams.record(stream)
    streams.wait(stream, event)
    streams.synchronize(event)
    streams.hold(tensor, stream)

    stream.record_event.assert_called_once_with()
    stream.wait_event.assert_called_once_with(event)
    event.synchronize.assert_called_once_with()
    tensor.record_stream.assert_called_once_with(stream)
    assert [True, False] == [streams.overlaps(torch.device(name)) for name in ("cuda:1", "cpu")]
    assert streams_for([HOST]) is None
    assert isinstance(streams_for([HOST, torch.device("cuda")]), CudaStreams)


@pytest.mark.parametrize(
    "value", [torch.arange(3.0).expand(2, 3), torch.arange(8.0)[::2], torch.arange(6.0).view(2, 3).t()]
)
def test_whatever_its_strides_a_value_is_pinned_as_a_copy_of_it_is(
    value: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that is broadcast shares memory with itself, and nobody can write to such memory."""
    asked: list[Any] = []

    def without_hardware(tensor: torch.Tensor, *, pin_memory: bool) -> torch.Tensor:
        asked.append(pin_memory)
        return torch.zeros_like(tensor)

    monkeypatch.setattr(torch, "empty_like", without_hardware)

    pinned = CudaStreams().pinned(value)

    assert [True] == asked
    assert torch.equal(value, pinned)
    assert torch.ops.aten._to_copy.default(value).stride() == pinned.stride()


def test_a_gpu_sends_nothing_to_itself() -> None:
    """Two logical devices on one GPU need no side stream, and a copy between them is none."""
    pairs = [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")]

    queued = [CudaStreams().queues(torch.device(one), torch.device(other)) for one, other in pairs]

    assert [True, True, True, False, False] == queued


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the model is placed, and for its streams: another GPU may be the current one later."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda index: f"stream of {index}")
    streams = CudaStreams()

    lanes = [streams.lane(torch.device(name), "in") for name in ("cuda", "cuda:1", "cuda:0")]

    assert ["stream of 1", "stream of 1", "stream of 0"] == lanes
    assert "cuda:1" == placement.with_number(Device("gpu", torch_device="cuda")).torch_device
    assert "cuda:0" == placement.with_number(Device("gpu", torch_device="cuda:0")).torch_device
