"""Learn what the backward of a graph keeps and makes: autograd runs once, both ways, on tensors without data.

Nothing is guessed: hooks say which storages the forward saves, and a dispatch mode follows each storage that the
backward makes, from the node whose backward makes it to the one in whose backward it is freed. So views, gradients that
are handed on, sums where a value is used twice, and what a backward needs for itself count as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from fxpasses.devices import is_here
from fxpasses.errors import PlacementError
from fxpasses.partitioners.costs.followed_storages import CANNOT_RUN, FollowedStorages, collecting_later, storages_in
from fxpasses.partitioners.costs.graph_figures import value_bytes
from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes, tensors_in

__all__ = ["BackwardNeeds", "Stay", "trace_backward"]

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)
"""Types of indices that say yes or no."""
_BRANCHING = torch.ops.higher_order.cond


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
    """

    size: int
    made_by: Node
    begin: Literal["forward", "given", "backward"] = "backward"
    last: Node | None = None
    readers: dict[Node, None] = attrs.field(factory=dict)
    passed: dict[Node, int] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class BackwardNeeds:
    """What autograd does with one forward graph.

    Args:
        saved: For each node the nodes whose storage it keeps for its backward: its inputs, itself, or older bases.
        extra: For each node the bytes that it keeps besides: masks, statistics, converted copies.
        differentiable: The nodes whose value gets a gradient.
        inside: For each node the bytes that its forward needs for itself, beside all that it keeps.
        stays: What is kept besides, gradients, and what the backward makes for itself.
        beside: For each node the most bytes at one time during its backward, less all that stays before or after it.
            There may be fewer: what a backward reads is gone before the last of what it makes is there.
        trained: For each parameter with a gradient the node whose backward makes it, the last one of several.
    """

    saved: Mapping[Node, tuple[Node, ...]]
    extra: Mapping[Node, int]
    differentiable: Mapping[Node, None]
    inside: Mapping[Node, int] = attrs.field(factory=dict)
    stays: Sequence[Stay] = ()
    beside: Mapping[Node, int] = attrs.field(factory=dict)
    trained: Mapping[Node, Node] = attrs.field(factory=dict)


def trace_backward(graph_module: GraphModule, *, inputs_need_gradients: bool = False) -> BackwardNeeds:
    """Ask autograd what it keeps and makes for the backward of a graph. One run without data, about 0.5 ms a node.

    Where an operator has no backward that runs so, each value counts as having one gradient of its size.

    Args:
        graph_module: A forward graph that holds its parameters; its inputs have recorded values.
        inputs_need_gradients: Whether the gradients of floating-point inputs are wanted, too.

    Raises:
        PlacementError: An operator cannot run without data, so that nobody knows what it keeps.
    """
    forward = _Forward(graph_module)
    with collecting_later(), torch.enable_grad(), forward.mode:
        inputs = [_example(node) for node in graph_module.graph.find_nodes(op="placeholder")]
        for tensor in tensors_in(inputs) if inputs_need_gradients else ():
            tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex())
        try:
            with forward.followed:
                forward.run(*inputs, enable_io_processing=False)
        except CANNOT_RUN as error:
            what = str(error).strip().partition("\n")[0] or type(error).__name__
            raise PlacementError(
                f"What the backward pass needs is not known, as an operator cannot run without data: {what}. Plan "
                "without training; budgets then count the forward pass only."
            ) from error
        finally:
            forward.leave_regions()
        backward = _Backward(forward)
        try:
            backward.run()
        except CANNOT_RUN:
            return _of_each_value(forward)
        forward.forget_those_without_gradient()
        return _needs(forward, backward.stays, backward.beside(), backward.trained())


def _needs(
    forward: _Forward, stays: Sequence[Stay], beside: Mapping[Node, int], trained: Mapping[Node, Node]
) -> BackwardNeeds:
    saved = {node: tuple(owners) for node, owners in forward.saved.items()}
    extra = {node: sum(size for _, size in kept.values()) for node, kept in forward.extra.items()}
    return BackwardNeeds(saved, extra, forward.differentiable, forward.inside, stays, beside, trained)


def _of_each_value(forward: _Forward) -> BackwardNeeds:
    """One gradient for each value: from the backward of its last user to that of its maker."""
    place = {node: at for at, node in enumerate(forward.graph.nodes)}
    trained: dict[Node, Node] = {}
    stays = [Stay(size, node, "forward", node) for node, kept in forward.extra.items() for _, size in kept.values()]
    for node in forward.differentiable:
        users = dict.fromkeys(user for user in node.users if user in forward.differentiable)
        if users and (size := value_bytes(node)):
            last_user = max(users, key=place.__getitem__)
            last = None if node.op == "get_attr" else node
            stays.append(Stay(size, last_user, last=last, readers=users, passed={node: size}))
            if node.op == "get_attr":
                trained[node] = last_user
    return _needs(forward, stays, {}, trained)


