"""Put the parts of a split graph on their devices: tensors moved once, one copy node per value and target device.

The result is an ordinary ``GraphModule``: copies are nodes in its graph, which autograd passes through and which
generated code frees after their last use. To and from devices with streams they run beside the computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import attrs
import torch
from torch.fx import GraphModule

from fxpasses.devices import Device, same_torch_device
from fxpasses.effects import analyze_effects
from fxpasses.effects.aliasing import storage_key
from fxpasses.errors import PlacementError
from fxpasses.guards import is_guard
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.passes.placing_parts.copies import (
    COPY_OF,
    DEVICE,
    LOAD_OF,
    Copy,
    copies_of,
    insert_copies,
    loads_of,
    result_devices,
    return_results,
)
from fxpasses.passes.placing_parts.crossing_values import require_values, under_one_key
from fxpasses.passes.placing_parts.loading import call_loads, insert_loads
from fxpasses.passes.placing_parts.moved_tensors import MovedTensors, tables_of
from fxpasses.passes.placing_parts.moving_parts import move_part
from fxpasses.passes.placing_parts.overlapping import overlap_copies
from fxpasses.passes.placing_parts.own_names import keep_own_names
from fxpasses.passes.placing_parts.recurrent_weights import compact_recurrent_weights
from fxpasses.passes.placing_parts.state_homes import bring_state_home, follow_parts
from fxpasses.passes.placing_parts.streams import streams_for
from fxpasses.wording import listed

__all__ = ["COPY_OF", "DEVICE", "LOAD_OF", "Copy", "PlaceOnDevices", "copies_of", "loads_of", "move_part"]


_HOW_TO_NAME = (
    "Of parts = split(graph, placement.assignment) these are "
    "{name: placement.device_of[str(part)] for part, name in parts.part_names.items()}."
)


def _parts_and_devices(_pass: Any, _field: Any, device_of: Any) -> None:
    example = 'write PlaceOnDevices({"submod_0": Device("left")})'
    if not isinstance(device_of, Mapping):
        raise PlacementError(
            f"PlaceOnDevices takes the device of each part by the name of its submodule, not {device_of!r}; {example}, "
            "or let place_by_device and split make the parts. fxpasses.lower does all of it."
        )
    for name, device in device_of.items():
        if not isinstance(name, str):
            raise PlacementError(
                f"PlaceOnDevices takes the device of each part by the name of its submodule, a text, not {name!r}; "
                f"{example}. {_HOW_TO_NAME}"
            )
        if not isinstance(device, Device):
            raise PlacementError(f"PlaceOnDevices puts {name!r} on {device!r}, which is no fxpasses.Device; {example}.")


@attrs.frozen
class PlaceOnDevices(PassBase):
    """Move each part to its device and copy what crosses.

    A part is a submodule that the graph calls, as :func:`~fxpasses.passes.split` makes them; ``part_names`` of its
    result has the name of each. :func:`fxpasses.lower` does all of this:

    >>> import torch
    >>> from fxpasses import Device
    >>> from fxpasses.partitioners import place_by_device
    >>> from fxpasses.passes import split
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    >>> graph = torch.export.export(net, (torch.ones(2, 4),)).module()
    >>> devices = [Device("left"), Device("right")]
    >>> placement = place_by_device(graph, devices, pinned={"0": "left", "2": "right"})
    >>> parts = split(graph, placement.assignment)
    >>> parts.part_names
    {'left': 'submod_left', 'right': 'submod_right'}
    >>> device_of = {name: placement.device_of[str(part)] for part, name in parts.part_names.items()}
    >>> placed = PlaceOnDevices(device_of)(parts.graph_module).graph_module
    >>> torch.equal(net(torch.ones(2, 4)), placed(torch.ones(2, 4)))
    True

    Args:
        device_of: A :class:`fxpasses.Device` for each part, by the name of its submodule (``"submod_left"``): neither
            the partition (``"left"``) nor a path in the model (``"layers.0"``). A part that is not named stays where
            it is, and nothing is copied to it.
        offloaded: Names of parts that load their parameters from main memory in each run, one part ahead; these
            parameters must be inputs of the part (``split(..., constants="pass_in")``).
        spare_bytes: What each device has left at its fullest; copies start early, beside the computation, as long as
            they fit into it. Without it all start early. Only devices with streams do so.

    Raises:
        PlacementError: no such mapping; or the graph calls no submodule of that name; or parts on several torch devices
            hold one module, or a parameter or buffer that is trained or written to, which would become two.
        MissingMetadataError: a value would cross, and nothing says what it is; names the pass that writes it.
    """

    visit_nested = False
    device_of: Mapping[str, Device] = attrs.field(validator=_parts_and_devices)
    offloaded: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    spare_bytes: Mapping[str, float] | None = attrs.field(default=None, kw_only=True)

    def requires(self, graph_module: GraphModule) -> None:
        """Every part is there, values that cross are known, and no state would have to be on two devices."""
        calls = [node for node in graph_module.graph.find_nodes(op="call_module") if not is_guard(node)]
        called = {str(node.target) for node in calls}
        for name in (*self.device_of, *self.offloaded):
            if name not in called:
                raise PlacementError(
                    f"The graph calls no part {name!r}; it calls {listed(sorted(called), 8) or 'none, so split it'}. "
                    f"Parts go by the names of their submodules. {_HOW_TO_NAME}"
                )
        self._refuse_torn_state(graph_module)
        require_values(graph_module, self.device_of)

    def _refuse_torn_state(self, graph_module: GraphModule) -> None:
        """What parts on several torch devices share: a module is one object, trained or written state one tensor."""
        holder: dict[object, str] = {}
        written = _written_state(graph_module)
        for part in self.device_of:
            for what, path, identity in _held_once(graph_module.get_submodule(part), written):
                first = holder.setdefault(identity, part)
                there, here = (self.device_of[name].torch_device for name in (first, part))
                if not same_torch_device(torch.device(there), torch.device(here)):
                    raise PlacementError(
                        f"The parts {first} on {there} and {part} on {here} share the {what} {path}, which would "
                        "become two. Keep them on one device; or split an exported graph with "
                        'constants="pass_in", so that one device sends its parameters to the others in each run.'
                    )

    def call(self, graph_module: GraphModule) -> PassResult:
        """Move, load, copy, and bring results back to where the model would give them."""
        under_one_key(graph_module)
        moved = MovedTensors(graph_module)
        wanted = result_devices(graph_module)
        device_of = {name: with_number(device) for name, device in self.device_of.items()}
        for name, device in device_of.items():
            move_part(graph_module.get_submodule(name), device.torch_device, moved)
        follow_parts(graph_module, device_of, moved)
        streams = streams_for(_torch_devices(device_of.values()))
        bring_state_home(graph_module, device_of, self.offloaded, moved, streams)
        insert_loads(graph_module, device_of, self.offloaded)
        insert_copies(graph_module, device_of, self.offloaded)
        return_results(graph_module, wanted)
        if streams is not None:
            overlap_copies(graph_module, streams, self.spare_bytes)
        call_loads(graph_module)
        keep_own_names(graph_module, device_of)
        compact_recurrent_weights(graph_module)
        return PassResult(graph_module, True)


def _written_state(graph_module: GraphModule) -> set[tuple[str, int]]:
    """The memory of parameters and buffers that any node changes in place."""
    return {storage_key(each) for each in analyze_effects(graph_module).written_tensors()}


def _held_once(part: torch.nn.Module, written: Set[tuple[str, int]]) -> Iterator[tuple[str, str, object]]:
    """What is the same object wherever it is held: called modules with state, and what is trained or written to."""
    for path, module in part.named_modules():
        if path and (any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(False))):
            yield "module", path, id(module)
    yield from (("parameter", path, id(each)) for path, each in part.named_parameters() if each.requires_grad)
    for path, module in part.named_modules():
        for name, each in (entry for table in tables_of(module) for entry in table.items()):
            if isinstance(each, torch.Tensor) and storage_key(each) in written:
                yield "state", f"{path}.{name}" if path else name, storage_key(each)


def with_number(device: Device) -> Device:
    """A device by its number: ``cuda`` alone is whichever GPU is the current one, now and in each later call."""
    if device.torch_device != "cuda" or not torch.cuda.is_available():
        return device
    return attrs.evolve(device, torch_device=f"cuda:{torch.cuda.current_device()}")


def _torch_devices(devices: Iterable[Device]) -> list[torch.device]:
    return [torch.device(device.torch_device) for device in devices]
