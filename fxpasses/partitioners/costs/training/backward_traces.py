"""Learn what the backward of a graph keeps and makes: autograd runs once, both ways, on tensors without data.

Nothing is guessed: hooks say which storages the forward saves, and a dispatch mode follows each storage that the
backward makes, from the node whose backward makes it to the one in whose backward it is freed. So views, gradients that
are handed on, sums where a value is used twice, and what a backward needs for itself count as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.collecting import collection_paused
from fxpasses.errors import PlacementError
from fxpasses.partitioners.costs.graph_figures import value_bytes
from fxpasses.partitioners.costs.kernels.followed_storages import (
    CANNOT_RUN,
    FollowedStorages,
    storages_in,
)
from fxpasses.partitioners.costs.training.added_gradients import AddedGradients
from fxpasses.partitioners.costs.training.backward_formulas import formula_bytes
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds, CutOff, Stay, with_passing_joined
from fxpasses.partitioners.costs.training.forward_traces import (
    ForwardTrace,
    example_bytes,
    example_of,
    storage_key,
)
from fxpasses.partitioners.jvp_tangents import note_tangents
from fxpasses.partitioners.symbol_bounds import note_limits
from fxpasses.partitioners.tensor_sizes import tensor_bytes, tensors_in

__all__ = ["trace_backward"]

aten = torch.ops.aten

_ZEROS = (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_FILL_ZEROS = (
    *(aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.put.default),
    *(aten.index_put.default, aten.index_add.default, aten.index_fill.int_Tensor),
)
"""What backwards do to zeros that they have just made: in place, on the CPU and where no mode looks on."""
_BETWEEN = (aten.arange.start_step, torch.ops.prim.device.default)
"""What comes between: where they are to be filled, and a question."""


def trace_backward(graph_module: GraphModule, *, inputs_need_gradients: bool = False) -> BackwardNeeds:
    """Ask autograd what it keeps and makes for the backward of a graph. One run without data, about 0.5 ms a node.

    Where an operator has no backward that runs so, each value counts as having one gradient of its size.

    Args:
        graph_module: A forward graph that holds its parameters; its inputs have recorded values.
        inputs_need_gradients: Whether the gradients of all floating-point inputs are wanted; else of those that were
            recorded so.

    Raises:
        PlacementError: An operator cannot run without data, so that nobody knows what it keeps.
    """
    note_limits(graph_module)
    note_tangents(graph_module)
    forward = ForwardTrace(graph_module)
    with collection_paused(), torch.enable_grad(), forward.mode:
        inputs = [_input(node, inputs_need_gradients) for node in graph_module.graph.find_nodes(op="placeholder")]
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
        cut_off = forward.cut_off()
        for node in cut_off:
            forward.differentiable.pop(node, None)
            forward.held_to_end.pop(node, None)
        backward = _Backward(forward)
        try:
            backward.run()
        except CANNOT_RUN:
            return _of_each_value(forward, cut_off)
        forward.forget_those_without_gradient()
        beside, trained = backward.beside(), backward.trained()
        return _needs(forward, cut_off, with_passing_joined(backward.stays), beside, trained)


def _input(node: Node, needs_gradients: bool) -> Any:
    """An input without data, which requires a gradient where it was recorded so, or where all do."""
    example = example_of(node)
    for recorded, tensor in zip(tensors_in(node.meta.get("val")), tensors_in(example), strict=True):
        is_continuous = tensor.is_floating_point() or tensor.is_complex()
        tensor.requires_grad_(is_continuous and (needs_gradients or recorded.requires_grad))
    return example


def _needs(
    forward: ForwardTrace,
    cut_off: Mapping[Node, Collection[Node]],
    stays: Sequence[Stay],
    beside: Mapping[str, Mapping[Node, int]],
    trained: Mapping[Node, Node],
) -> BackwardNeeds:
    """``beside`` is what a backward needs besides, by the names under which it is kept."""
    saved = {node: tuple(dict.fromkeys(map(forward.owner.__getitem__, keys))) for node, keys in forward.saved.items()}
    held = {
        node: tuple(dict.fromkeys(forward.owner[key] for key in keys if key in forward.owner))
        for node, keys in forward.held_to_end.items()
    }
    extra = {node: sum(size for _, size in kept.values()) for node, kept in forward.extra.items()}
    return BackwardNeeds(
        {node: owners for node, owners in saved.items() if node not in cut_off},
        {node: size for node, size in extra.items() if node not in cut_off},
        forward.differentiable,
        forward.inside,
        stays,
        trained=trained,
        inside_on_cpu=forward.inside_on_cpu,
        saved_tangents={node: tuple(owners) for node, owners in forward.saved_tangents.items()},
        held_to_end=held,
        cut_off={node: CutOff(saved.get(node, ()), tuple(holders)) for node, holders in cut_off.items()},
        **beside,
    )


def _of_each_value(forward: ForwardTrace, cut_off: Mapping[Node, Collection[Node]]) -> BackwardNeeds:
    """One gradient for each value: from the backward of its last user to that of its maker."""
    place = {node: at for at, node in enumerate(forward.graph.nodes)}
    trained: dict[Node, Node] = {}
    stays = [
        Stay(size, node, "forward", None if key in forward.held_to_end.get(node, ()) else node)
        for node, kept in forward.extra.items()
        for key, (_, size) in kept.items()
    ]
    for node in forward.differentiable:
        users = dict.fromkeys(user for user in node.users if user in forward.differentiable)
        if users and (size := value_bytes(node)):
            last_user = max(users, key=place.__getitem__)
            last = None if node.op == "get_attr" else node
            stays.append(Stay(size, last_user, last=last, readers=users, passed={node: size}))
            if node.op == "get_attr":
                trained[node] = last_user
                stays[-1].gradient_of[node] = None
    return _needs(forward, cut_off, stays, {}, trained)


class _Backward(FollowedStorages):  # type: ignore[no-untyped-call]  # torch does not say
    """Runs the backward of what a forward made, and follows what is there."""

    def __init__(self, forward: ForwardTrace) -> None:
        super().__init__()
        self.forward = forward
        self.stays: list[Stay] = []
        self.peaks: dict[Node, int] = {}
        self.peaks_on_cpu: dict[Node, int] = {}
        self.peaks_of_sums: dict[Node, int] = {}
        self._staying: dict[int, Stay] = {}  # by storage
        self._begin: Literal["forward", "given", "backward"] = "forward"
        self._node: Node | None = None
        self._added = AddedGradients()
        self._zeros: int | None = None  # the storage that the last operator filled with zeros
        self._is_in_place = False
        self._given_up = 0  # bytes of what the operator that runs takes over on the CPU
        self._formula: int | None = None  # what there is at most on the CPU while the function runs that runs
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
            if (traced := self.forward.traced.get(node)) is not None:
                function.register_prehook(lambda gradients, traced=traced: self._trace_branches(traced, gradients))
            if (made := formula_bytes(function)) is not None:
                function.register_prehook(lambda _gradients, made=made: self._follow_formula(made))
                function.register_hook(lambda _given, _gradients: self._follow_operators())
            if leaves := self.forward.leaves_of(function):
                function.register_hook(lambda given, _gradients, leaves=leaves: self._note_gradients(given, leaves))
        self._added.watch(self.forward.made_by)
        with self, torch.autograd.set_multithreading_enabled(False):
            self._begin = "given"
            given = [self._like(result, node) for result, node in results]
            self._begin = "backward"
            if results:
                torch.autograd.backward([result for result, _ in results], given)
            self.forget_gone()  # what the last operator made and nobody has kept
        for key, stay in self._staying.items():
            if stay.begin == "forward" and key not in self.forward.held_to_end.get(stay.made_by, ()):
                stay.last = stay.made_by  # saved for a backward that nobody asked for

    def beside(self) -> dict[str, dict[Node, int]]:
        """What there was beside what stays, in the order in which the backwards ran: that of the graph reversed.

        Without and with what kernels on the CPU need for themselves, and while autograd added up; by names of
        :class:`BackwardNeeds`.
        """
        when = {node: at for at, node in enumerate(reversed(self.forward.graph.nodes))}
        change = [0] * (len(when) + 2)
        for stay in self.stays:
            change[when[stay.made_by] if stay.begin == "backward" else 0] += stay.size
            change[1 + (len(when) if stay.last is None else when[stay.last])] -= stay.size
        staying = list(itertools.accumulate(change))
        there = {node: staying[at] for node, at in when.items()}
        found = {"beside": self.peaks, "beside_on_cpu": self.peaks_on_cpu, "beside_sums": self.peaks_of_sums}
        return {name: {node: most - there[node] for node, most in peaks.items()} for name, peaks in found.items()}

    def trained(self) -> dict[Node, Node]:
        """For each parameter the node whose backward made the gradient that it has in the end.

        Where what came was somebody else's, too, that is a copy: made like a sum, by autograd itself. A sparse one, as
        of an embedding, counts as if all of it were there: nobody knows what optimizers make of it.
        """
        found, place = {}, {node: at for at, node in enumerate(self.forward.graph.nodes)}
        for node in self.forward.differentiable:
            gradient = self.forward.env[node].grad if node.op == "get_attr" else None
            if gradient is not None and gradient.layout is not torch.strided:
                users = dict.fromkeys(user for user in node.users if user in self.forward.differentiable)
                found[node] = min(users, key=place.__getitem__)
                self.stays.append(Stay(value_bytes(node), found[node], readers=users, gradient_of={node: None}))
            elif gradient is not None and (stay := self._staying.get(storage_key(gradient))) is not None:
                found[node] = stay.made_by
                if node not in stay.gradient_of:
                    stay.gradient_of[node], stay.is_sum = None, True
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
            if (gradient := gradients[number]) is not None and (stay := self._staying.get(storage_key(gradient))):
                stay.passed.update(dict.fromkeys(nodes, tensor_bytes(gradient)))

    def _note_gradients(self, given: Sequence[Tensor | None], leaves: Mapping[int, Node]) -> None:
        """What a function gives goes to parameters, some of it."""
        for number, node in leaves.items():
            gradient = given[number]
            if gradient is None or gradient.layout != torch.strided:  # a sparse one has no storage
                continue
            if (stay := self._staying.get(storage_key(gradient))) is not None:
                stay.gradient_of[node] = None

    def _trace_branches(self, traced: int, gradients: Sequence[Tensor | None]) -> None:
        """With memory laid out as the operands and the gradients of a ``cond``, which is gone before one runs."""
        self.forget_gone()
        node = self._current
        there = self.held + traced + example_bytes(gradients)
        self.peaks_on_cpu[node] = max(self.peaks_on_cpu.get(node, 0), there)

    def _follow_formula(self, size: int) -> None:
        """On the CPU, until the function has run."""
        node = self._current
        self._formula = self.held + size
        self.peaks_on_cpu[node] = max(self.peaks_on_cpu.get(node, 0), self._formula)

    def _follow_operators(self) -> None:
        self._formula = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fills = func in _FILL_ZEROS and storage_key(args[0]) == self._zeros
        self._given_up, self._is_in_place = 0, fills or self._added.is_in_place(func, args)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self._added.is_sum(func):
            self._note_sum(result, args)
        if func not in _BETWEEN:
            self._zeros = storage_key(result) if func in _ZEROS else None
        return result

    def _note_sum(self, result: Tensor, added: Sequence[Tensor]) -> None:
        """A sum is of the parameters that its operands are of."""
        if (stay := self._staying.get(storage_key(result))) is not None:
            stay.is_sum = True
            for operand in added:
                if (part := self._staying.get(storage_key(operand))) is not None:
                    stay.gradient_of.update(part.gradient_of)

    def ran(self, operands: Any, scratch: int) -> None:
        """After each operator: who read what."""
        node = self._current
        if scratch and self._formula is None:
            self.peaks_on_cpu[node] = max(self.peaks_on_cpu.get(node, 0), self.held - self._given_up + scratch)
        for storage in storages_in(operands):
            if (read := self._staying.get(storage._cdata)) is not None:
                read.readers[node] = None

    def comes(self, key: int, size: int) -> None:
        node = self._current
        self._staying[key] = Stay(size, node, self._begin)
        self.stays.append(self._staying[key])
        self._before = node
        self._given_up = size if self._is_in_place else 0
        on_cpu = self.held - self._given_up if self._formula is None else self._formula
        found = [(self.peaks, self.held), (self.peaks_on_cpu, on_cpu)]
        if self._added.is_between:
            found.append((self.peaks_of_sums, self.held))
        for peaks, held in found:
            peaks[node] = max(peaks.get(node, 0), held)

    def goes(self, key: int) -> None:
        self._staying.pop(key).last = self._before

    @property
    def _current(self) -> Node:
        assert self._node is not None  # the first that comes is of some node
        return self._node
