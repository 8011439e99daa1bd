"""Run an operator on tensors without data, to learn what it makes: views or copies, and what it needs inside.

Operators of one kind on shapes of one kind run once. What a kernel hides from the dispatcher is not seen.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import attrs
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fxpasses.collecting import collection_paused
from fxpasses.editing.attributes import find_attribute
from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.kernels.batched_operands import with_rows
from fxpasses.partitioners.costs.kernels.composite_operators import in_steps, is_composite
from fxpasses.partitioners.costs.kernels.derivative_levels import InDerivative, with_tangents
from fxpasses.partitioners.costs.kernels.described_values import Like, called, described, without_data
from fxpasses.partitioners.costs.kernels.followed_storages import CANNOT_RUN, FollowedStorages
from fxpasses.partitioners.costs.kernels.kernel_scratch import may_need_scratch, scratch_bytes
from fxpasses.partitioners.costs.kernels.kernels_in_use import InInference, on_cpu
from fxpasses.partitioners.jvp_tangents import Levels, tangent_levels
from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.partitioners.vmap_rows import Rows, row_levels, rows_of
from fxpasses.values import has_size_of_data

__all__ = ["Autocast", "DryRun", "dry_run", "makes_a_copy", "run_body"]

_METHODS_THAT_MAY_COPY = (
    *("contiguous", "flatten", "ravel", "reshape", "reshape_as", "to", "type", "type_as"),
    *("bfloat16", "bool", "cpu", "cuda", "double", "float", "half", "int", "long", "short"),
)


@attrs.frozen
class DryRun:
    """What an operator makes, inside of ``torch.vmap`` for all rows.

    Args:
        made: Bytes of its result that are not memory of its operands.
        inside: The most bytes that it needs at one time beside its operands and its result.
        kept: Of these, what autocast keeps to its end: parameters in another type.
        scratch: How many more it needs on the CPU, where kernels need something for themselves, or fewer.
    """

    made: int = 0
    inside: int = 0
    kept: int = 0
    scratch: int = 0

    @classmethod
    def of(cls, followed: FollowedStorages, made: int, kept: int = 0) -> DryRun:
        """What was followed."""
        inside, most = max(0, followed.peak - made), max(0, followed.most - made)
        return cls(made, inside, kept, most - inside)

    def times(self, rows: int) -> DryRun:
        """As much for each row."""
        return DryRun(rows * self.made, rows * self.inside, self.kept, rows * self.scratch)


@attrs.frozen
class Autocast:
    """Under which an operator runs: it may copy operands in another type, and keep the copies of parameters."""

    device: str
    dtype: torch.dtype
    enabled: bool
    cached: bool = False

    @classmethod
    def of(cls, settings: Sequence[Any]) -> Autocast:
        """What a region says: device, type (the default one where it is None), whether it is on, and keeps casts."""
        device, enabled = str(settings[0]), len(settings) < 3 or bool(settings[2])
        given = settings[1] if len(settings) > 1 else None
        dtype = given if isinstance(given, torch.dtype) else torch.get_autocast_dtype(device)
        return cls(device, dtype, enabled, enabled and len(settings) > 3 and bool(settings[3]))


_WITHOUT_STRIDES = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def dry_run(node: Node, autocast: Autocast | None = None) -> DryRun | None:
    """Run a node without data.

    Args:
        node: A node whose inputs have recorded values. Symbolic sizes count at their hint.
        autocast: What it runs under.

    Returns:
        What it makes; None for what torch does not take apart when it runs, and for what cannot run so.
    """
    if not _may_run(node, autocast):
        return None
    if has_size_of_data(node):
        return _as_recorded(node)
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    is_cached = autocast is not None and autocast.cached
    describe = _described_as_trained if is_cached or not _may_view(node.target) else described
    operands = tuple(_with_levels(leaf, describe(leaf)) for leaf in leaves)
    threads = torch.get_num_threads()
    try:
        rows = rows_of(node)
        if rows > 1 and not any(map(_levels, operands)):
            in_rows = tuple(map(_with_rows, leaves, operands))
            if (ran := _ran(node.target, structure, in_rows, autocast, threads, row_levels(node))) is not None:
                return ran
        ran = _ran(node.target, structure, operands, autocast, threads)
    except TypeError:  # an argument that is no tensor and cannot be compared
        return None
    if ran is None:
        return _as_recorded(node) if _reads_sparse(node) else None
    return ran.times(rows)


def _reads_sparse(node: Node) -> bool:
    """Whether an operand is sparse, so that no dense one without data stands in for it."""
    return any(each.layout is torch.sparse_coo for each in tensors_in(list(map(value_of, node.all_input_nodes))))


def _as_recorded(node: Node) -> DryRun:
    """What an operator needs whose data say how much it makes, or that is sparse: as much as was recorded."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        args, result = pytree.tree_map(lambda leaf: without_data(described(leaf)), (node.args, value_of(node)))
        return DryRun(scratch=scratch_bytes(node.target, args, result))


