"""Copies between devices as nodes of the graph: one per value and target device, right before its first use there.

A copy is an ``aten._to_copy`` call: autograd passes through it, and the generated code frees it after its last use.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Container, Mapping

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import MAIN_MEMORY, Device, same_torch_device
from fxpasses.errors import PlacementError
from fxpasses.metadata import MetaKey
from fxpasses.partitioners.tensor_sizes import tensor_bytes, tensors_in
from fxpasses.passes.placing_parts.moving_parts import fake_on
from fxpasses.passes.placing_parts.shared_memory import SharedMemory

__all__ = [
    "COPY",
    "COPY_OF",
    "DEVICE",
    "LOAD_OF",
    "Copy",
    "copies_of",
    "copy_node",
    "insert_copies",
    "loads_of",
    "result_devices",
    "return_results",
]

COPY = torch.ops.aten._to_copy.default


@attrs.frozen
class Copy:
    """One transfer between devices.

    Args:
        value: Name of the node whose value is sent.
        source: Where it comes from; ``"main memory"`` for what the caller passes in.
        target: The device that receives it.
        size: Bytes.
    """

    value: str
    source: str
    target: str
    size: int


DEVICE = MetaKey[str]("fxpasses.device", made_by="PlaceOnDevices(...)", depends_on_value=False)
"""The name of the device whose memory holds a node's value."""

COPY_OF = MetaKey[Copy]("fxpasses.copy", made_by="PlaceOnDevices(...)", depends_on_value=False)
"""On a copy node: what it sends where."""

LOAD_OF = MetaKey[Copy]("fxpasses.load", made_by="PlaceOnDevices(...)", depends_on_value=False)
"""On a node that loads a parameter of an offloaded part: what it sends where."""


def copies_of(graph_module: GraphModule) -> list[Copy]:
    """The transfers of values of a placed graph, in execution order."""
    return [COPY_OF.read(node) for node in graph_module.graph.nodes if COPY_OF.has(node)]


def loads_of(graph_module: GraphModule) -> list[Copy]:
    """The loads of offloaded parameters in one run of a placed graph, in execution order."""
    return [LOAD_OF.read(node) for node in graph_module.graph.nodes if LOAD_OF.has(node)]


def insert_copies(graph_module: GraphModule, device_of: Mapping[str, Device], offloaded: Container[str] = ()) -> None:
    """Insert one copy per (value, target device), right before the first part that needs it.

    An input of the caller that parts write to in a copy, or in views of it, is written back before somebody else looks.
    Linear in nodes and edges.

    Args:
        graph_module: The top level of a split whose parts are moved.
        device_of: The device of each part, by the name of its submodule.
        offloaded: Parts whose parameters are loaded, which :func:`~.loading.insert_loads` does.

    Raises:
        PlacementError: parts on several devices make or write to the same memory.
    """
    copying = _Copying(graph_module, device_of, offloaded, SharedMemory.of(graph_module))
    copying.refuse_torn_memory()
    copying.run()


@attrs.define(eq=False)
class _Copying:
    """The walk over the top level, and which copies are there already."""

    graph_module: GraphModule
    device_of: Mapping[str, Device]
    offloaded: Container[str]
    memory: SharedMemory
    copied: dict[tuple[Node, str], Node] = attrs.field(factory=dict)
    brought_back: dict[Node, Node] = attrs.field(factory=dict)  # the last write to what a copy was made of

    def run(self) -> None:
        for node in list(self.graph_module.graph.nodes):
            if node.op == "call_module" and str(node.target) in self.device_of:
                self._feed(node, self.device_of[str(node.target)])
            else:
                _inherit(node)

    def _feed(self, part: Node, device: Device) -> None:
        """Give a part copies of what lives elsewhere."""
        DEVICE.write(part, device.name)
        if "val" in part.meta:
            part.meta["val"] = fake_on(part.meta["val"], torch.device(device.torch_device))
        written = self.memory.written_by(part)
        for value in dict.fromkeys(part.all_input_nodes):
            if self._crosses(value, part, device):
                part.replace_input_with(value, self._replica(value, part, device))
        if written:
            self._write_back(part, device, written)
            self._forget(written, device)

    def _crosses(self, value: Node, part: Node, device: Device) -> bool:
        if value.op == "get_attr" and str(part.target) in self.offloaded:
            return False  # it is loaded, or at home
        return _crosses(value, device)

    def _replica(self, value: Node, part: Node, device: Device) -> Node:
        if (value, device.name) not in self.copied:
            with self.graph_module.graph.inserting_before(part):
                self.copied[value, device.name] = copy_node(self.graph_module, value, device)
        return self.copied[value, device.name]

    def _write_back(self, part: Node, device: Device, written: frozenset[int]) -> None:
        """Bring what a part wrote to copies, or to views of copies, to what these are copies of."""
        for (value, target), replica in self.copied.items():
            if target != device.name or written.isdisjoint(self.memory.storages(value)):
                continue
            before = self.brought_back.get(value)
            if before is not None and not any(before < user < part for user in value.users):
                self.graph_module.graph.erase_node(before)  # nobody has looked since
            with self.graph_module.graph.inserting_after(part):
                self.brought_back[value] = self.graph_module.graph.call_function(
                    torch.ops.aten.copy_.default, (value, replica)
                )

    def _forget(self, written: frozenset[int], device: Device) -> None:
        """Copies of what was just written are out of date, but for the one that was written to."""
        for value, target in list(self.copied):
            if target != device.name and written.intersection(self.memory.storages(value)):
                del self.copied[value, target]

    def refuse_torn_memory(self) -> None:
        """Memory belongs to one device up to the last write to it: views of it elsewhere would not see the write."""
        nodes = list(self.graph_module.graph.nodes)
        last_write = {storage: index for index, node in enumerate(nodes) for storage in self.memory.written_by(node)}
        position = {node: index for index, node in enumerate(nodes)}
        owner: dict[int, Node] = {}
        for node in nodes if last_write else ():
            part = node.args[0] if node.target is operator.getitem else node
            if isinstance(part, Node) and part.op == "call_module" and str(part.target) in self.device_of:
                for storage in self.memory.storages(node) | self.memory.written_by(node):
                    if position[part] <= last_write.get(storage, -1):
                        self._refuse_two_devices(owner.setdefault(storage, part), part)

    def _refuse_two_devices(self, first: Node, part: Node) -> None:
        there, here = (self.device_of[str(each.target)].name for each in (first, part))
        if there != here:
            raise PlacementError(
                f"The parts {first.target} on {there} and {part.target} on {here} make or write to the same memory, "
                "which one of them changes in place; keep them on one device.",
                node=part,
            )


