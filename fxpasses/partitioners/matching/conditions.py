"""What a pattern may demand of a value beside its structure: dtype, shape, rank, device, users, or any question."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fxpasses.editing.submodules import get_attribute
from fxpasses.errors import PatternError
from fxpasses.partitioners.matching.bookkeeping import is_bookkeeping
from fxpasses.partitioners.matching.literals import show

__all__ = ["Condition", "conditions_from", "names_no_method", "tensor_of"]


@attrs.frozen
class Condition:
    """One demand; :meth:`why_not` answers None if it holds, else the reason in words."""

    def why_not(self, value: Any) -> str | None:
        """None if the condition holds of ``value`` (a node or a literal), else why it does not."""
        raise NotImplementedError


def tensor_of(value: Any) -> Any:
    """What is known about the tensor that a node holds (a fake or real tensor, or its metadata); None if nothing is."""
    if not isinstance(value, Node):
        return None
    known = value.meta.get("val")
    if known is None:
        known = value.meta.get("tensor_meta")
    if known is None and value.op == "get_attr" and value.graph.owning_module is not None:
        known = get_attribute(value.graph.owning_module, str(value.target), None)
    return known if hasattr(known, "dtype") and hasattr(known, "shape") else None


def _unknown(value: Any) -> str:
    if not isinstance(value, Node):
        return f"{show(value)} is a literal, not a tensor"
    return f"{value.name} has no tensor in meta['val'], so its dtype and shape are unknown"


@attrs.frozen
class HasDtype(Condition):
    """The tensor's dtype is one of several."""

    dtypes: tuple[torch.dtype, ...]

    def why_not(self, value: Any) -> str | None:
        if (tensor := tensor_of(value)) is None:
            return _unknown(value)
        if tensor.dtype in self.dtypes:
            return None
        return f"dtype is {tensor.dtype}, not {' or '.join(map(str, self.dtypes))}"


@attrs.frozen
class HasRank(Condition):
    """The tensor has one of several numbers of dimensions."""

    ranks: tuple[int, ...]

    def why_not(self, value: Any) -> str | None:
        if (tensor := tensor_of(value)) is None:
            return _unknown(value)
        rank = len(tensor.shape)
        return None if rank in self.ranks else f"rank is {rank}, not {' or '.join(map(str, self.ranks))}"


@attrs.frozen
class HasShape(Condition):
    """The tensor has this shape; None stands for any size, ``...`` for any number of dimensions."""

    shape: tuple[Any, ...]

    def why_not(self, value: Any) -> str | None:
        if (tensor := tensor_of(value)) is None:
            return _unknown(value)
        sizes = tuple(tensor.shape)
        if self._fits(sizes):
            return None
        wanted = ", ".join("..." if s is Ellipsis else "any" if s is None else str(s) for s in self.shape)
        return f"shape is {list(sizes)}, not [{wanted}]"

    def _fits(self, sizes: tuple[Any, ...]) -> bool:
        if Ellipsis not in self.shape:
            return len(sizes) == len(self.shape) and all(map(_same_size, self.shape, sizes))
        gap = self.shape.index(Ellipsis)
        head, tail = self.shape[:gap], self.shape[gap + 1 :]
        if len(sizes) < len(head) + len(tail):
            return False
        last = sizes[len(sizes) - len(tail) :]
        return all(map(_same_size, head, sizes)) and all(map(_same_size, tail, last))


def _same_size(wanted: Any, size: Any) -> bool:
    if wanted is None:
        return True
    if isinstance(size, int):
        return bool(size == wanted)
    return bool(statically_known_true(size == wanted))


@attrs.frozen
class OnDevice(Condition):
    """The tensor lies on a device; one without an index stands for all of its type."""

    devices: tuple[torch.device, ...]

    def why_not(self, value: Any) -> str | None:
        device: torch.device | None = getattr(tensor_of(value), "device", None)
        if device is None:
            return _unknown(value)
        if any(device == d or (str(d) == device.type) for d in self.devices):
            return None
        return f"device is {device}, not {' or '.join(map(str, self.devices))}"


@attrs.frozen
class HasUsers(Condition):
    """The node has so many users; guards and assertions on metadata do not count."""

    at_least: int
    at_most: int

    def why_not(self, value: Any) -> str | None:
        if not isinstance(value, Node):
            return f"{show(value)} is a literal, it has no users"
        count = sum(not is_bookkeeping(user) for user in value.users)
        if self.at_least <= count <= self.at_most:
            return None
        wanted = str(self.at_least) if self.at_least == self.at_most else f"{self.at_least} to {self.at_most}"
        return f"it has {count} users, not {wanted}"


@attrs.frozen
class Check(Condition):
    """A question of the user's own, asked with the node or literal."""

    function: Callable[[Any], bool]

    def why_not(self, value: Any) -> str | None:
        try:
            answer = self.function(value)
        except Exception as error:
            name = getattr(self.function, "__name__", repr(self.function))
            node = value if isinstance(value, Node) else None
            raise PatternError(
                f"the condition {name} of a pattern raised {type(error).__name__}: {error} (asked about {show(value)})",
                node=node,
            ) from error
        return None if answer else f"the condition {getattr(self.function, '__name__', 'check')} does not hold"


def _several(given: Any, kind: type | tuple[type, ...]) -> tuple[Any, ...]:
    return (given,) if isinstance(given, kind) else tuple(given)


def _users(given: Any) -> HasUsers:
    if isinstance(given, int):
        return HasUsers(given, given)
    counts = tuple(given) if isinstance(given, range) else ()
    if counts:
        return HasUsers(counts[0], counts[-1])
    raise PatternError(f"users= takes a number or a range, got {given!r}")


def _devices(given: Any) -> OnDevice:
    return OnDevice(tuple(torch.device(d) for d in _several(given, (str, torch.device))))


_MAKERS: dict[str, Callable[[Any], Condition]] = {
    "dtype": lambda given: HasDtype(_several(given, torch.dtype)),
    "rank": lambda given: HasRank(_several(given, int)),
    "shape": lambda given: HasShape(tuple(given)),
    "device": _devices,
    "users": _users,
    "check": lambda given: Check(given),
}


def conditions_from(given: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Conditions from keywords.

    Raises:
        PatternError: A keyword that is no condition, or a value that says nothing.
    """
    for name in given:
        if name not in _MAKERS:
            raise PatternError(f"unknown condition {name!r}; there are: {', '.join(_MAKERS)}")
    return tuple(_MAKERS[name](value) for name, value in given.items() if value is not None)


def names_no_method(name: Any) -> bool:
    """Whether no tensor has a method of this name."""
    return not isinstance(name, str) or not callable(getattr(torch.Tensor, name, None))
