"""Run one node alone, on made-up inputs of the recorded shapes, layouts and types."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

import attrs
import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.effects.operators import aten_overloads
from fxpasses.errors import PlacementError
from fxpasses.metadata import value_of
from fxpasses.partitioners.tensor_sizes import concrete_value, tensors_in
from fxpasses.passes.placing_parts.recurrent_weights import compact_operands
from fxpasses.seeding import seeded
from fxpasses.values import has_value
from fxpasses.values.evaluation import open_autocasts, weights_listed_as_before

__all__ = ["AloneCall", "key_of", "run_alone"]

_T = TypeVar("_T")


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _describe(value: Any) -> str:
    """All about an argument that its time can depend on, alike in every process."""
    if isinstance(value, torch.Tensor):
        layout = tuple(value.stride()) if value.layout is torch.strided else value.layout
        return f"{value.dtype}{tuple(value.shape)}{layout}"
    if isinstance(value, torch.nn.Module):
        inside = [f"{path} {_describe_alone(module)}" for path, module in value.named_modules()]
        return f"{inside}{[_describe(each) for each in (*value.parameters(), *value.buffers())]}"
    return _ADDRESS.sub("", repr(value))


def _describe_alone(module: torch.nn.Module) -> str:
    """A module without those that it holds: its graph, or its class with what it was told and the mode it is in."""
    if isinstance(module, GraphModule):
        return str(module.code)
    options = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    leaves, structure = pytree.tree_flatten(options)
    return f"{type(module).__module__}.{type(module).__qualname__} {structure} {list(map(_option, leaves))}"


def _option(value: Any) -> str:
    if isinstance(value, torch.nn.Module):
        return type(value).__name__
    return _describe_target(value) if callable(value) else _describe(value)


def _describe_target(target: Any) -> str:
    """What is called: an operator by its name, a function by its name and what it does."""
    code = getattr(target, "__code__", None)
    if isinstance(target, (str, torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return str(target)
    name = getattr(target, "__qualname__", "") or repr(target)
    body = "" if code is None else f"{_describe_code(code)}{_told(target)}"
    return _ADDRESS.sub("", f"{getattr(target, '__module__', '')}.{name}{body}")


def _describe_code(code: CodeType) -> str:
    """What a function does, with the functions that it makes; sets in one order."""

    def constant(value: Any) -> str:
        if isinstance(value, CodeType):
            return _describe_code(value)
        return f"{{{sorted(map(repr, value))}}}" if isinstance(value, frozenset) else repr(value)

    return f"({code.co_code!r}, {code.co_names}, {[constant(each) for each in code.co_consts]})"


def _told(function: Any, within: tuple[Any, ...] = ()) -> str:
    """What a function was made with: what it closes over, and its defaults; of other functions theirs."""

    def option(value: Any) -> str:
        if isinstance(value, FunctionType):
            known = any(value is each for each in within)
            return value.__qualname__ if known else _describe_code(value.__code__) + _told(value, (*within, value))
        return _option(value)

    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if not _is_empty(cell)]
    named = getattr(function, "__kwdefaults__", None) or {}
    told = [*cells, *(getattr(function, "__defaults__", None) or ()), *named.values()]
    leaves, structure = pytree.tree_flatten(told)
    return f" {structure} {list(map(option, leaves))}" if told else ""


def _is_empty(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked for the error
    except ValueError:
        return True
    return False


def _arguments(node: Node, value_for: Callable[[Node], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A node's arguments with values for nodes and numbers for symbols; bodies of control flow as they are."""
    owner = node.graph.owning_module

    def known(used: Node) -> Any:
        if not has_value(used) and used.op == "get_attr" and owner is not None:
            return owner.get_submodule(str(used.target))
        return value_for(used)

    taken = torch.fx.node.map_arg((tuple(node.args), dict(node.kwargs)), known)
    args, kwargs = concrete_value(taken)
    return args, kwargs


def _recorded(used: Node) -> Any:
    return concrete_value(value_of(used))


def _module_of(node: Node) -> torch.nn.Module | None:
    owner = node.graph.owning_module
    return owner.get_submodule(str(node.target)) if node.op == "call_module" and owner is not None else None


