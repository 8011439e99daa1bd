"""Measure what each node really takes on each device, once for all nodes that do the same, and keep it.

A node runs on made-up inputs of the recorded shapes, layouts and types: warm, then several times, and the median
counts. Nothing of the model runs on its own tensors, so no state changes and the random numbers stay where they were.
What kernels on the CPU need for themselves is known; of other devices the allocator is asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import attrs
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.devices import Device, is_here
from fxpasses.errors import InputError, PlacementError
from fxpasses.instruments.events import remark, statistic
from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.node_costs import SECONDS, WORKSPACE, cost_of, require_value
from fxpasses.partitioners.tensor_sizes import concrete_value
from fxpasses.partitioners.vmap_rows import note_rows, rows_of
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.passes.placing_parts.recurrent_weights import compact_operands
from fxpasses.seeding import seeded
from fxpasses.values import has_value
from fxpasses.values.evaluation import open_autocasts, weights_listed_as_before

__all__ = ["Measurements", "ProfileCosts", "profile_node"]

_T = TypeVar("_T")
_FORMAT = 1
_SHORTEST = 200e-6
"""Seconds below which a clock says little: shorter calls are timed several at once."""
_MOST_CALLS = 100


def _describe(value: Any) -> str:
    """All about an argument that its time can depend on."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{tuple(value.shape)}{tuple(value.stride())}"
    if isinstance(value, GraphModule):
        state = [_describe(each) for each in (*value.parameters(), *value.buffers())]
        return f"{value.code}{state}"
    if isinstance(value, torch.nn.Module):
        return f"{value!r}{[_describe(each) for each in (*value.parameters(), *value.buffers())]}"
    return repr(value)


def _arguments(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The values of a node's arguments with numbers for symbols; bodies of control flow as they are."""
    owner = node.graph.owning_module

    def known(used: Node) -> Any:
        if not has_value(used) and used.op == "get_attr" and owner is not None:
            return owner.get_submodule(str(used.target))
        return concrete_value(value_of(used))

    taken = torch.fx.node.map_arg((tuple(node.args), dict(node.kwargs)), known)
    args, kwargs = concrete_value(taken)
    return args, kwargs


def _module_of(node: Node) -> torch.nn.Module | None:
    owner = node.graph.owning_module
    return owner.get_submodule(str(node.target)) if node.op == "call_module" and owner is not None else None


def _key(node: Node) -> str:
    """Nodes of one key take the same time: same operator or module, same arguments."""
    module = _module_of(node)
    leaves, structure = pytree.tree_flatten(_arguments(node))
    what = str(node.target) if module is None else _describe(module)
    text = f"{node.op} {what} {structure} {[_describe(leaf) for leaf in leaves]}"
    if regions := open_autocasts(node):
        text += f" {regions}"
    label = type(module).__name__ if module is not None else str(node.target)
    return f"{label} {hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _made_up(value: Any, device: torch.device) -> Any:
    """A real argument like a recorded one: random floats, zeros for numbers that may be indices."""
    if isinstance(value, torch.device):
        return device
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=device)
    if 0 in value.stride() or not (value.is_floating_point() or value.is_complex()):
        return made.zero_()
    has_random = value.is_floating_point() and value.dtype.itemsize > 1  # float8 has not
    return made.uniform_(0.1, 1.0) if has_random else made.fill_(0.5)


def _call(node: Node, device: torch.device) -> Callable[[], Any]:
    """The node as a function without arguments, on made-up inputs and copies of the state of a module."""
    given = _arguments(node)
    args, kwargs = pytree.tree_map(lambda leaf: _made_up(leaf, device), given)
    if (module := _module_of(node)) is not None:
        state = {
            name: value.detach().to(device, copy=True)
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }
        return lambda: torch.func.functional_call(module, state, args, kwargs)
    if node.op == "call_method":
        return lambda: getattr(args[0], str(node.target))(*args[1:], **kwargs)
    compact_operands(node, args, kwargs)
    target: Any = node.target
    return lambda: target(*args, **kwargs)


def _seconds(call: Callable[[], Any], device: torch.device, warmup: int, repeats: int) -> float:
    """The median seconds of a call, after some that do not count."""
    for _ in range(warmup):
        call()
    once = _timed(call, device, 1)
    calls = max(1, min(_MOST_CALLS, int(_SHORTEST / max(once, 1e-9))))
    return statistics.median(_timed(call, device, calls) for _ in range(repeats))


def _timed(call: Callable[[], Any], device: torch.device, calls: int) -> float:
    _wait_for(device)
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    _wait_for(device)
    return (time.perf_counter() - begin) / calls