def run_body(node: Node, autocast: Autocast | None = None) -> DryRun | None:
    """Run a node that has a body without data, as in a model that is trained: autocast keeps copies of its parameters.

    Args:
        node: A node whose inputs have recorded values.
        autocast: What it runs under.

    Returns:
        What it makes; None for what cannot run so.
    """
    owner = node.graph.owning_module
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = map_arg((node.args, node.kwargs), lambda used: _operand(used, owner))
        with collection_paused(), FollowedStorages() as followed, _under(autocast):
            try:
                result = node.target(*args, **kwargs)  # type: ignore[operator]  # an operator
            except CANNOT_RUN:
                return None
            made = followed.held_by(result)
            return DryRun.of(followed, made).times(rows_of(node))


def _operand(node: Node, owner: GraphModule | None) -> Any:
    value = find_attribute(owner, str(node.target)).value if node.op == "get_attr" and owner is not None else None
    if isinstance(value, GraphModule):
        return value
    made = without_data(described(node))
    return made.requires_grad_(value.requires_grad) if isinstance(value, torch.nn.Parameter) else made


def _with_levels(leaf: Any, found: Hashable) -> Hashable:
    """The derivatives in which an operand has tangents, if any."""
    levels = tangent_levels(leaf) if isinstance(leaf, Node) else ()
    return attrs.evolve(found, tangents=levels) if levels and isinstance(found, Like) else found


def _with_rows(leaf: Any, found: Hashable) -> Hashable:
    """The levels in which an operand has rows, if any."""
    rows = row_levels(leaf) if isinstance(leaf, Node) else ()
    return attrs.evolve(found, rows=rows) if rows and isinstance(found, Like) else found


def _described_as_trained(leaf: Any) -> Hashable:
    """The same, and whether it is a parameter that is trained, or a view of one.

    Autocast keeps the casts of those only, and ``matmul`` folds a batch for those, though it then copies.
    """
    found = described(leaf)
    if isinstance(found, Like) and isinstance(leaf, Node):
        source = _viewed(leaf)
        owner = source.graph.owning_module
        value = None if source.op != "get_attr" or owner is None else find_attribute(owner, str(source.target)).value
        is_trained = isinstance(value, torch.nn.Parameter) and value.requires_grad
        dtype = found.dtype
        return attrs.evolve(found, is_trained=is_trained and (dtype.is_floating_point or dtype.is_complex))
    return found


def _viewed(node: Node) -> Node:
    """What a value is a view of to autograd, which takes a view of a parameter for one also where it is off."""
    while node.op == "call_function" and node.all_input_nodes:
        is_view = node.target is operator.getitem or _may_view(node.target)
        if not is_view or node.target is torch.ops.aten.detach.default or makes_a_copy(node):
            break
        node = node.all_input_nodes[0]
    return node