def key_of(node: Node, differentiable: Collection[Node] = ()) -> str:
    """Nodes of one key take the same: same operator or module, same arguments, gradients of the same of them."""
    module = _module_of(node)
    leaves, structure = pytree.tree_flatten(_arguments(node, _recorded))
    what = _describe_target(node.target) if module is None else _describe(module)
    text = f"{node.op} {what} {structure} {[_describe(leaf) for leaf in leaves]}"
    if regions := open_autocasts(node):
        text += f" {regions}"
    if differentiable:
        text += f" {[used in differentiable for used in node.all_input_nodes]}"
    label = type(module).__name__ if module is not None else _label(node.target)
    return f"{label} {hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _label(target: Any) -> str:
    """What a person who reads the file knows it by."""
    is_function = not isinstance(target, (str, torch._ops.OpOverload)) and hasattr(target, "__name__")
    return target.__name__ if is_function else _ADDRESS.sub("", str(target))


def _made_up(value: Any, device: torch.device) -> Any:
    """A real argument like a recorded one: random floats, zeros for numbers that may be indices."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=device)
    if 0 in value.stride() or not (value.is_floating_point() or value.is_complex()):
        return made.zero_()
    has_random = value.is_floating_point() and value.dtype.itemsize > 1  # float8 has not
    return made.uniform_(0.1, 1.0) if has_random else made.fill_(0.5)


_ASSERTIONS = (*aten_overloads("_assert_async"), *aten_overloads("_functional_assert_async"), torch._assert_async)
"""What is given to these is true: where it is not, a GPU takes no further work from the process."""


@attrs.frozen(eq=False)
class AloneCall:
    """A node as a function without arguments.

    Args:
        function: What runs it.
        operands: The tensors that it is given, and the state of a module.
        trained: The tensors that get a gradient.
    """

    function: Callable[[], Any]
    operands: Sequence[torch.Tensor]
    trained: Sequence[torch.Tensor]

    def __call__(self) -> Any:
        """Run it."""
        return self.function()


def _call(node: Node, device: torch.device, differentiable: Collection[Node]) -> AloneCall:
    """The node on made-up inputs and copies of the state of a module."""
    trained: list[torch.Tensor] = []

    def asks_gradient(made: Any) -> Any:
        if not isinstance(made, torch.Tensor) or not (made.is_floating_point() or made.is_complex()):
            return made
        trained.append(made.requires_grad_())
        return made.clone() if _may_write(node) else made  # into what is made for a gradient nothing is written

    def operand(used: Node) -> Any:
        made = pytree.tree_map(lambda leaf: _made_up(leaf, device), _recorded(used))
        if node.target in _ASSERTIONS and isinstance(made, torch.Tensor):
            made.fill_(1)
        return pytree.tree_map(asks_gradient, made) if used in differentiable else made

    given = _arguments(node, operand)
    args, kwargs = pytree.tree_map(lambda leaf: device if isinstance(leaf, torch.device) else leaf, given)
    operands = tensors_in((args, kwargs))
    if (module := _module_of(node)) is not None:
        state = {
            name: value.detach().to(device, copy=True)
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }
        if node in differentiable:
            trained += (
                state[name].requires_grad_() for name, value in module.named_parameters() if value.requires_grad
            )
        return AloneCall(
            lambda: torch.func.functional_call(module, state, args, kwargs), (*operands, *state.values()), trained
        )
    if node.op == "call_method":
        return AloneCall(lambda: getattr(args[0], str(node.target))(*args[1:], **kwargs), operands, trained)
    compact_operands(node, args, kwargs)
    target: Any = node.target
    return AloneCall(lambda: target(*args, **kwargs), operands, trained)


def _may_write(node: Node) -> bool:
    """Whether a node may write into its operands, as far as its target tells."""
    return not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable


def run_alone(
    node: Node,
    device: torch.device,
    measure: Callable[[AloneCall, torch.device], _T],
    differentiable: Collection[Node] = (),
) -> _T:
    """Measure a node as a function without arguments, under what it runs under.

    Args:
        node: A call whose arguments have recorded values.
        device: Where it runs.
        measure: Is given the function, and the device.
        differentiable: The nodes whose values get a gradient; without any, autograd is off.

    Raises:
        PlacementError: The device cannot run the node on inputs of these shapes.
    """
    with torch.set_grad_enabled(bool(differentiable)), seeded(), contextlib.ExitStack() as regions:
        for _device, *given in open_autocasts(node):
            regions.enter_context(torch.autocast(device.type, *given))
        if (module := _module_of(node)) is not None:
            regions.enter_context(weights_listed_as_before(module))
        try:
            return measure(_call(node, device, differentiable), device)
        except Exception as error:  # what an operator raises on inputs that are made up is its own choice
            raise PlacementError(f"{node.name} ({node.target}) does not run on {device}: {error}", node=node) from error