def _inherit(node: Node) -> None:
    """A ``getitem`` of a part's results lives where the part does."""
    if DEVICE.has(node):
        return
    homes = [DEVICE.read(used) for used in node.all_input_nodes if DEVICE.has(used)]
    if homes and node.op not in ("placeholder", "output"):
        DEVICE.write(node, homes[0])
        if "val" in node.meta and (source := tensors_in(node.all_input_nodes[0].meta.get("val"))):
            node.meta["val"] = fake_on(node.meta["val"], source[0].device)


def _crosses(value: Node, device: Device) -> bool:
    """Whether a device must receive a copy of a value: it lives in another memory and holds tensors."""
    tensors = tensors_in(value.meta.get("val"))
    if not tensors or isinstance(value.meta["val"], (tuple, list)):
        return False
    if DEVICE.has(value) and value.op != "get_attr":
        return DEVICE.read(value) != device.name
    return not same_torch_device(tensors[0].device, torch.device(device.torch_device))


def copy_node(graph_module: GraphModule, value: Node, device: Device, *, key: MetaKey[Copy] = COPY_OF) -> Node:
    """Make a copy node at the graph's insertion point, its meta complete.

    Args:
        graph_module: The top level.
        value: What to copy.
        device: Where to.
        key: The entry that says so: that of a copy or of a load.
    """
    tensor = tensors_in(value.meta["val"])[0]
    target = torch.device(device.torch_device)
    node = graph_module.graph.create_node(
        "call_function", COPY, (value,), {"device": target}, name=f"{value.name}_to_{device.name}"
    )
    node.meta.update({key: copy.copy(entry) for key, entry in value.meta.items() if key not in ("val", COPY_OF.name)})
    node.meta["val"] = fake_on(value.meta["val"], target, from_anywhere=True)
    source = DEVICE.read(value) if DEVICE.has(value) else MAIN_MEMORY
    DEVICE.write(node, device.name)
    key.write(node, Copy(value.name, source, device.name, tensor_bytes(tensor)))
    return node


def result_devices(graph_module: GraphModule) -> dict[Node, torch.device]:
    """Where the model itself would give each of its results: read before anything moves."""
    devices: dict[Node, torch.device] = {}
    for value in graph_module.graph.output_node().all_input_nodes:
        if tensors := tensors_in(value.meta.get("val")):
            devices[value] = tensors[0].device
    return devices


def return_results(graph_module: GraphModule, wanted: Mapping[Node, torch.device]) -> None:
    """Give results on the torch device on which the model itself would give them."""
    output = graph_module.graph.output_node()
    for value, home in wanted.items():
        tensors = tensors_in(value.meta.get("val"))
        if tensors and not same_torch_device(tensors[0].device, home):
            replica = _copy_there(graph_module, value, home)
            if replica is None:
                with graph_module.graph.inserting_before(output):
                    replica = copy_node(graph_module, value, Device(MAIN_MEMORY, torch_device=str(home)))
            output.replace_input_with(value, replica)


def _copy_there(graph_module: GraphModule, value: Node, home: torch.device) -> Node | None:
    """A copy of a value that is on a torch device already, if nobody writes to the value or the copy."""
    copies = [user for user in value.users if COPY_OF.has(user) and same_torch_device(user.meta["val"].device, home)]
    if not copies:
        return None
    memory = SharedMemory.of(graph_module)
    written = frozenset[int]().union(*map(memory.written_by, graph_module.graph.nodes))
    return copies[0] if written.isdisjoint(memory.storages(value) | memory.storages(copies[0])) else None
