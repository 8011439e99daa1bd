"""What a trilinear product on the CPU does: products of matrices, of two operands and then with the third, in slices.

It is one operator to a dispatcher. Its operands are turned into matrices first, in copies where views do not do it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

__all__ = ["trilinear_by_steps"]


def trilinear_by_steps(
    first: Tensor,
    second: Tensor,
    third: Tensor,
    lacking_first: Sequence[int],
    lacking_second: Sequence[int],
    lacking_third: Sequence[int],
    summed: Sequence[int],
    along: int = 1,
) -> Tensor:
    """One slice of the product, and all of its result: the other slices need the same, one after the other.

    Args:
        first: An operand.
        second: Another one.
        third: And another one.
        lacking_first: The dimensions that it lacks.
        lacking_second: The same of the second one.
        lacking_third: The same of the third one.
        summed: Those that are summed up.
        along: The one with the slices.
    """
    lacking = (lacking_first, lacking_second, lacking_third)
    operands = [_with(each, places) for each, places in zip((first, second, third), lacking, strict=True)]
    sizes = [1 if place in summed else max(each) for place, each in enumerate(zip(*_shapes(operands), strict=True))]
    result = first.new_zeros(sizes)
    if result.numel():
        left, middle, right = (each.narrow(along, 0, 1) for each in operands)
        early = [place for place in summed if place in lacking_third]
        made = _summed_product(left, middle, early)
        made = _summed_product(made, right, [place for place in summed if place not in lacking_third])
        result.narrow(along, 0, 1).add_(made)
    return result.squeeze(tuple(summed))


def _shapes(operands: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(each.shape) for each in operands]


def _with(operand: Tensor, places: Sequence[int]) -> Tensor:
    """An operand with a dimension of one at each place that it lacks."""
    for place in sorted(places):
        operand = operand.unsqueeze(place)
    return operand


def _summed_product(left: Tensor, right: Tensor, summed: Collection[int]) -> Tensor:
    """The product of two operands, summed up over some dimensions, which stay with one element: one of matrices."""
    if not summed:
        return left * right
    for place in summed:
        if left.shape[place] == 1 != right.shape[place]:
            right = right.sum(place, keepdim=True)
        elif right.shape[place] == 1 != left.shape[place]:
            left = left.sum(place, keepdim=True)
    others = [place for place in range(left.dim()) if place not in summed]
    of_left = [place for place in others if right.shape[place] == 1 != left.shape[place]]
    of_both = [place for place in others if 1 not in (left.shape[place], right.shape[place])]
    of_right = [place for place in others if place not in (*of_left, *of_both)]
    rows, columns = _count(left, of_left), _count(right, of_right)
    several, depth = _count(left, of_both), _count(left, summed)
    product = torch.bmm(
        left.permute(*of_both, *of_left, *summed, *of_right).reshape(several, rows, depth),
        right.permute(*of_both, *summed, *of_right, *of_left).reshape(several, depth, columns),
    )
    order = (*of_both, *of_left, *summed, *of_right)
    shape = [1 if place in summed else max(left.shape[place], right.shape[place]) for place in order]
    return product.view(shape).permute([order.index(place) for place in range(left.dim())])


def _count(operand: Tensor, places: Collection[int]) -> int:
    return math.prod(operand.shape[place] for place in places)
