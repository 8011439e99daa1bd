"""Run a graph node by node on real inputs, keep what each node gave, and compare two such runs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from fxpasses.effects import analyze_effects
from fxpasses.errors import InputError
from fxpasses.seeding import seeded

__all__ = ["TOLERANCES", "Difference", "Evaluation", "compare_tensors", "evaluate", "flat_inputs", "tensors_kept"]

TOLERANCES: Mapping[torch.dtype, float] = {
    torch.float64: 1e-9,
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.complex64: 2e-5,
    torch.complex128: 1e-9,
}
"""How far two values of a dtype may be apart, absolutely and relatively; other dtypes must be equal."""


@attrs.frozen(eq=False)
class Evaluation:
    """What one run gave: the outputs, the value of each node by name, and gradients by name if asked for.

    ``left`` are the inputs and buffers as the run left them, by what they are called in a message. ``paths`` say where
    in what the caller gets each output is, such as ``"['logits']"``; None for a program, whose outputs are flat.
    ``unreached`` are the parameters that the outputs depend on and that no gradient comes to.
    """

    outputs: list[Any]
    values: dict[str, list[Any]]
    gradients: dict[str, torch.Tensor]
    left: dict[str, torch.Tensor]
    paths: list[str] | None = None
    unreached: frozenset[str] = frozenset()


@attrs.frozen(eq=False)
class Difference:
    """Where and how two values differ."""

    what: str
    message: str


class _Recorder(Interpreter):
    def __init__(self, module: GraphModule, keep: bool) -> None:
        super().__init__(module)
        self.keep = keep
        self.values: dict[str, list[Any]] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if self.keep and n.op != "output":
            self.values[n.name] = [_copied(leaf) for leaf in pytree.tree_leaves(result)]
        return result


def evaluate(
    subject: GraphModule | ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    values: bool = False,
    gradients: bool = False,
) -> Evaluation:
    """Run a module or program on copies of the inputs, with a fixed random seed; what it writes to is put back.

    Args:
        subject: What to run.
        args: Its inputs, as a call would give them.
        kwargs: Its keyword inputs.
        values: Keep a copy of what each node gives.
        gradients: Also differentiate a fixed combination of the outputs.
    """
    module = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    given = pytree.tree_map_only(torch.Tensor, _fresh(gradients), (tuple(args), dict(kwargs or {})))
    flat = flat_inputs(subject, *given)
    recorder = _Recorder(module, values)
    with contextlib.ExitStack() as stack:
        stack.enter_context(seeded())
        stack.enter_context(_state_kept(module))
        stack.enter_context(torch.enable_grad() if gradients else torch.no_grad())
        result = recorder.run(*flat, enable_io_processing=False)
        outputs = pytree.tree_leaves(result)
        found, unreached = _gradients(subject, outputs, flat) if gradients else ({}, frozenset())
        left = dict(_own_tensors(subject, flat))
    paths = None if isinstance(subject, ExportedProgram) else _paths(module, result)
    return Evaluation([_copied(output) for output in outputs], recorder.values, found, left, paths, unreached)


def _paths(module: GraphModule, result: Any) -> list[str] | None:
    """Where the leaves of a result are in what the caller of the module gets; lists and tuples are the same here."""
    info = getattr(module.graph._codegen, "pytree_info", None)
    spec = None if info is None else info.out_spec
    leaves = pytree.tree_leaves(result)
    if spec is not None and spec.num_leaves == len(leaves):
        result = pytree.tree_unflatten(leaves, spec)
    try:
        return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(result)[0]]
    except ValueError:  # a type that was registered without its keys
        return None


def _fresh(gradients: bool) -> Any:
    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        copied = tensor.detach().clone()
        return copied.requires_grad_(gradients and copied.is_floating_point())

    return fresh


def flat_inputs(subject: GraphModule | ExportedProgram, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """One value per placeholder, in order."""
    if isinstance(subject, ExportedProgram):
        return _program_inputs(subject, args, kwargs)
    info = getattr(subject.graph._codegen, "pytree_info", None)
    if info is not None:
        flat = pytree.tree_leaves((args, kwargs))
        wanted = len(subject.graph.find_nodes(op="placeholder"))
        if len(flat) != wanted:
            raise InputError(f"the module takes {wanted} values, but the given inputs hold {len(flat)}")
        return flat
    if not kwargs:
        placeholders = subject.graph.find_nodes(op="placeholder")
        if len(args) > len(placeholders) and not any(str(node.target).startswith("*") for node in placeholders):
            raise InputError(f"the module takes {len(placeholders)} values, but the given inputs hold {len(args)}")
        return list(args)
    try:
        bound = inspect.signature(subject.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(f"the given inputs do not fit the module: {error}") from error
    return [
        bound.arguments[str(n.target)]
        for n in subject.graph.find_nodes(op="placeholder")
        if n.target in bound.arguments
    ]


def _program_inputs(program: ExportedProgram, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    leaves = pytree.tree_leaves((args, _in_order(program, kwargs)))
    wanted = sum(spec.kind is InputKind.USER_INPUT for spec in program.graph_signature.input_specs)
    if len(leaves) > wanted:
        raise InputError(f"the program takes {wanted} values, but the given inputs hold {len(leaves)}")
    given, flat = iter(leaves), []
    # constants, and parameters as an embedding with ``max_norm`` writes them
    written = {node.name for node in analyze_effects(program.graph_module).written_inputs()}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            try:
                flat.append(next(given))
            except StopIteration:
                raise InputError(f"the program takes an input {spec.arg.name!r} that was not given") from None
            continue
        kept: Any = program.state_dict.get(spec.target, program.constants.get(spec.target))
        is_own = isinstance(kept, torch.Tensor) and (spec.kind is InputKind.BUFFER or spec.arg.name in written)
        flat.append(kept.detach().clone().requires_grad_(kept.requires_grad) if is_own else kept)
    return flat


def _in_order(program: ExportedProgram, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword inputs in the order in which the program takes them."""
    signature = program.module_call_graph[0].signature if program.module_call_graph else None
    names = None if signature is None else signature.forward_arg_names
    if not kwargs or not names:
        return kwargs
    if unknown := [name for name in kwargs if name not in names]:
        raise InputError(f"the program takes no input {unknown[0]!r}; it takes {', '.join(names)}")
    return {name: kwargs[name] for name in names if name in kwargs}


