"""Inputs that the model writes to: no other input may lie in their memory.

A model is captured, and placed, for inputs of their own: what is read of one may be read after another was written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from fxpasses.errors import InputError
from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.passes.placing_parts.shared_memory import SharedMemory

__all__ = ["WrittenInputs", "overlap"]


@attrs.frozen(eq=False)
class WrittenInputs:
    """Refuses inputs in the memory of one that is written to.

    Args:
        names: The inputs that the model uses, by their number among all that are given.
        written: Those of them that it writes to.
    """

    names: Mapping[int, str]
    written: Sequence[int]

    @classmethod
    def of(cls, memory: SharedMemory) -> WrittenInputs | None:
        """Read off the top level of a placed graph; None where no input is written to. Linear in nodes."""
        changed = set(memory.effects.written_inputs())
        inputs = [node for node in memory.effects.nodes if node.op == "placeholder"]
        used = {at: node for at, node in enumerate(inputs) if node.users and tensors_in(node.meta.get("val"))}
        written = [at for at, node in used.items() if node in changed]
        return cls({at: node.name for at, node in used.items()}, written) if written else None

    def check(self, leaves: Sequence[Any]) -> None:
        """Look at the inputs of one call. Linear in them; more where several are in one storage.

        Raises:
            InputError: one of them lies where another one is written to.
        """
        for at, other in self._beside(leaves):
            if leaves[at] is leaves[other] or overlap(leaves[at], leaves[other]):
                raise InputError(
                    f"The inputs {self.names[at]!r} and {self.names[other]!r} share memory, and the model writes to "
                    f"{self.names[at]!r}: it was captured for inputs of their own. Give a clone of one of them."
                )

    def _beside(self, leaves: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Each input that is written to, with others that may lie in its memory: those in its storage."""
        if torch.compiler.is_compiling():  # which shows no storages
            pairs = ((at, other) for at in self.written for other in self.names)
            yield from ((at, other) for at, other in pairs if at != other and leaves[at] is leaves[other])
            return
        storages: dict[int, list[int]] = {}
        for at in self.names:
            storages.setdefault(_storage(leaves[at]), []).append(at)
        for at in self.written:
            yield from ((at, other) for other in storages[_storage(leaves[at])] if at != other)


def _storage(tensor: torch.Tensor) -> int:
    """What tells a storage from others; the tensor itself where torch shows none."""
    is_hidden = tensor.layout != torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return id(tensor) if is_hidden else tensor.untyped_storage()._cdata


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors in one storage have a byte in common.

    Exact: the places of an element are sums of strides, so it is asked whether a sum of the strides of both is the
    distance between them. Each stride has few multiples that the smaller ones can make up for, unless somebody has laid
    out elements over each other.
    """
    if not (one.numel() and other.numel()):
        return False
    ranges: dict[int, tuple[int, int]] = {}
    for tensor, sign in ((one, 1), (other, -1)):
        size = tensor.element_size()
        for stride, count in ((1, size), *zip((each * size for each in tensor.stride()), tensor.shape, strict=True)):
            low, high = ranges.get(stride, (0, 0))
            ranges[stride] = (low - (count - 1), high) if sign < 0 else (low, high + count - 1)
    distance = other.storage_offset() * other.element_size() - one.storage_offset() * one.element_size()
    return _is_sum(int(distance), [(stride, *ranges[stride]) for stride in sorted(ranges, reverse=True) if stride])


def _is_sum(wanted: int, terms: Sequence[tuple[int, int, int]]) -> bool:
    """Whether multiples of strides, each between two bounds, add up to a number."""
    if not terms:
        return wanted == 0
    (stride, low, high), rest = terms[0], terms[1:]
    least, most = _bounds(rest)
    first, last = max(low, -((most - wanted) // stride)), min(high, (wanted - least) // stride)
    return any(_is_sum(wanted - times * stride, rest) for times in range(first, last + 1))


def _bounds(terms: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    low = high = 0
    for stride, fewest, most in terms:
        low, high = low + stride * fewest, high + stride * most
    return low, high
