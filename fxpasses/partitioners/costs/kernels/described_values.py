"""Values of nodes without their data, laid out as kernels do it: where that is not what was recorded, it is noted.

A capture records what torch's run without data says. Of a view that has a dimension of one element that may be another
stride than the kernel's (see :mod:`~fxpasses.partitioners.costs.kernels.kernel_results`), and what is made of it
follows.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.kernels.followed_storages import CANNOT_RUN, FollowedStorages
from fxpasses.partitioners.tensor_sizes import concrete_size, tensors_in
from fxpasses.partitioners.vmap_rows import Rows
from fxpasses.values import nested_graph_modules

__all__ = ["Like", "called", "described", "note_layouts", "without_data"]

aten = torch.ops.aten

_VIEWS: frozenset[Any] = frozenset(
    (
        *(aten.view.default, aten._unsafe_view.default, aten.view_as.default, aten.reshape.default),
        *(aten.reshape_as.default, aten.flatten.using_ints, aten.unflatten.int, torch.flatten, torch.reshape),
        *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten"),
    )
)
_LAID_OUT_ANEW: frozenset[Any] = frozenset(
    (
        *(aten.roll.default, aten.batch_norm.default, aten.native_batch_norm.default),
        *(aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_no_training.default),
        *(aten.channel_shuffle.default, aten.native_channel_shuffle.default, aten.max_unpool2d.default),
        *(aten.replication_pad3d.default, aten.reflection_pad3d.default, aten.pad.default, aten.pow.Scalar),
        *(aten.log_sigmoid.default, aten.log_sigmoid_forward.default),
    )
)
"""What kernels make in a layout of their own, of operands that are not dense."""
_LAYOUTS: WeakKeyDictionary[Node, Hashable] = WeakKeyDictionary()  # of values that are not as they were recorded


@attrs.frozen
class Like:
    """A tensor without its data.

    ``tangents`` are the derivatives in which it has some, ``rows`` the levels of ``torch.vmap``.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    is_trained: bool = False
    is_conjugate: bool = False
    is_negated: bool = False
    tangents: tuple[int, ...] = ()
    rows: Rows = ()

    @property
    def is_dense(self) -> bool:
        """Whether its elements lie in their order, one after the other."""
        elements = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size > 1 and stride != elements:
                return 0 in self.shape
            elements *= size
        return True

    def make(self) -> Tensor:
        """One without data, inside of a mode that makes such; with all its rows, one after the other."""
        shape, stride = self.shape, self.stride
        for _level, size in reversed(self.rows):
            apart = 1 + sum(max(0, count - 1) * step for count, step in zip(shape, stride, strict=True))
            shape, stride = (size, *shape), (apart, *stride)
        made = torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device)
        made = made.conj() if self.is_conjugate else made
        made = torch._neg_view(made) if self.is_negated else made
        return made.requires_grad_() if self.is_trained else made  # inside of ``torch.vmap`` it may not be asked for


def described(leaf: Any) -> Hashable:
    """A value, or that of a node, where tensors are told by their layout and sizes are numbers."""
    if isinstance(leaf, Node):
        return _LAYOUTS[leaf] if leaf in _LAYOUTS else described(value_of(leaf))
    if isinstance(leaf, Tensor):
        shape = tuple(concrete_size(size) for size in leaf.shape)
        stride = tuple(concrete_size(size) for size in leaf.stride())
        return Like(shape, stride, leaf.dtype, leaf.device, is_conjugate=leaf.is_conj(), is_negated=leaf.is_neg())
    if isinstance(leaf, torch.SymInt):
        return concrete_size(leaf)
    return tuple(map(described, leaf)) if isinstance(leaf, (list, tuple)) else leaf


def without_data(leaf: Hashable) -> Any:
    """What was described."""
    if isinstance(leaf, Like):
        return leaf.make()
    return [without_data(each) for each in leaf] if isinstance(leaf, tuple) else leaf


def called(target: Any) -> Any:
    """The function that a node calls, also by the name of a method."""
    return getattr(Tensor, target) if isinstance(target, str) else target


def note_layouts(graph_module: GraphModule) -> None:
    """Note which values of a graph and of its bodies kernels lay out in another way than was recorded.

    O(nodes): only views are looked at, and what follows from those that differ.
    """
    for inner in nested_graph_modules(graph_module):
        for node in inner.graph.nodes:
            _LAYOUTS.pop(node, None)
            if _may_differ(node) and (found := _laid_out(node)) is not None and found != described(node):
                _LAYOUTS[node] = found


def _may_differ(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    is_view = node.target in _VIEWS
    if node.target in _LAID_OUT_ANEW and isinstance(operand := described(node.all_input_nodes[0]), Like):
        return not operand.is_dense
    if any(used in _LAYOUTS for used in node.all_input_nodes):
        follows = is_view or node.target is operator.getitem or isinstance(node.target, OpOverload)
        return follows and bool(tensors_in(value_of(node)))
    return is_view and isinstance(made := described(node), Like) and 1 in made.shape


def _laid_out(node: Node) -> Hashable:
    if node.target is operator.getitem:
        source, index = described(node.args[0]), node.args[1]
        return source[index] if isinstance(source, tuple) and isinstance(index, int) else None
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    try:
        return _ran(node.target, structure, tuple(map(described, leaves)))
    except TypeError:  # an argument that is no tensor and cannot be compared
        return None


@lru_cache(maxsize=4096)
def _ran(target: Any, structure: pytree.TreeSpec, leaves: tuple[Hashable, ...]) -> Hashable:
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), FollowedStorages():
        args, kwargs = pytree.tree_unflatten([without_data(leaf) for leaf in leaves], structure)
        try:
            return described(called(target)(*args, **kwargs))
        except CANNOT_RUN:
            return None