@contextlib.contextmanager
def _state_kept(module: GraphModule) -> Iterator[None]:
    """Buffers, and what else the run writes to, are put back, without a word to autograd."""
    with tensors_kept((*module.buffers(), *analyze_effects(module).written_tensors())):
        yield


@contextlib.contextmanager
def tensors_kept(tensors: Iterable[torch.Tensor]) -> Iterator[Callable[[], bool]]:
    """Tensors are put back as they were, whatever is written into them inside, or set as their ``data``.

    Gives a function that tells whether any of them is another than it was. Those without numbers are left out.
    """
    state = {id(each): each for each in tensors if not each.is_meta and not isinstance(each, FakeTensor)}
    kept = [(each, each.data, _version(each), each.detach().clone()) for each in state.values()]

    def changed() -> bool:
        return any(_is_other(tensor, version, copied) for tensor, _, version, copied in kept)

    try:
        yield changed
    finally:
        for tensor, data, version, copied in kept:
            if _is_other(tensor, version, copied):
                if tensor.shape != copied.shape or tensor.dtype != copied.dtype or tensor.device != copied.device:
                    tensor.data = data
                _put_back(tensor, version, copied)


def _version(tensor: torch.Tensor) -> int | None:
    """How often a tensor was written to; one that was made in inference mode does not count."""
    return None if tensor.is_inference() else tensor._version


def _put_back(tensor: torch.Tensor, version: int | None, copied: torch.Tensor) -> None:
    if version is None:
        with torch.inference_mode():
            tensor.copy_(copied)
        return
    with torch.no_grad(), _unsafe_preserve_version_counter(tensor):
        tensor.copy_(copied)
        # the counter itself goes back too, so that nobody takes this for a change of the module
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def _is_other(tensor: torch.Tensor, version: int | None, copied: torch.Tensor) -> bool:
    """Has a tensor been written to? Batch norm writes without counting, as does whoever writes to ``data``."""
    return _version(tensor) != version or compare_tensors(copied, tensor, {}) is not None


