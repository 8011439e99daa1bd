"""Run the forward of a graph on tensors without data: what autograd saves of it, and the functions that it adds."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any
from weakref import ref

import attrs
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from fxpasses.devices import is_here
from fxpasses.partitioners.costs.kernels.converted_operands import wraps_number
from fxpasses.partitioners.costs.kernels.derivative_levels import InDerivative, parts_of
from fxpasses.partitioners.costs.kernels.followed_storages import FollowedStorages, without_levels
from fxpasses.partitioners.costs.kernels.kernel_results import elements_spanned
from fxpasses.partitioners.costs.kernels.kernel_scratch import scratch_bytes
from fxpasses.partitioners.jvp_tangents import tangent_levels
from fxpasses.partitioners.tensor_sizes import concrete_size, tensors_in
from fxpasses.values import has_size_of_data
from fxpasses.values.vmap_levels import close_levels, open_levels

__all__ = ["LOOPING", "ForwardTrace", "example_bytes", "example_of", "storage_key", "traces_its_body"]

aten = torch.ops.aten

_BRANCHING = torch.ops.higher_order.cond
LOOPING = torch.ops.higher_order.while_loop
_SCANNING = "scan"
_NUMBER = 8
"""Bytes of a number as a tensor."""


@attrs.frozen(eq=False)
class _Saved:
    """What autograd holds of a tensor that it saves, as long as the function is there that it is saved for."""

    tensor: Tensor


class ForwardTrace(Interpreter):
    """Runs a graph without data; notes, for each node, the storages that autograd saves and the functions it adds."""

    def __init__(self, graph_module: GraphModule) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        fixed = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)  # loops ask for one
        self.mode = FakeTensorMode(shape_env=fixed, allow_non_fake_inputs=True)
        is_derived = any(map(tangent_levels, graph_module.graph.nodes))
        self.followed = InDerivative() if is_derived else FollowedStorages()
        self.inside: dict[Node, int] = {}
        self.inside_on_cpu: dict[Node, int] = {}
        self.owner: dict[int, Node] = {}  # by storage: the first node whose value is in it, and in nothing else
        self.kept: list[Any] = []  # values stay, so that no storage gets the address of another
        self.saved: dict[Node, dict[int, None]] = {}  # storages that have an owner
        self.held_to_end: dict[Node, dict[int, None]] = {}  # storages, as long as the node's function is there
        self.tangent_of: dict[int, Node] = {}  # by storage: the first node whose value has its tangent in it
        self.saved_tangents: dict[Node, dict[Node, None]] = {}  # by whose tangents are saved
        self.extra: dict[Node, dict[int, tuple[StorageWeakRef, int]]] = {}
        self.differentiable: dict[Node, None] = {}
        self.made_by: dict[Any, Node] = {}  # by autograd's function
        self.traced: dict[Node, int] = {}  # bytes of what torch traces branches with before it runs one
        self.values: dict[Any, dict[int, list[Node]]] = {}  # whose values a function makes, by the number of its result
        self.leaves: dict[int, Tensor] = {}  # by parameter: tied ones are one
        self.device: torch.device | None = None  # where the value of the current node was recorded
        self.autocasts: list[torch.autocast] = []  # the regions that markers have opened
        self.levels = open_levels()  # those of ``torch.vmap`` around all

    def run_node(self, n: Node) -> Any:
        """Run a node, and note what it made and what autograd saved."""
        packed: list[ref[_Saved]] = []

        def pack(tensor: Tensor) -> _Saved:
            packed.append(ref(saved := _Saved(tensor)))
            return saved

        self.followed.restart()
        if n.target is _BRANCHING and (size := _traced_bytes(self.map_nodes_to_values(n.args, n))):
            self.traced[n] = size
            self.followed.need(size)
        self.device = next((_near(tensor.device) for tensor in tensors_in(n.meta.get("val"))), None)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
            result = self._result(n)
        tensors = _parts(n, result) if n.op != "output" else []
        self._note_owner(n, [without_levels(tensor) for tensor in tensors_in(result)] if tensors else [], tensors)
        if any(tensor.requires_grad for tensor in tensors):
            if n.target is LOOPING:
                raise RuntimeError(f"how many rounds {n.target} keeps for its backward depends on data")
            self.differentiable[n] = None
        for saved in (reference() for reference in packed):
            if saved is not None:  # else the function is gone with a result that nobody has: ``argsort`` sorts
                for tensor in _parts(n, saved.tensor):
                    self._note(n, tensor, to_end=n.target is _BRANCHING)
        if n in self.differentiable:
            self._note_without_hooks(n, tensors)
        self._note_functions(n, tensors)
        kept = self.followed.held_by(tensors) + sum(size for _, size in self.extra.get(n, {}).values())
        if self.followed.peak > kept:
            self.inside[n] = self.followed.peak - kept
        if self.followed.most > kept:
            self.inside_on_cpu[n] = self.followed.most - kept
        return result

    def _note_owner(self, n: Node, values: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """Whose value, or whose tangent, is in which storage."""
        for key in map(storage_key, values):
            if n.target is operator.getitem and self.owner.get(key) is n.args[0]:
                self.owner[key] = n
            self.owner.setdefault(key, n)
        for key in map(storage_key, tensors):
            if key not in self.owner:
                self.tangent_of.setdefault(key, n)
        self.kept += tensors

    def _result(self, n: Node) -> Any:
        """What a node gives; sizes that depend on data are as large as may be, each for itself.

        So an assertion that relates two of them may not hold, and pieces may be larger than what is split.
        """
        if n.target is aten._assert_scalar.default:
            return None
        if n.target is aten.split_with_sizes.default and any(isinstance(size, Node) for size in n.args[1]):  # type: ignore[union-attr]  # they are a list
            (given, sizes, *more), kwargs = self.fetch_args_kwargs_from_env(n)
            dim = more[0] if more else kwargs.get("dim", 0)
            return given.split_with_sizes(_within(sizes, given.shape[dim]), dim)
        return self._without_data(n) if _asks_data(n) else super().run_node(n)

    def _without_data(self, n: Node) -> Any:
        """The result of an operator whose data say how large it is: of the size that was recorded, or may be at most.

        What a mask picks has a gradient.
        """
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        example = example_of(n)
        if n.target in (aten.index.Tensor, aten.masked_select.default):
            shape, scratch = example.shape, scratch_bytes(n.target, args, example)
            del example  # another one is made that has a gradient
            picked = _Picked.apply(args[0], shape, 0 if n.target is aten.masked_select.default else scratch)  # type: ignore[no-untyped-call]  # torch does not say
            self.followed.need(scratch)
            return picked
        if n.target is aten.repeat_interleave.self_Tensor:
            self.followed.need(scratch_bytes(n.target, args, example))
            dim = args[2] if len(args) > 2 else kwargs.get("dim")
            rows = example.new_empty(example.shape[dim or 0], dtype=torch.int64)
            return args[0].flatten().index_select(0, rows) if dim is None else args[0].index_select(dim, rows)
        given = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
        if given and any(tensor.is_floating_point() for tensor in tensors_in(example)):
            raise RuntimeError(f"the size of what {n.target} gives depends on data")
        self.followed.need(scratch_bytes(n.target, args, example))
        return example

    def _note(self, n: Node, tensor: Tensor, *, to_end: bool = False) -> None:
        storage = tensor.untyped_storage()
        if to_end:
            self.held_to_end.setdefault(n, {})[storage._cdata] = None
        if storage._cdata in self.owner:
            self.saved.setdefault(n, {})[storage._cdata] = None
        elif storage._cdata in self.tangent_of:
            self.saved_tangents.setdefault(n, {})[self.tangent_of[storage._cdata]] = None
        elif not traces_its_body(n):  # autograd's functions of the trace hold each other, and nothing that is there
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch does not say
            self.extra.setdefault(n, {})[storage._cdata] = (reference, concrete_size(storage.nbytes()))

    def _note_without_hooks(self, n: Node, tensors: Sequence[Tensor]) -> None:
        if has_size_of_data(n):  # what it is picked by, and from
            operands = n.args if n.target is aten.masked_select.default else n.args[1:]
        else:
            operands = n.args[:1] if n.target is _BRANCHING else ()  # its condition
        for tensor in tensors_in(self.map_nodes_to_values(operands, n)):
            self._note(n, tensor, to_end=n.target is _BRANCHING)
        if getattr(n.target, "_name", "") == _SCANNING:
            self._note_held(n, tensors)

    def _note_held(self, n: Node, tensors: Sequence[Tensor]) -> None:
        """What autograd's function holds without the hooks: its operands, and all that is there and no result."""
        for tensor in tensors_in(self.map_nodes_to_values(n.args[1:], n)):
            self._note(n, tensor)
        self.followed.forget_gone()
        results = set(map(storage_key, tensors))
        held = {key: kept for key, kept in self.followed.alive.items() if key not in results}
        self.extra.setdefault(n, {}).update(held)

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
                for number in _parts(n, getattr(function, "_saved_other", None)):
                    self._note(n, number)  # one that is made a tensor is saved without the hooks
                for tensor in _in_context(function):
                    for part in _parts(n, tensor):
                        self._note(n, part, to_end=True)
                found += [before for before, _ in function.next_functions]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on devices that are here, and note regions that it opens or closes."""

        def near(leaf: Any) -> Any:
            return _near(leaf) if isinstance(leaf, torch.device) else leaf

        result = super().call_function(target, *pytree.tree_map(near, (args, kwargs)))
        if target is torch.amp.autocast_mode._enter_autocast:
            self.autocasts.append(result)
        elif target is torch.amp.autocast_mode._exit_autocast:
            self.autocasts.remove(*args)
        return result

    def cut_off(self) -> dict[Node, dict[Node, None]]:
        """The nodes to whose functions no way leads back from a result, and what holds these: see :class:`CutOff`.

        Those that hold each other in circles, and so stay to the end, are not among them.
        """
        results = [self.env[node] for node in self.graph.output_node().all_input_nodes]
        reached = self._known_behind([tensor.grad_fn for tensor in tensors_in(results)], through=True)
        staying = {node: None for node in self.made_by.values() if traces_its_body(node)}
        ends = [function for function, node in self.made_by.items() if node in staying]
        reached.update(self._known_behind(ends, through=True))
        cut = (node for node in self.made_by.values() if node not in reached and node not in staying)
        found: dict[Node, dict[Node, None]] = {node: {node: None} for node in cut}
        for function, node in self.made_by.items() if found else ():
            for before in self._known_behind([earlier for earlier, _ in function.next_functions]):
                if before in found:
                    found[before][node] = None
        for node, value in self.env.items() if found else ():
            for made_by in self._known_behind([tensor.grad_fn for tensor in _parts(node, value)]):
                if made_by in found:
                    found[made_by][node] = None
        return found

    def _known_behind(self, functions: Sequence[Any], *, through: bool = False) -> dict[Node, None]:
        """The nodes that added some of autograd's functions, or else those before these; ``through`` all of them."""
        found, seen, waiting = dict[Node, None](), set(functions), list(functions)
        while waiting:
            function = waiting.pop()
            node = self.made_by.get(function)
            if node is not None:
                found[node] = None
            if function is not None and (through or node is None):
                before = [earlier for earlier, _ in function.next_functions if earlier not in seen]
                seen.update(before)
                waiting += before
        return found

    def forget_those_without_gradient(self) -> None:
        """Parameters that only decide, after a backward: those of ``gate`` in ``torch.where(gate(x) > 0, ...)``."""
        for node in [node for node in self.differentiable if node.op == "get_attr" and self.env[node].grad is None]:
            del self.differentiable[node]

    def leaves_of(self, function: Any) -> dict[int, Node]:
        """The parameters that a function of autograd gives a gradient, by the number of what it gives."""
        found: dict[int, Node] = {}
        for number, (after, _) in enumerate(function.next_functions):
            leaf = getattr(after, "variable", None)
            if leaf is not None and (owner := self.owner.get(storage_key(leaf))) is not None and owner.op == "get_attr":
                found[number] = owner
        return found

    def leave_regions(self) -> None:
        """Close what markers have opened, where an operator that cannot run kept the graph from doing so."""
        while self.autocasts:
            self.autocasts.pop().__exit__(None, None, None)
        close_levels(self.levels)

    def fetch_attr(self, target: str) -> Any:
        """A parameter or a buffer without data, each a leaf of its own."""
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


