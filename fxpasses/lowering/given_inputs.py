"""What a caller gives a lowered model, checked, in the captured order, and where the parts that read it expect it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.devices import same_torch_device
from fxpasses.errors import InputError
from fxpasses.lowering.written_inputs import WrittenInputs
from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.passes.placing_parts.shared_memory import SharedMemory
from fxpasses.programs.input_contract import InputContract, is_traced

__all__ = ["GivenInputs"]


@attrs.frozen
class _Place:
    """Where an input is read: where it was when the model was captured, unless only copies read it.

    Args:
        name: Of the input.
        device: Where parts read it.
        is_written: Whether one writes to it.
        is_copied: Whether only copies read it, which take it from wherever there is data.
    """

    name: str
    device: torch.device
    is_written: bool
    is_copied: bool

    def holds(self, given: torch.Tensor) -> bool:
        if self.is_copied:
            return not given.is_meta
        return given.device == self.device or same_torch_device(given.device, self.device)

    def take(self, given: torch.Tensor) -> torch.Tensor:
        """The tensor in this place; autograd passes through the copy."""
        if self.is_written:
            raise InputError(
                f"The input {self.name!r} is on {given.device}, but the model writes to it where it was captured, on "
                f"{self.device}: give it there, or capture the model with an input on {given.device}."
            )
        if given.is_meta:
            raise InputError(
                f"The input {self.name!r} is on meta, where there is no data, and the model reads it on {self.device}: "
                "give a tensor with data."
            )
        return given.to(self.device)


@attrs.frozen(eq=False)
class GivenInputs:
    """Checks, orders and moves the inputs of a lowered model before each call.

    Args:
        contract: What it was captured with.
        places: Where inputs are read, by their number among all that are given.
        written: Those that the model writes to, if any.
    """

    contract: InputContract
    places: Mapping[int, _Place]
    written: WrittenInputs | None = None

    @classmethod
    def of(cls, contract: InputContract, graph_module: GraphModule) -> GivenInputs:
        """Read off the top level of a placed graph. Linear in nodes and edges."""
        memory = SharedMemory.of(graph_module)
        inputs = graph_module.graph.find_nodes(op="placeholder")
        places = {at: place for at, node in enumerate(inputs) if (place := _place(node, memory)) is not None}
        return cls(contract, places, WrittenInputs.of(memory))

    def leaves_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Inputs flat, in the order of the placeholders.

        Raises:
            InputError: they are not what the model was captured with, or cannot be where it reads them.
        """
        leaves = self.contract.leaves_of(args, kwargs)
        self._bring(leaves)
        return leaves

    def __call__(self, _module: Any, args: Any, kwargs: Any) -> Any:
        """As a hook before the graph's own code."""
        bound, named = self.contract.bind(args, kwargs)
        leaves, structure = pytree.tree_flatten(bound)
        return pytree.tree_unflatten(leaves, structure) if self._bring(leaves) else bound, named

    def _bring(self, leaves: list[Any]) -> bool:
        """Put what is elsewhere where it is read; whether there was any."""
        if is_traced(leaves):
            return False
        if self.written is not None:
            self.written.check(leaves)
        elsewhere = [at for at, place in self.places.items() if not place.holds(leaves[at])]
        for at in elsewhere:
            leaves[at] = self.places[at].take(leaves[at])
        return bool(elsewhere)


def _place(node: Node, memory: SharedMemory) -> _Place | None:
    """The place of an input that a part, or a region of parts, reads, or a copy."""
    readers = [user for user in node.users if user.op == "call_module" or isinstance(user.target, HigherOrderOperator)]
    tensors = tensors_in(node.meta.get("val"))
    is_copied = not readers and any(user.op == "call_function" for user in node.users)
    if not (readers or is_copied) or not tensors or tensors[0].is_meta:  # captured without data: it may be anywhere
        return None
    storages = memory.storages(node)
    is_written = any(not storages.isdisjoint(memory.written_by(reader)) for reader in readers)
    return _Place(node.name, tensors[0].device, is_written, is_copied)