def _own_tensors(subject: GraphModule | ExportedProgram, flat: Sequence[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The inputs, by position, for passes may rename them, and the buffers that a run can write.

    Both are the run's own copies, but for the buffers of a module, which are put back.
    """
    if isinstance(subject, ExportedProgram):
        kinds = [(spec.kind, spec.target) for spec in subject.graph_signature.input_specs]
    else:
        kinds = [(InputKind.USER_INPUT, None)] * len(flat)
        yield from ((f"buffer {name}", buffer.detach().clone()) for name, buffer in subject.named_buffers())
    position = 0
    for (kind, target), value in zip(kinds, flat, strict=True):
        if kind is InputKind.BUFFER and isinstance(value, torch.Tensor):
            yield f"buffer {target}", value.detach()
        elif kind is InputKind.USER_INPUT:
            if isinstance(value, torch.Tensor):
                yield f"input {position}", value.detach()
            position += 1


def _gradients(subject: Any, outputs: list[Any], flat: list[Any]) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
    """The gradients of inputs and parameters, and which parameters have none though the outputs depend on them."""
    module = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    names = _input_names(subject)
    leaves = {name: value for name, value in zip(names, flat, strict=False) if _differentiable(value)}
    if not isinstance(subject, ExportedProgram):
        leaves.update({f"parameter {name}": value for name, value in module.named_parameters() if value.requires_grad})
    generator = torch.Generator().manual_seed(0)
    total: Any = 0.0
    for output in outputs:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            weights = torch.rand(output.shape, generator=generator, dtype=torch.float64).to(output.device, output.dtype)
            total = total + (output * weights).sum()
    found: Sequence[torch.Tensor | None] = [None] * len(leaves)
    if isinstance(total, torch.Tensor) and leaves:
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    by_name = dict(zip(leaves, found, strict=True))
    read = set(_parameters_read(subject, names))
    reached = {name: gradient for name, gradient in by_name.items() if gradient is not None}
    return reached, frozenset(name for name in by_name if name in read and name not in reached)


def _input_names(subject: Any) -> list[str]:
    """What the inputs are called in a message; some of a program's are its parameters."""
    if isinstance(subject, ExportedProgram):
        return [
            f"parameter {spec.target}" if spec.kind is InputKind.PARAMETER else f"input {spec.arg.name}"
            for spec in subject.graph_signature.input_specs
        ]
    return [f"input {node.target}" for node in subject.graph.find_nodes(op="placeholder")]


def _parameters_read(subject: Any, names: Sequence[str]) -> Iterator[str]:
    """The parameters that the outputs depend on: those that are read, and those of the modules that are called."""
    module = subject.graph_module if isinstance(subject, ExportedProgram) else subject
    live: set[Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op == "output" or node in live:
            live.update(node.all_input_nodes)
    placeholders = module.graph.find_nodes(op="placeholder")
    yield from (name for node, name in zip(placeholders, names, strict=False) if node in live)
    targets = {str(node.target) for node in live if node.op in ("get_attr", "call_module")}
    for name, _ in module.named_parameters():
        parts = name.split(".")
        if any(".".join(parts[:length]) in targets for length in range(1, len(parts) + 1)):
            yield f"parameter {name}"


def _differentiable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def compare_tensors(mine: Any, theirs: Any, tolerances: Mapping[torch.dtype, float]) -> str | None:
    """How two leaves differ, in words; None if they are the same within the tolerance of their dtype."""
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        same = type(mine) is type(theirs) and (mine == theirs or (mine != mine and theirs != theirs))
        return None if same else f"{theirs!r} instead of {mine!r}"
    mine, theirs = mine.detach(), theirs.detach()
    if (mine.dtype, mine.layout, mine.is_nested) != (theirs.dtype, theirs.layout, theirs.is_nested):
        return f"{_described(theirs)} instead of {_described(mine)}"
    if mine.is_nested:  # sizes of two nested tensors are never the same symbols
        return _compare_rows(mine.unbind(), theirs.unbind(), tolerances)
    if mine.shape != theirs.shape:
        return f"{_described(theirs)} instead of {_described(mine)}"
    if mine.device.type == "meta" or theirs.device.type == "meta" or mine.numel() == 0:
        return None
    theirs = theirs.to(mine.device)
    tolerance = tolerances.get(mine.dtype, 0.0)
    mine, theirs = _plain(mine), _plain(theirs)
    if torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    if not (mine.is_floating_point() or mine.is_complex()):
        return f"{int((mine != theirs).sum())} of {mine.numel()} elements differ"
    apart = (mine.to(torch.complex128 if mine.is_complex() else torch.float64) - theirs).abs()
    worst = float(torch.nan_to_num(apart, nan=float("inf")).max())
    return f"they are {worst:.3g} apart, more than {tolerance:g}"


def _described(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return f"nested {tensor.dtype}"
    kind = "" if tensor.layout is torch.strided else f" ({str(tensor.layout).removeprefix('torch.')})"
    return f"{tensor.dtype}{list(tensor.shape)}{kind}"


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a form that can be compared: sparse, quantised and eight-bit ones cannot."""
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def _compare_rows(
    mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], tolerances: Mapping[torch.dtype, float]
) -> str | None:
    if len(mine) != len(theirs):
        return f"{len(theirs)} nested rows instead of {len(mine)}"
    for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if (how := compare_tensors(one, other, tolerances)) is not None:
            return f"in nested row {index}, {how}"
    return None