def example_of(node: Node) -> Any:
    """A value of a node as it was recorded, without data."""

    def like(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return concrete_size(leaf) if isinstance(leaf, torch.SymInt) else leaf
        shape, stride = ([concrete_size(size) for size in sizes] for sizes in (leaf.shape, leaf.stride()))
        return torch.empty_strided(shape, stride, dtype=leaf.dtype, device=_near(leaf.device))

    return pytree.tree_map(like, node.meta.get("val"))


def _near(device: torch.device) -> torch.device:
    """A device that autograd can work for: the CPU for one that this machine has not, where torch would abort."""
    return device if is_here(str(device)) else torch.device("cpu")


class _Picked(torch.autograd.Function):
    """What masks pick of a tensor, as much as may be; the gradient is put where they are true."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, shape: Sequence[int], beside: int) -> Tensor:
        """Make it; ``beside`` are the bytes that it takes to put its gradient back."""
        ctx.given, ctx.beside = source.shape, beside
        return source.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Put it into zeros, as backwards do: in place where kernels are known."""
        nothing = gradients[0].new_empty(0)
        where, beside = nothing.long(), nothing.new_empty(ctx.beside, dtype=torch.uint8)
        zeros = nothing.new_zeros(ctx.given)
        del beside
        return zeros.put(where, nothing), None, None


def _parts(node: Node, value: Any) -> list[Tensor]:
    """The tensors in a value as kernels see them, and their tangents."""
    if not tangent_levels(node):
        return [without_levels(tensor) for tensor in tensors_in(value)]
    return [part for tensor in tensors_in(value) for part in parts_of(tensor)]


def _in_context(function: Any) -> list[Tensor]:
    """What the ``ctx`` of a function that is written in Python holds without ``save_for_backward``."""
    return [tensor for held in getattr(function, "__dict__", {}).values() for tensor in tensors_in(held)]


def _within(sizes: Sequence[int], whole: int) -> list[int]:
    """Sizes of pieces, each as large as it may be, so that they add up to the whole: from the first on."""
    ends = [min(end, whole) for end in itertools.accumulate(sizes)]
    ends[-1:] = [whole]
    return [end - start for start, end in itertools.pairwise([0, *ends])]


def _asks_data(node: Node) -> bool:
    """Whether data say what it gives; a number that can be one only, as an assertion says, is recorded as that one."""
    tags = node.target.tags if isinstance(node.target, torch._ops.OpOverload) else ()
    return has_size_of_data(node) or (torch.Tag.data_dependent_output in tags and "val" in node.meta)


def traces_its_body(node: Node) -> bool:
    """Whether its backward is made from a trace: it keeps its operands, or what it computed."""
    return node.target is _BRANCHING or getattr(node.target, "_name", "") == _SCANNING


def _traced_bytes(args: Any) -> int:
    """Memory laid out as the operands of a ``cond``, which torch makes to trace its branches where one has a gradient.

    No dispatcher sees it, nor the numbers in a branch that are made tensors, and kept.
    """
    operands = tensors_in(args[3])
    if not any(tensor.requires_grad for tensor in operands):
        return 0
    return example_bytes(operands) + max(map(_numbers_bytes, args[1:3]))


def _numbers_bytes(branch: GraphModule) -> int:
    """Numbers that a branch makes tensors, and the last one once more."""
    count = sum(node.op == "call_function" and wraps_number(node.target, node.args) for node in branch.graph.nodes)
    return _NUMBER * (count + 1) if count else 0


def example_bytes(operands: Sequence[Tensor | None]) -> int:
    """Memory laid out as some tensors."""
    return sum(elements_spanned(tensor) * tensor.element_size() for tensor in tensors_in(operands))


def storage_key(tensor: Tensor) -> int:
    """What tells the storage of a tensor from those of others, as long as it is there."""
    return int(tensor.untyped_storage()._cdata)