def _picked(operator: Any, source: Tensor, by: Any, example: Tensor) -> Tensor:
    """What masks pick of a tensor, as many elements as in the example."""
    if operator is aten.masked_select.default:
        source, mask = torch.broadcast_tensors(source, by)  # type: ignore[no-untyped-call]  # torch's
        by = [mask]
    first = next(place for place, index in enumerate(by) if index is not None)
    numbers = torch.empty(example.shape[first], dtype=torch.int64, device=source.device)
    picks: list[Tensor | None] = []
    for index in by:
        is_mask = index is not None and index.dtype in _MASKS
        picks += [numbers] * index.ndim if is_mask else [index]
    picked: Tensor = aten.index.Tensor(source, picks)
    return picked


def _example(node: Node) -> Any:
    def like(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return concrete_size(leaf) if isinstance(leaf, torch.SymInt) else leaf
        shape, stride = ([concrete_size(size) for size in sizes] for sizes in (leaf.shape, leaf.stride()))
        return torch.empty_strided(shape, stride, dtype=leaf.dtype, device=_near(leaf.device))

    return pytree.tree_map(like, node.meta.get("val"))


def _near(device: torch.device) -> torch.device:
    """A device that autograd can work for: the CPU for one that this machine has not, where torch would abort."""
    return device if is_here(str(device)) else torch.device("cpu")


class _Forward(Interpreter):
    """Runs a graph without data; notes, for each node, the storages that autograd saves and the functions it adds."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.followed = FollowedStorages()
        self.inside: dict[Node, int] = {}
        self.owner: dict[int, Node] = {}  # by storage: the first node whose value is in it
        self.kept: list[Any] = []  # values stay, so that no storage gets the address of another
        self.saved: dict[Node, dict[Node, None]] = {}
        self.extra: dict[Node, dict[int, tuple[StorageWeakRef, int]]] = {}
        self.differentiable: dict[Node, None] = {}
        self.made_by: dict[Any, Node] = {}  # by autograd's function
        self.values: dict[Any, dict[int, list[Node]]] = {}  # whose values a function makes, by the number of its result
        self.leaves: dict[int, Tensor] = {}  # by parameter: tied ones are one
        self.device: torch.device | None = None  # where the value of the current node was recorded
        self.autocasts: list[torch.autocast] = []  # the regions that markers have opened

    def run_node(self, n: Node) -> Any:
        packed: list[Tensor] = []
        self.followed.restart()
        self.device = next((_near(tensor.device) for tensor in tensors_in(n.meta.get("val"))), None)
        with torch.autograd.graph.saved_tensors_hooks(lambda value: packed.append(value) or value, lambda value: value):  # type: ignore[func-returns-value]  # append gives None
            result = self._without_data(n) if "unbacked_bindings" in n.meta else super().run_node(n)
        tensors = tensors_in(result) if n.op != "output" else []
        for tensor in tensors:
            self.owner.setdefault(_storage(tensor), n)
        self.kept += tensors
        if any(tensor.requires_grad for tensor in tensors):
            self.differentiable[n] = None
        if n.target is _BRANCHING and n in self.differentiable:
            packed += tensors_in(self.map_nodes_to_values(n.args[0], n))  # its condition is kept without the hooks
        for tensor in packed:
            self._note(n, tensor)
        packed.clear()  # the hooks live as long as what they packed
        kept = self.followed.held_by(tensors) + sum(size for _, size in self.extra.get(n, {}).values())
        if self.followed.peak > kept:
            self.inside[n] = self.followed.peak - kept
        self._note_functions(n, tensors)
        return result

    def _without_data(self, n: Node) -> Any:
        """The result of an operator whose data say how large it is: of the size that was recorded, or may be at most.

        What a mask picks has a gradient, so that is picked by numbers.
        """
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        example = _example(n)
        if n.target in (aten.index.Tensor, aten.masked_select.default):
            return _picked(n.target, args[0], args[1], example)
        given = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        if given and any(tensor.is_floating_point() for tensor in tensors_in(example)):
            raise RuntimeError(f"the size of what {n.target} gives depends on data")
        return example

    def _note(self, n: Node, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        owner = self.owner.get(storage._cdata)
        if owner is not None:
            self.saved.setdefault(n, {})[owner] = None
        elif n.target is not _BRANCHING:  # which traces its branches, and keeps operands only
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch does not say
            self.extra.setdefault(n, {})[storage._cdata] = (reference, concrete_size(storage.nbytes()))

    def _note_functions(self, n: Node, tensors: Sequence[Tensor]) -> None:
        """Those from the results back to what other nodes added; an operator with a body adds many."""
        found = [tensor.grad_fn for tensor in tensors]
        for tensor, function in zip(tensors, found, strict=True):
            if function is not None:
                self.values.setdefault(function, {}).setdefault(tensor.output_nr, []).append(n)
        while found:
            function = found.pop()
            if function is not None and function not in self.made_by and function.next_functions:
                self.made_by[function] = n
                found += [before for before, _ in function.next_functions]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        def near(leaf: Any) -> Any:
            return _near(leaf) if isinstance(leaf, torch.device) else leaf

        result = super().call_function(target, *pytree.tree_map(near, (args, kwargs)))
        if target is torch.amp.autocast_mode._enter_autocast:
            self.autocasts.append(result)
        elif target is torch.amp.autocast_mode._exit_autocast:
            self.autocasts.remove(*args)
        return result

    def forget_those_without_gradient(self) -> None:
        """Parameters that only decide, after a backward: those of ``gate`` in ``torch.where(gate(x) > 0, ...)``."""
        for node in [node for node in self.differentiable if node.op == "get_attr" and self.env[node].grad is None]:
            del self.differentiable[node]

    def leave_regions(self) -> None:
        """Close what markers have opened, where an operator that cannot run kept the graph from doing so."""
        while self.autocasts:
            self.autocasts.pop().__exit__(None, None, None)

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self.leaves:
            fake = self.mode.from_tensor(value, static_shapes=True).detach()
            if value.is_meta and self.device is not None:  # captured as if its memory were there
                fake = torch.empty_like(fake, device=self.device)
            is_trained = isinstance(value, torch.nn.Parameter) and value.requires_grad
            self.leaves[id(value)] = fake.requires_grad_(is_trained)
        return self.leaves[id(value)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Backward(FollowedStorages):  # type: ignore[no-untyped-call]  # torch does not say
    """Runs the backward of what a forward made, and follows what is there."""

    def __init__(self, forward: _Forward) -> None:
        super().__init__()
        self.forward = forward
        self.stays: list[Stay] = []
        self.most: dict[Node, int] = {}
        self._staying: dict[int, Stay] = {}  # by storage
        self._begin: Literal["forward", "given", "backward"] = "forward"
        self._node: Node | None = None
        self._before: Node | None = None  # whose backward ran the last operator that made something

    def run(self) -> None:
        for node, kept in self.forward.extra.items():
            self._node = node
            for key, (reference, size) in kept.items():
                if key not in self.alive:
                    self.follow(key, reference, size)
        results = list(self._results())
        for function, node in self.forward.made_by.items():
            values = self.forward.values.get(function, {})
            function.register_prehook(lambda gradients, node=node, values=values: self._enter(node, gradients, values))
        with self, torch.autograd.set_multithreading_enabled(False):
            self._begin = "given"
            given = [self._like(result, node) for result, node in results]
            self._begin = "backward"
            if results:
                torch.autograd.backward([result for result, _ in results], given)
            self.forget_gone()  # what the last operator made and nobody has kept
        for stay in self.stays:
            if stay.begin == "forward" and stay.last is None:  # saved for a backward that nobody asked for
                stay.last = stay.made_by

    def beside(self) -> dict[Node, int]:
        """What there was beside what stays, in the order in which the backwards ran: that of the graph reversed."""
        when = {node: at for at, node in enumerate(reversed(self.forward.graph.nodes))}
        change = [0] * (len(when) + 2)
        for stay in self.stays:
            change[when[stay.made_by] if stay.begin == "backward" else 0] += stay.size
            change[1 + (len(when) if stay.last is None else when[stay.last])] -= stay.size
        staying = list(itertools.accumulate(change))
        return {node: most - staying[when[node]] for node, most in self.most.items() if most != staying[when[node]]}

    def trained(self) -> dict[Node, Node]:
        """For each parameter the node whose backward made the gradient that it has in the end."""
        found = {}
        for node in self.forward.differentiable:
            gradient = self.forward.env[node].grad if node.op == "get_attr" else None
            if gradient is not None and (stay := self._staying.get(_storage(gradient))) is not None:
                found[node] = stay.made_by
        return found

    def _results(self) -> Iterator[tuple[Tensor, Node]]:
        """Each result as often as it is returned: the caller has a gradient for each."""
        for node in pytree.tree_leaves(self.forward.graph.output_node().args):
            for tensor in tensors_in(self.forward.env[node]) if isinstance(node, Node) else ():
                if tensor.requires_grad:
                    yield tensor, node

    def _like(self, result: Tensor, node: Node) -> Tensor:
        self._node = node
        return torch.empty_like(result)

    def _enter(self, node: Node, gradients: Sequence[Tensor | None], values: Mapping[int, Sequence[Node]]) -> None:
        self._node = node
        for number, nodes in values.items():
            if (gradient := gradients[number]) is not None and (stay := self._staying.get(_storage(gradient))):
                stay.passed.update(dict.fromkeys(nodes, tensor_bytes(gradient)))

    def ran(self, operands: Any) -> None:
        """After each operator: who read what."""
        node = self._current
        for storage in storages_in(operands):
            if (read := self._staying.get(storage._cdata)) is not None:
                read.readers[node] = None

    def comes(self, key: int, size: int) -> None:
        node = self._current
        self._staying[key] = Stay(size, node, self._begin)
        self.stays.append(self._staying[key])
        self._before = node
        self.most[node] = max(self.most.get(node, 0), self.held)

    def goes(self, key: int) -> None:
        self._staying.pop(key).last = self._before

    @property
    def _current(self) -> Node:
        assert self._node is not None  # the first that comes is of some node
        return self._node
