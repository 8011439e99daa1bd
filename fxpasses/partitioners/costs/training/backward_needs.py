"""What a backward keeps and makes: the memory of a training step that is no value of the forward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs
from torch.fx import Node

__all__ = ["BackwardNeeds", "CutOff", "Stay", "with_passing_joined"]


@attrs.define(eq=False)
class Stay:
    """Memory that is there in a backward, and is no value of the forward.

    Args:
        size: Bytes.
        made_by: The node that makes it, in its forward or its backward, or whose result the caller has a gradient of.
        begin: When it comes: in the forward of this node, with the caller's gradients, or in the backward of this node.
        last: The node in whose backward it is freed; None for what is there in the end.
        readers: The nodes whose backward reads it.
        passed: The nodes whose value has its gradient in it, with the bytes of all elements of this gradient: it may be
            one number that is repeated, or a part of it.
        gradient_of: The parameters whose gradient it is: what one of their users gives, or a sum of several.
        is_sum: Whether autograd itself has made it, from two gradients or from one that it has to leave alone.
    """

    size: int
    made_by: Node
    begin: Literal["forward", "given", "backward"] = "backward"
    last: Node | None = None
    readers: dict[Node, None] = attrs.field(factory=dict)
    passed: dict[Node, int] = attrs.field(factory=dict)
    gradient_of: dict[Node, None] = attrs.field(factory=dict)
    is_sum: bool = False

    @property
    def is_passing(self) -> bool:
        """Whether it comes and goes in the backward of one node."""
        return self.begin == "backward" and self.last is self.made_by

    @property
    def is_own(self) -> bool:
        """Whether it comes and goes in the backward of one node, and no other has anything to do with it."""
        if not self.is_passing or self.gradient_of:
            return False
        return all(node is self.made_by for node in (*self.readers, *self.passed))


def with_passing_joined(stays: Iterable[Stay]) -> list[Stay]:
    """One stay of all bytes for what is a node's own, wherever the node is: so they are followed once.

    A product of reflections makes and frees hundreds of rows in its backward.
    """
    found, own = list[Stay](), dict[Node, Stay]()
    for stay in stays:
        if not stay.is_own:
            found.append(stay)
        elif (joined := own.get(stay.made_by)) is not None:
            joined.size += stay.size
        else:
            joined = own[stay.made_by] = Stay(stay.size, stay.made_by, last=stay.last)
            found.append(joined)
    return found


@attrs.frozen
class CutOff:
    """What autograd keeps for a backward that nobody can ask for, as of a teacher whose result is detached.

    Args:
        saved: The nodes whose storage it keeps.
        holders: The nodes whose value, or whose own function, holds the function that it keeps it for. It goes with the
            last of them.
    """

    saved: tuple[Node, ...]
    holders: tuple[Node, ...]


@attrs.frozen(eq=False)
class BackwardNeeds:
    """What autograd does with one forward graph.

    Args:
        saved: For each node the nodes whose storage it keeps for its backward: its inputs, itself, or older bases.
        held_to_end: Of these, for each node, those whose storage its function holds itself, as long as it is there: to
            the end of the step. A custom operator's ``ctx`` may; a branch holds its operands.
        saved_tangents: For each node those whose tangents it keeps for its backward.
        extra: For each node the bytes that it keeps besides: masks, statistics, converted copies.
        differentiable: The nodes whose value gets a gradient.
        inside: For each node the bytes that its forward needs for itself, beside all that it keeps.
        stays: What is kept besides, gradients, and what the backward makes for itself.
        beside: For each node the most bytes at one time during its backward, less all that stays before or after it.
            There may be fewer: what a backward reads is gone before the last of what it makes is there.
        inside_on_cpu: As ``inside``, with what kernels on the CPU need for themselves.
        beside_on_cpu: As ``beside``, likewise.
        beside_sums: As ``beside``, while autograd itself adds up gradients.
        trained: For each parameter with a gradient the node whose backward makes it, the last one of several.
    """

    saved: Mapping[Node, tuple[Node, ...]]
    extra: Mapping[Node, int]
    differentiable: Mapping[Node, None]
    inside: Mapping[Node, int] = attrs.field(factory=dict)
    stays: Sequence[Stay] = ()
    beside: Mapping[Node, int] = attrs.field(factory=dict)
    trained: Mapping[Node, Node] = attrs.field(factory=dict)
    inside_on_cpu: Mapping[Node, int] = attrs.field(factory=dict)
    beside_on_cpu: Mapping[Node, int] = attrs.field(factory=dict)
    beside_sums: Mapping[Node, int] = attrs.field(factory=dict)
    saved_tangents: Mapping[Node, tuple[Node, ...]] = attrs.field(factory=dict)
    cut_off: Mapping[Node, CutOff] = attrs.field(factory=dict)
    held_to_end: Mapping[Node, tuple[Node, ...]] = attrs.field(factory=dict)
