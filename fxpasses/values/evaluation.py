"""Run one node, or a nested graph, on fake values: in the mode of the program and without touching the process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import ShapeEnv, compute_unbacked_bindings, rebind_unbacked

from fxpasses.errors import FakeValueError, came_from
from fxpasses.metadata import current_pass, value_of
from fxpasses.values.fake_modes import ambient_modes_off, enclosing_autocasts, fake_of, is_foreign, unify_fake_modes
from fxpasses.values.recorded_values import has_value, same_value, set_value, value_leaves

__all__ = [
    "UNKNOWN",
    "Evaluation",
    "attribute_of",
    "bind_symbols",
    "open_autocasts",
    "own_symbols",
    "try_compute",
    "weights_listed_as_before",
]

UNKNOWN: Any = object()


_PURE_MODULES = ("torch", "_operator", "operator", "math", "builtins")


_MARKER_NAMES = frozenset(
    {
        "_enter_autocast", "_exit_autocast", "_set_grad_enabled", "set_grad_enabled",
        "_enter_inference_mode", "_exit_inference_mode", "_saved_tensors_hooks_disable",
        "_saved_tensors_hooks_enable", "_vmap_increment_nesting", "_vmap_decrement_nesting", "manual_seed",
        "seed", "set_rng_state", "set_default_dtype", "set_default_device", "print", "breakpoint", "input",
        "open", "exit",
    }
)  # fmt: skip


def try_compute(node: Node, evaluation: Evaluation) -> Any:
    """What ``node`` gives for the recorded values of its arguments; ``UNKNOWN`` when that cannot be told."""
    if node.op == "placeholder":
        return value_of(node) if has_value(node) else UNKNOWN
    if node.op == "get_attr":
        return _attribute_value(node, evaluation.mode)
    if node.op != "output" and _is_marker(node.target):
        return None
    try:
        args, kwargs = _argument_values(node, evaluation.mode)
    except _NoValueError:
        return UNKNOWN
    if node.op == "output":
        return args[0]
    return evaluation.call(node, args, kwargs)


class _NoValueError(Exception):
    """An argument has no recorded value."""


def _argument_values(node: Node, mode: FakeTensorMode) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if any(is_foreign(value_of(each), mode) for each in node.all_input_nodes):
        unify_fake_modes(node.graph.owning_module or node.graph)
        if any(is_foreign(value_of(each), mode) for each in node.all_input_nodes):
            raise FakeValueError(
                f"the inputs of {node.name!r} live in another fake mode than its graph; "
                "call fxpasses.values.unify_fake_modes on the module first",
                node=node,
                pass_name=current_pass(),
            )

    def value(each: Node) -> Any:
        if each.op == "get_attr" and isinstance(found := attribute_of(each), torch.nn.Module):
            return found
        if not has_value(each):
            raise _NoValueError
        return value_of(each)

    return map_arg(node.args, value), dict(map_arg(node.kwargs, value))


def attribute_of(node: Node) -> Any:
    """What a ``get_attr`` or ``call_module`` node refers to."""
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part, UNKNOWN)
        if found is UNKNOWN:
            break
    return found


def _attribute_value(node: Node, mode: FakeTensorMode) -> Any:
    found = attribute_of(node)
    if isinstance(found, torch.Tensor):
        return fake_of(found, mode, node)
    if isinstance(found, (bool, int, float, str)) or found is None:
        return found
    return UNKNOWN


def _is_marker(target: Any) -> bool:
    """Whether calling it would change the state of the process: a region opened, a seed set, a line printed."""
    if isinstance(target, (str, OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return False
    return getattr(target, "__name__", "") in _MARKER_NAMES


def _is_opaque(target: Any) -> bool:
    """Whether it is somebody's Python code, which may not stand fake tensors."""
    if isinstance(target, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return False
    module = getattr(target, "__module__", None) or type(target).__module__
    return str(module).split(".")[0] not in _PURE_MODULES


def _mutates(node: Node) -> bool:
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    return node.op == "call_module" or not isinstance(node.target, HigherOrderOperator)


def _detached(value: Any) -> Any:
    """Values that own their shape: what is done in place to a copy of a fake does not reach the recorded one."""
    if isinstance(value, FakeTensor):
        return value.detach()
    if isinstance(value, tuple) and type(value) is not tuple and hasattr(value, "_fields"):
        return type(value)(*map(_detached, value))
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(map(_detached, value))
    if type(value) is dict:
        return {key: _detached(part) for key, part in value.items()}
    return value


def _apart_from(value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The value, but not the very fake that was passed: two nodes never share one."""
    if isinstance(value, FakeTensor):
        return value.detach() if any(leaf is value for leaf in value_leaves((args, kwargs))) else value
    return _detached(value) if isinstance(value, (list, tuple, dict)) else value


def open_autocasts(node: Node) -> list[tuple[Any, ...]]:
    """What the autocast regions around a node say, as ``torch.autocast`` takes it, outermost first."""
    enter = torch.amp.autocast_mode._enter_autocast
    opened = node.graph.find_nodes(op="call_function", target=enter)
    found: list[tuple[Any, ...]] = list(enclosing_autocasts(node.graph))
    for region in opened:
        closed = any(user < node for user in region.users if getattr(user.target, "__name__", "") == "_exit_autocast")
        if region < node and not closed:
            found.append(tuple(region.args))
    return found


def _failure(node: Node, error: Exception) -> FakeValueError:
    where = came_from(node)
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    target = node._pretty_print_target(node.target)
    who, remedy = target, "register a fake kernel for it with torch.library.register_fake"
    if node.op == "call_module" and (owner := node.graph.owning_module) is not None:
        who, remedy = f"the {type(owner.get_submodule(target)).__name__} {target!r}", "give examples of other shapes"
    return FakeValueError(
        f"the value of {node.name!r}{where} cannot be computed: {who} says {type(error).__name__}: "
        f"{first.rstrip('.')}; make its arguments fit, or {remedy}",
        node=node,
        pass_name=current_pass(),
        reason=first,
    )


@contextlib.contextmanager
def own_symbols(shape_env: ShapeEnv | None) -> Iterator[None]:
    """Unbacked symbols made inside are accounted for inside; those that others left open stay open."""
    if shape_env is None:
        yield
        return
    pending = shape_env.pending_fresh_unbacked_symbols
    others = list(pending)
    pending.clear()
    try:
        yield
    finally:
        pending[:] = others


def bind_symbols(node: Node, value: Any, shape_env: ShapeEnv | None, bindings: Any) -> Any:
    """Note the unbacked symbols that are born at ``node``; where there were some before, they keep their names."""
    if shape_env is None or node.op in ("placeholder", "get_attr", "output"):
        return value
    fresh = compute_unbacked_bindings(shape_env, value)
    if not fresh:
        node.meta.pop("unbacked_bindings", None)
    elif bindings and sorted(map(str, bindings.values())) == sorted(map(str, fresh.values())):
        node.meta["unbacked_bindings"] = bindings
        rebind_unbacked(shape_env, node, value)
    else:
        node.meta["unbacked_bindings"] = fresh
    return value


@contextlib.contextmanager
def weights_listed_as_before(module: torch.nn.Module) -> Iterator[None]:
    """Recurrent layers list their weights a second time, and ``functional_call`` leaves its own in these lists."""
    layers = [layer for layer in module.modules() if isinstance(layer, torch.nn.RNNBase)]
    names = ("_flat_weights", "_flat_weight_refs")
    lists = [(layer, name, vars(layer)[name]) for layer in layers for name in names if name in vars(layer)]
    saved = [list(weights) for _layer, _name, weights in lists]
    try:
        yield
    finally:
        for (layer, name, weights), before in zip(lists, saved, strict=True):
            weights[:] = before
            vars(layer)[name] = weights


class Evaluation:
    """Runs nodes on fake values in one mode; what it finds inside nested graphs is written there, if it records.

    Nodes in there that have no value are left without one, unless bodies are to be filled.
    """

    def __init__(self, mode: FakeTensorMode, *, record: bool, fill_bodies: bool = False) -> None:
        self.mode = mode
        self.record = record
        self.fill_bodies = fill_bodies
        self._open = False

    def call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``node`` gives; ``UNKNOWN`` when somebody's opaque code does not stand fakes."""
        target = node.graph.owning_module.get_submodule(str(node.target)) if node.op == "call_module" else node.target  # type: ignore[union-attr]  # a graph with call_module has an owner
        opaque = not isinstance(target, (str, GraphModule)) and _is_opaque(target)
        if _mutates(node):
            args, kwargs = _detached(args), _detached(kwargs)
        try:
            with self.session(), contextlib.ExitStack() as regions:
                for arguments in open_autocasts(node):
                    regions.enter_context(torch.autocast(*arguments))
                return _apart_from(self._run(node, target, args, kwargs), args, kwargs)
        except FakeValueError:
            raise
        except Exception as error:  # operators and users' modules raise what they like
            if opaque:
                return UNKNOWN
            raise _failure(node, error) from error

    def _run(self, node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        if isinstance(target, GraphModule):
            return _Body(target, self)(*args, **kwargs)
        if isinstance(target, HigherOrderOperator):
            args = tuple(self._callable_bodies(arg) for arg in args)
            kwargs = {key: self._callable_bodies(arg) for key, arg in kwargs.items()}
        if isinstance(target, torch.nn.Module):
            return self._run_module(node, target, args, kwargs)
        return target(*args, **kwargs)

    def _run_module(self, node: Node, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module with fakes for its tensors, or a BatchNorm would count this as a batch."""
        state = dict(itertools.chain(module.named_parameters(), module.named_buffers()))
        fakes = {name: fake_of(tensor, self.mode, node) for name, tensor in state.items()}
        with weights_listed_as_before(module):
            return torch.func.functional_call(module, fakes, args, kwargs)

    def note(self, node: Node, value: Any) -> None:
        """Write down what a node of a nested graph gives, where that is asked for."""
        if not self.record or (has_value(node) and same_value(value_of(node), value)):
            return
        if has_value(node) or self.fill_bodies:
            set_value(node, value)

    def _callable_bodies(self, arg: Any) -> Any:
        if isinstance(arg, GraphModule):
            return _Body(arg, self)
        if isinstance(arg, (list, tuple)) and any(isinstance(part, GraphModule) for part in arg):
            return tuple(self._callable_bodies(part) for part in arg)
        return arg

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Stay in the mode for many calls: entering it costs about as much as an operator."""
        if self._open:
            yield
            return
        allowed = self.mode.allow_non_fake_inputs
        self.mode.allow_non_fake_inputs = True  # weights of modules and constants become fakes on the way
        self._open = True
        try:
            with ambient_modes_off(), self.mode, enable_python_dispatcher(), torch.no_grad():
                yield
        finally:
            self._open = False
            self.mode.allow_non_fake_inputs = allowed


class _Body(torch.nn.Module):
    """A nested graph, run node by node: its compiled ``forward`` may be older than its graph."""

    def __init__(self, graph_module: GraphModule, evaluation: Evaluation) -> None:
        super().__init__()
        self.__dict__["graph_module"] = graph_module
        self.__dict__["evaluation"] = evaluation

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        graph_module: GraphModule = self.__dict__["graph_module"]
        evaluation: Evaluation = self.__dict__["evaluation"]
        graph = graph_module.graph
        flat = iter(graph.process_inputs(*args, **kwargs)) if not kwargs else iter(args)
        env: dict[Node, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                value = kwargs[node.target] if node.target in kwargs else next(flat, *node.args)
            elif node.op == "get_attr":
                found = attribute_of(node)
                value = fake_of(found, evaluation.mode, node) if isinstance(found, torch.Tensor) else found
            elif node.op == "output":
                return graph.process_outputs(map_arg(node.args[0], env.__getitem__))
            elif _is_marker(node.target):
                value = None
            else:
                inputs = map_arg(node.args, env.__getitem__), dict(map_arg(node.kwargs, env.__getitem__))
                with own_symbols(evaluation.mode.shape_env):
                    value = evaluation.call(node, *inputs)
                    if value is UNKNOWN:
                        raise FakeValueError(f"the value of {node.name!r} in a nested graph is not known", node=node)
                    if evaluation.record:
                        bind_symbols(node, value, evaluation.mode.shape_env, node.meta.get("unbacked_bindings"))
            env[node] = value
            evaluation.note(node, value)
        return None