def _wait_for(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def _allocator(device: torch.device) -> Any:
    """The module of torch that tells how much of a device is taken: ``torch.cuda``; None where none does."""
    module = getattr(torch, device.type, None)
    return module if hasattr(module, "reset_peak_memory_stats") else None


def _workspace_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """The most bytes of a device that a call has at one time beside its operands and its result.

    What its libraries keep from call to call was taken before.
    """
    allocator = _allocator(device)
    before = allocator.memory_allocated(device)
    allocator.reset_peak_memory_stats(device)
    result = call()
    after = allocator.memory_allocated(device)
    del result
    most: int = allocator.max_memory_allocated(device) - max(before, after)
    return most


def profile_node(node: Node, torch_device: str, *, warmup: int = 2, repeats: int = 5) -> float:
    """Run one node on a device and time it.

    Args:
        node: A call whose arguments have recorded values; a part of a split graph too.
        torch_device: Where, as ``torch.device`` takes it.
        warmup: Runs that do not count.
        repeats: Runs whose median counts.

    Returns:
        Seconds of one run.

    Raises:
        PlacementError: The device cannot run the node on inputs of these shapes.
    """
    return _run_alone(node, torch.device(torch_device), lambda call, on: _seconds(call, on, warmup, repeats))


def _run_alone(node: Node, device: torch.device, measure: Callable[[Callable[[], Any], torch.device], _T]) -> _T:
    """Measure a node as a function without arguments, under what it runs under."""
    with torch.no_grad(), seeded(), contextlib.ExitStack() as regions:
        for _device, *given in open_autocasts(node):
            regions.enter_context(torch.autocast(device.type, *given))
        if (module := _module_of(node)) is not None:
            regions.enter_context(weights_listed_as_before(module))
        try:
            return measure(_call(node, device), device)
        except Exception as error:  # what an operator raises on inputs that are made up is its own choice
            raise PlacementError(f"{node.name} ({node.target}) does not run on {device}: {error}", node=node) from error


def _fingerprint(torch_device: str) -> str:
    """What seconds depend on besides the node: the hardware, torch, the number of threads."""
    device = torch.device(torch_device)
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{device.type} {_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _processor() -> str:
    """The model of the processor, where it is known, and the vector instructions that torch uses there."""
    named = Path("/proc/cpuinfo")  # of Linux, where platform knows no more than the architecture
    lines = named.read_text(encoding="utf-8", errors="replace").splitlines() if named.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(models, "") or platform.processor() or platform.machine()
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"


@attrs.define
class Measurements:
    """What was measured, by node and on what hardware; a JSON file when saved.

    Args:
        seconds: For each kind of hardware the seconds by key of node.
        workspaces: The same for the bytes that a node needs for itself, where the hardware tells.
    """

    seconds: dict[str, dict[str, float]] = attrs.field(factory=dict)
    workspaces: dict[str, dict[str, int]] = attrs.field(factory=dict)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measurements:
        """Read a file; one that is not there yet holds nothing.

        Raises:
            InputError: It is no file of measurements.
        """
        try:
            text = Path(path).read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}; name another file.") from error
        try:
            found = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}. Delete it, or name another file.") from error
        try:
            seconds = {where: _numbers(known, float) for where, known in found["seconds"].items()}
            workspaces = {where: _numbers(known, int) for where, known in found.get("workspaces", {}).items()}
            version = found["format"]
        except (ValueError, OverflowError) as error:
            raise InputError(f"{path} holds what is no number: {error}. Delete it, or name another file.") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is JSON, but holds no measured seconds as ProfileCosts writes them; delete it, or name "
                "another file."
            ) from error
        if version != _FORMAT:
            raise InputError(f"{path} is in format {version!r}, and this version reads {_FORMAT}; measure again.")
        measured: list[Mapping[str, float]] = [*seconds.values(), *workspaces.values()]
        for known in measured:
            _check_numbers(path, known)
        return cls(seconds, workspaces)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, all at once."""
        target = Path(path)
        draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        text = json.dumps({"format": _FORMAT, **attrs.asdict(self)}, indent=1, sort_keys=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)


def _numbers(known: Mapping[str, Any], kind: Callable[[Any], _T]) -> dict[str, _T]:
    return {key: kind(value) for key, value in known.items()}


def _check_numbers(path: object, known: Mapping[str, float]) -> None:
    """Refuse what no clock and no allocator says; files are edited by hand."""
    for key, number in known.items():
        if not 0 <= number < math.inf:
            raise InputError(
                f"{path} has {number!r} for {key!r}, but what is measured is finite and not negative; delete this "
                "entry, and it is measured again."
            )


@attrs.frozen
class _Known:
    """What is known of one kind of hardware; bytes only where it tells them."""

    device: torch.device
    seconds: dict[str, float]
    workspaces: dict[str, int] | None

    @classmethod
    def of(cls, measurements: Measurements, torch_device: str) -> _Known:
        where, device = _fingerprint(torch_device), torch.device(torch_device)
        workspaces = measurements.workspaces.setdefault(where, {}) if _allocator(device) else None
        return cls(device, measurements.seconds.setdefault(where, {}), workspaces)

    def has(self, key: str) -> bool:
        return key in self.seconds and (self.workspaces is None or key in self.workspaces)


def _as_devices(devices: Iterable[Device] | Device) -> tuple[Device, ...]:
    return (devices,) if isinstance(devices, Device) else tuple(devices)


def _only_devices(_pass: object, _field: object, devices: Sequence[object]) -> None:
    if not devices:
        raise InputError("There is no device to measure on; give at least one, such as Device('cpu').")
    for device in devices:
        if not isinstance(device, Device):
            raise InputError(f"Devices are fxpasses.Device objects, not {type(device).__name__} ({device!r}).")


def _as_path(file: str | os.PathLike[str] | None) -> str | None:
    if file is not None and not isinstance(file, (str, os.PathLike)):
        raise InputError(f"file is the path of a JSON file, not {file!r}.")
    return None if file is None else os.fspath(file)


def _runs(least: int) -> Callable[[object, attrs.Attribute[Any], Any], None]:
    def check(_pass: object, field: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{field.name} is a number of runs from {least} on, not {value!r}.")

    return check


@attrs.frozen
class ProfileCosts(PassBase):
    """Write each node's measured seconds on each device under :data:`~fxpasses.partitioners.SECONDS`.

    And the bytes that it needs there for itself under :data:`~fxpasses.partitioners.WORKSPACE`; but not on the CPU,
    whose kernels are known.

    Args:
        devices: Where to measure; devices of one ``torch_device`` are measured once.
        file: A JSON file of earlier measurements: what it holds is not measured again, what is new is added.
        warmup: Runs that do not count.
        repeats: Runs whose median counts.

    A node that a device cannot run gets no seconds there: a remark says why, and the roofline of
    :func:`~fxpasses.partitioners.seconds_on` counts for it.
    """

    visit_nested: ClassVar[bool] = False  # a body is measured within the operator that runs it

    devices: tuple[Device, ...] = attrs.field(converter=_as_devices, validator=_only_devices)
    file: str | None = attrs.field(default=None, converter=_as_path)
    warmup: int = attrs.field(default=2, kw_only=True, validator=_runs(0))
    repeats: int = attrs.field(default=5, kw_only=True, validator=_runs(1))

    def call(self, graph_module: GraphModule) -> PassResult:
        """Measure every call of the graph."""
        for device in self.devices:
            if device.is_fake:
                raise PlacementError(
                    f"{device.name!r} is a fake device, and what it stands for is not here to be measured; leave it "
                    "out, and the roofline counts for it."
                )
            if not is_here(device.torch_device):
                raise PlacementError(
                    f"{device.name!r} is the torch device {device.torch_device}, and this machine has none to measure "
                    "on; leave it out, and the roofline counts for it."
                )
        if self.file is not None and not Path(self.file).parent.is_dir():
            raise InputError(f"{self.file} cannot be written: there is no folder {str(Path(self.file).parent)!r}.")
        note_rows(graph_module)
        measurements = Measurements() if self.file is None else Measurements.load(self.file)
        for device in self.devices:
            self._profile(graph_module, device, _Known.of(measurements, device.torch_device))
        if self.file is not None:
            measurements.save(self.file)
        return PassResult(graph_module, False)

    def _profile(self, graph_module: GraphModule, device: Device, known: _Known) -> None:
        failed: dict[str, str] = {}
        for node in graph_module.graph.nodes:
            if node.op in ("placeholder", "get_attr", "output"):
                continue
            require_value(node)
            if rows_of(node) > 1:
                remark(node, f"not measured on {device.name}, counted by its roofline: it runs inside of torch.vmap")
                continue
            cost = cost_of(node)
            if not cost.flops and not cost.bytes_written:
                SECONDS.write(node, {**SECONDS.get(node, {}), device.name: 0.0})  # a view
                continue
            key = _key(node)
            if not known.has(key) and key not in failed:
                self._measure(node, key, known, failed)
            if key in failed:
                remark(node, f"not measured on {device.name}, counted by its roofline: {failed[key]}")
                continue
            SECONDS.write(node, {**SECONDS.get(node, {}), device.name: known.seconds[key]})
            if known.workspaces is not None:
                WORKSPACE.write(node, {**WORKSPACE.get(node, {}), device.name: known.workspaces[key]})

    def _measure(self, node: Node, key: str, known: _Known, failed: dict[str, str]) -> None:
        def measure(call: Callable[[], Any], device: torch.device) -> None:
            seconds = _seconds(call, device, self.warmup, self.repeats)
            if known.workspaces is not None:
                known.workspaces[key] = _workspace_bytes(call, device)
            known.seconds[key] = seconds

        try:
            _run_alone(node, known.device, measure)
        except PlacementError as error:
            failed[key] = str(error.__cause__)
        statistic("nodes measured")
