"""How many bytes an operator needs for itself while it runs: masks it converts, statistics, copies of what is not dense.

Nobody knows that from a graph, so it is asked: the operator runs once on tensors without data, and what it makes inside
is followed. Operators of one kind on shapes of one kind are asked once. What a kernel hides from the dispatcher is not
seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any

import attrs
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fxpasses.attributes import find_attribute
from fxpasses.effects import analyze_effects
from fxpasses.metadata import value_of
from fxpasses.partitioners.cost import concrete_size, tensor_bytes, tensors_in

__all__ = ["workspace_bytes"]

_LOOPS = ("while_loop", "scan", "map_impl", "map", "associative_scan")


@attrs.frozen
class _Like:
    """A tensor without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def make(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)


def workspace_bytes(node: Node) -> int:
    """The most bytes that a node needs at one time beside its inputs and its result.

    Args:
        node: A node whose inputs have recorded values. Only operators that torch takes apart when they run, and
            operators with a body, are asked; all others say 0. Symbolic sizes count at their hint.
    """
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _around_bodies(node)
    if not isinstance(node.target, torch._ops.OpOverload) or not _is_taken_apart(node.target):
        return 0
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    try:
        return _asked(node.target, structure, tuple(map(_described, leaves)))
    except TypeError:  # an argument that is no tensor and cannot be compared: not asked
        return 0


@lru_cache(maxsize=4096)
def _is_taken_apart(target: torch._ops.OpOverload) -> bool:
    composite = target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    return bool(composite) and all(result.alias_info is None for result in target._schema.returns)


def _described(leaf: Any) -> Hashable:
    value = value_of(leaf) if isinstance(leaf, Node) else leaf
    if isinstance(value, Tensor):
        shape = tuple(concrete_size(size) for size in value.shape)
        stride = tuple(concrete_size(size) for size in value.stride())
        return _Like(shape, stride, value.dtype, value.device)
    if isinstance(value, torch.SymInt):
        return concrete_size(value)
    return tuple(map(_described, value)) if isinstance(value, (list, tuple)) else value  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _asked(target: torch._ops.OpOverload, structure: pytree.TreeSpec, leaves: tuple[Hashable, ...]) -> int:
    """Run an operator without data: the most bytes alive inside, less those of its result."""
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        args, kwargs = pytree.tree_unflatten([_made(leaf) for leaf in leaves], structure)
        with _Followed() as followed:
            try:
                result = target(*args, **kwargs)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                return 0  # it cannot run without data
            return max(0, followed.peak - followed.held_by(result))


def _made(leaf: Hashable) -> Any:
    if isinstance(leaf, _Like):
        return leaf.make()
    return [_made(each) for each in leaf] if isinstance(leaf, tuple) else leaf


class _Followed(TorchDispatchMode):
    """Follows the storages that operators make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.known: set[int] = set()
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.known.update(storage._cdata for storage in _storages(args) if storage._cdata not in self.alive)
        result = func(*args, **(kwargs or {}))
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        for storage in _storages(result):
            if storage._cdata not in self.known:
                self.alive[storage._cdata] = (StorageWeakRef(storage), concrete_size(storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result

    def held_by(self, result: Any) -> int:
        """Bytes of what was made and is in the result."""
        made = dict.fromkeys(storage._cdata for storage in _storages(result))
        return sum(self.alive[key][1] for key in made if key in self.alive)


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors_in(value):
        yield tensor.untyped_storage()


# ---------------------------------------------------------------------------------------------------------------------
# Bodies
# ---------------------------------------------------------------------------------------------------------------------


def _around_bodies(node: Node) -> int:
    """What the hungriest body makes; its result is the node's own, but for a loop, which makes one each round."""
    owner = node.graph.owning_module
    held = [] if owner is None else [find_attribute(owner, str(used.target)).value for used in _attributes(node)]
    most = max((_most_alive(body) for body in held if isinstance(body, GraphModule)), default=0)
    if getattr(node.target, "_name", "") in _LOOPS:
        return most
    return max(0, most - sum(map(tensor_bytes, tensors_in(value_of(node)))))


def _attributes(node: Node) -> list[Node]:
    return [used for used in node.all_input_nodes if used.op == "get_attr"]


def _most_alive(body: GraphModule) -> int:
    """The most bytes that a body makes and has at one time."""
    effects = analyze_effects(body)
    given = {s for node in body.graph.nodes if node.op in ("placeholder", "get_attr") for s in effects.storages(node)}
    sizes: dict[int, int] = {}
    last: dict[int, Node] = {}
    for node in body.graph.nodes:
        for storage in effects.storages(node):
            if storage not in given and storage >= 0 and node.op != "output":
                made = sum(map(tensor_bytes, tensors_in(value_of(node)))) // len(effects.storages(node))
                sizes[storage] = max(sizes.get(storage, 0), made)
        for used in (node, *node.all_input_nodes):
            last.update((storage, node) for storage in effects.storages(used) if storage in sizes)
    alive: dict[int, int] = {}
    most = 0
    for node in body.graph.nodes:
        alive.update((storage, sizes[storage]) for storage in effects.storages(node) if storage in sizes)
        most = max(most, sum(alive.values()) + workspace_bytes(node))
        alive = {storage: size for storage, size in alive.items() if last[storage] is not node}
    return most