def _may_view(target: Any) -> bool:
    """Whether the result of an operator may be memory of its operand, which it does not write to."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return any(result.alias_info is not None for result in target._schema.returns)


def makes_a_copy(node: Node) -> bool:
    """Whether a node that may give a view of its operand (``reshape``, ``to``, ``x[...]``) gives new memory."""
    if node.target is operator.getitem:
        return _gathers(*node.args)
    ran = dry_run(node)
    return ran is not None and ran.made > 0


def _gathers(source: Any, index: Any) -> bool:
    """Whether elements are picked by a list or by a tensor; numbers and slices look at what is there."""
    if not (isinstance(source, Node) and isinstance(value_of(source), Tensor)):
        return False
    for each in index if isinstance(index, tuple) else (index,):
        value = value_of(each) if isinstance(each, Node) else each
        if isinstance(value, list) or (isinstance(value, Tensor) and (value.dim() > 0 or value.dtype == torch.bool)):
            return True
    return False


def _may_run(node: Node, autocast: Autocast | None) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        if any(map(tangent_levels, node.all_input_nodes)) or rows_of(node) > 1:
            return True
        operands = [each for used in node.all_input_nodes for each in tensors_in(value_of(used))]
        if any(each.layout in _WITHOUT_STRIDES for each in operands):
            return False
        if may_need_scratch(node.target, node.args, operands, value_of(node)) or in_steps(node.target, node.args):
            return True
        return not node.target._schema.is_mutable and (autocast is not None or is_composite(node.target))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_torchs = node.op == "call_method" or getattr(torch, name, None) is node.target
    return node.op in ("call_method", "call_function") and is_torchs and name in _METHODS_THAT_MAY_COPY


@lru_cache(maxsize=4096)
def _ran(
    target: Any,
    structure: pytree.TreeSpec,
    leaves: tuple[Hashable, ...],
    autocast: Autocast | None,
    _threads: int,  # of which there may be others the next time; kernels have scratch for each
    rows: Rows = (),
) -> DryRun | None:
    if rows:
        return _run_once(target, structure, leaves, autocast, rows=rows)
    if any(map(_levels, leaves)):
        return _run_once(target, structure, leaves, autocast, InDerivative)
    ran = _run_once(target, structure, leaves, autocast)
    otherwise = on_cpu(target) if autocast is None else None
    if ran is None or not ran.inside or otherwise is None or any(map(_is_elsewhere, leaves)):
        return ran
    there = _run_once(otherwise, structure, leaves, autocast, InInference)
    return ran if there is None else attrs.evolve(ran, scratch=there.inside + there.scratch - ran.inside)


def _is_elsewhere(leaf: Hashable) -> bool:
    return isinstance(leaf, Like) and leaf.device.type != "cpu"


def _levels(leaf: Hashable) -> Levels:
    return leaf.tangents if isinstance(leaf, Like) else ()


def _rows(leaf: Hashable) -> Rows:
    return leaf.rows if isinstance(leaf, Like) else ()


def _run_once(
    target: Any,
    structure: pytree.TreeSpec,
    leaves: tuple[Hashable, ...],
    autocast: Autocast | None,
    follow: type[FollowedStorages] = FollowedStorages,
    rows: Rows = (),
) -> DryRun | None:
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        given, levels = list(map(without_data, leaves)), list(map(_levels, leaves))
        with (
            collection_paused(),
            with_tangents(given, levels) as duals,
            with_rows(duals, list(map(_rows, leaves)), rows) as operands,
            follow() as followed,
            _under(autocast),
        ):
            args, kwargs = pytree.tree_unflatten(operands, structure)
            try:
                result = called(target)(*args, **kwargs)
            except CANNOT_RUN:
                return None
            made = followed.held_by(result)
            followed.forget_gone()
            if any(levels):  # the tangents of the result are in it
                made = followed.held
            kept = max(0, followed.held - made) if autocast is not None and autocast.cached else 0
            return DryRun.of(followed, made, kept)


@contextmanager
def _under(autocast: Autocast | None) -> Iterator[None]:
    """Autocast as it is set, also for devices that are not there; nothing that it casts is kept for the next one."""
    if autocast is None:
        yield
        return
    device = autocast.device
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
    _set_autocast(device, autocast.enabled, autocast.dtype, autocast.cached)
    try:
        yield
    finally:
        _set_autocast(device, *before)
        if autocast.cached:
            torch.clear_autocast_cache()


def _set_autocast(device: str, enabled: bool, dtype: torch.dtype, cached: bool) -> None:
    torch.set_autocast_enabled(device, enabled)
    torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)
