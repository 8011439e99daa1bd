"""Fake values of nodes: which FakeTensorMode a graph lives in, and what a node computes in it.

``node.meta["val"]`` says what a node would give: a :class:`FakeTensor`, a ``SymInt``, a number, or a list of them. All
fakes of one program belong to one :class:`FakeTensorMode`; its ``ShapeEnv`` owns the symbols. New values are computed
in that mode, only where something changed: :func:`refresh_values` walks forward from the nodes that it is given, in
graph order, and stops where the new value equals the recorded one by shape, stride, dtype, device and symbols.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import ShapeEnv, compute_unbacked_bindings, free_symbols, rebind_unbacked

from fxpasses.errors import FakeValueError, user_line
from fxpasses.metadata import current_pass, drop_stale_entries

__all__ = [
    "compute_value",
    "fake_mode_of",
    "fake_of",
    "give_value",
    "has_value",
    "nested_graph_modules",
    "obtain_fake_mode",
    "refresh_callers",
    "refresh_value",
    "refresh_values",
    "same_value",
    "set_value",
    "shape_env_of",
    "unify_fake_modes",
    "value_of_arguments",
]

_UNKNOWN: Any = object()
_MODE_KEY = "fxpasses.fake_mode"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def nested_graph_modules(graph_module: GraphModule) -> Iterator[GraphModule]:
    """The module itself, then every graph module inside it, each once, in the order of ``named_modules``.

    Bodies of ``cond``, ``map``, ``scan`` and ``while_loop`` are submodules, and so are partitions.
    """
    seen: set[int] = set()
    for module in graph_module.modules():
        if isinstance(module, GraphModule) and id(module.graph) not in seen:
            seen.add(id(module.graph))
            yield module


def has_value(node: Node) -> bool:
    """Whether a fake value is recorded (it may be None, for nodes that give nothing)."""
    return "val" in node.meta or "example_value" in node.meta


def shape_env_of(value: Any) -> ShapeEnv | None:
    """The shape environment that a fake tensor or a symbol belongs to."""
    if isinstance(value, FakeTensor):
        return value.fake_mode.shape_env
    return value.node.shape_env if isinstance(value, _SYMBOLIC) else None


def value_of_arguments(argument: Any) -> Any:
    """The recorded values of a structure of nodes and constants."""
    return map_arg(argument, _recorded)


# --- one mode per program -------------------------------------------------------------------------------------------


class _RememberedMode:
    """Holds a mode in ``graph_module.meta``; copies of the module share it, and it is left out of pickles."""

    def __init__(self, mode: FakeTensorMode | None = None) -> None:
        self.mode = mode

    def __deepcopy__(self, memo: dict[int, Any]) -> _RememberedMode:
        return self

    def __reduce__(self) -> tuple[type[_RememberedMode], tuple[()]]:
        return _RememberedMode, ()


def fake_mode_of(root: GraphModule | Graph | ExportedProgram) -> FakeTensorMode | None:
    """The mode that the fake values of a program belong to; None when it has none.

    Placeholders are asked first, then the other nodes, then the graphs nested inside, and at last the mode that
    :func:`obtain_fake_mode` has remembered.
    """
    graph, graph_module = _graph_and_module(root)
    other: FakeTensorMode | None = None
    for node in graph.nodes:
        if other is not None and node.op not in ("placeholder", "get_attr"):
            return other
        if (mode := _mode_of_value(_recorded(node))) is not None:
            if node.op == "placeholder":
                return mode
            other = other or mode
    if other is not None:
        return other
    if graph_module is None:
        return None
    for nested in nested_graph_modules(graph_module):
        if nested.graph is graph:
            continue
        for node in nested.graph.nodes:
            if (mode := _mode_of_value(_recorded(node))) is not None:
                return mode
    return _remembered_mode(graph_module)


def obtain_fake_mode(root: GraphModule | Graph | ExportedProgram) -> FakeTensorMode:
    """The mode of a program; a graph that has none gets one, which is remembered with its module."""
    mode = fake_mode_of(root)
    if mode is not None:
        return mode
    _, graph_module = _graph_and_module(root)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    if graph_module is not None and isinstance(getattr(graph_module, "meta", None), dict):
        graph_module.meta[_MODE_KEY] = _RememberedMode(mode)
    return mode


def unify_fake_modes(root: GraphModule | Graph | ExportedProgram) -> FakeTensorMode | None:
    """Bring all fake values of a program, nested graphs included, into one mode.

    Values with fixed shapes are made again in the mode that the placeholders use. Symbols cannot move between shape
    environments, so if some value has symbols, its mode is the one that stays.

    Returns:
        The one mode, None when the program has no fake values.

    Raises:
        FakeValueError: Values with symbols belong to two different shape environments.
    """
    graph, graph_module = _graph_and_module(root)
    graphs = [graph] if graph_module is None else [nested.graph for nested in nested_graph_modules(graph_module)]
    nodes = [node for each in graphs for node in each.nodes if has_value(node)]
    owner: Node | None = None
    mode: FakeTensorMode | None = None
    for node in nodes:
        for leaf in _leaves(_recorded(node)):
            if not isinstance(leaf, FakeTensor):
                continue
            if not _symbols(leaf):
                mode = mode or leaf.fake_mode
            elif owner is None:
                owner, mode = node, leaf.fake_mode
            elif mode is None or leaf.fake_mode.shape_env is not mode.shape_env:
                raise FakeValueError(
                    f"the symbolic shapes of {owner.name!r} and {node.name!r} belong to two shape environments, which "
                    "cannot be merged; export both parts of the graph in one go, or make the shapes of one of them "
                    "static",
                    node=node,
                    pass_name=current_pass(),
                )
    if mode is None:
        return fake_mode_of(root)
    for node in nodes:
        for key in ("val", "example_value"):
            if key in node.meta and _foreign(node.meta[key], mode):
                node.meta[key] = _refake(node.meta[key], mode, node)
    return mode


def _graph_and_module(root: GraphModule | Graph | ExportedProgram) -> tuple[Graph, GraphModule | None]:
    if isinstance(root, Graph):
        return root, root.owning_module
    if isinstance(root, ExportedProgram):
        return root.graph_module.graph, root.graph_module
    return root.graph, root


def _remembered_mode(graph_module: GraphModule) -> FakeTensorMode | None:
    holder = getattr(graph_module, "meta", {}).get(_MODE_KEY)
    return holder.mode if isinstance(holder, _RememberedMode) else None


def _recorded(node: Node) -> Any:
    meta = node.meta
    return meta["val"] if "val" in meta else meta.get("example_value")


def _leaves(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, (list, tuple)):
            waiting.extend(reversed(found))
        elif isinstance(found, Mapping):
            waiting.extend(reversed(list(found.values())))
        else:
            yield found


def _mode_of_value(value: Any) -> FakeTensorMode | None:
    if value is None:
        return None
    for leaf in _leaves(value):
        if isinstance(leaf, FakeTensor):
            return leaf.fake_mode
    return None


def _symbols(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in tensor.shape) and bool(free_symbols(tensor))


def _foreign(value: Any, mode: FakeTensorMode) -> bool:
    return any(isinstance(leaf, FakeTensor) and leaf.fake_mode is not mode for leaf in _leaves(value))


def _refake(value: Any, mode: FakeTensorMode, node: Node) -> Any:
    if isinstance(value, (list, tuple)):
        parts = [_refake(part, mode, node) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        return {key: _refake(part, mode, node) for key, part in value.items()}
    if not isinstance(value, FakeTensor) or value.fake_mode is mode:
        return value
    if _symbols(value) and value.fake_mode.shape_env is not mode.shape_env:
        raise FakeValueError(
            f"the symbolic shape of {node.name!r} belongs to another shape environment than the rest of the graph; "
            "export both parts in one go, or make its shape static",
            node=node,
            pass_name=current_pass(),
        )
    with mode, torch.no_grad():
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=value.requires_grad)
    return made.requires_grad_(value.requires_grad)


# --- what one node gives --------------------------------------------------------------------------------------------


def compute_value(node: Node) -> Any:
    """The fake value that ``node`` gives for the recorded values of its arguments; nothing is written.

    Args:
        node: Any node but a placeholder.

    Returns:
        A fake tensor, a symbol, a number, or a structure of them; None for nodes that give nothing.

    Raises:
        FakeValueError: An argument has no value, the arguments do not fit the operator, or it has no fake kernel.
    """
    mode = obtain_fake_mode(node.graph)
    with _own_symbols(mode.shape_env):
        value = _try_compute(node, _Evaluation(mode, record=False))
    if value is _UNKNOWN:
        missing = [each.name for each in node.all_input_nodes if not has_value(each)]
        why = f"its inputs {missing} have no recorded value" if missing else "what it calls cannot run on fake tensors"
        raise FakeValueError(
            f"the value of {node.name!r} cannot be computed: {why}; export the model, or propagate fake tensors first",
            node=node,
            pass_name=current_pass(),
            reason=why,
        )
    return value


def _try_compute(node: Node, evaluation: _Evaluation) -> Any:
    if node.op == "placeholder":
        return _recorded(node) if has_value(node) else _UNKNOWN
    if node.op == "get_attr":
        return _attribute_value(node, evaluation.mode)
    if node.op != "output" and _is_marker(node.target):
        return None
    try:
        args, kwargs = _argument_values(node, evaluation.mode)
    except _NoValueError:
        return _UNKNOWN
    if node.op == "output":
        return args[0]
    return evaluation.call(node, args, kwargs)


class _NoValueError(Exception):
    """An argument has no recorded value."""


def _argument_values(node: Node, mode: FakeTensorMode) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if any(_foreign(_recorded(each), mode) for each in node.all_input_nodes):
        unify_fake_modes(node.graph.owning_module or node.graph)
        if any(_foreign(_recorded(each), mode) for each in node.all_input_nodes):
            raise FakeValueError(
                f"the inputs of {node.name!r} live in another fake mode than its graph; "
                "call fxpasses.values.unify_fake_modes on the module first",
                node=node,
                pass_name=current_pass(),
            )

    def value(each: Node) -> Any:
        if each.op == "get_attr" and isinstance(found := _attribute(each), torch.nn.Module):
            return found
        if not has_value(each):
            raise _NoValueError
        return _recorded(each)

    return map_arg(node.args, value), dict(map_arg(node.kwargs, value))


def _attribute(node: Node) -> Any:
    found: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        found = getattr(found, part, _UNKNOWN)
        if found is _UNKNOWN:
            break
    return found


def _attribute_value(node: Node, mode: FakeTensorMode) -> Any:
    found = _attribute(node)
    if isinstance(found, torch.Tensor):
        return fake_of(found, mode, node)
    if isinstance(found, (bool, int, float, str)) or found is None:
        return found
    return _UNKNOWN


def fake_of(tensor: torch.Tensor, mode: FakeTensorMode, node: Node) -> torch.Tensor:
    """The fake of a real tensor (or of another mode's fake) in ``mode``, static in shape; no data is copied.

    Args:
        tensor: Any tensor; parameters give fake parameters.
        mode: The mode of the program.
        node: The node it is for, for messages.
    """
    if isinstance(tensor, FakeTensor):
        found: torch.Tensor = _refake(tensor, mode, node)
        return found
    with _ambient_modes_off():
        return mode.from_tensor(tensor, static_shapes=True)


@contextlib.contextmanager
def _ambient_modes_off() -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


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


class _Evaluation:
    """Runs nodes on fake values in one mode; what it finds inside nested graphs is written there, if it records."""

    def __init__(self, mode: FakeTensorMode, *, record: bool) -> None:
        self.mode = mode
        self.record = record
        self._open = False

    def call(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``node`` gives; ``_UNKNOWN`` when somebody's opaque code does not stand fakes."""
        target = node.graph.owning_module.get_submodule(str(node.target)) if node.op == "call_module" else node.target  # type: ignore[union-attr]  # a graph with call_module has an owner
        opaque = not isinstance(target, (str, GraphModule)) and _is_opaque(target)
        if _mutates(node):
            args, kwargs = _detached(args), _detached(kwargs)
        try:
            with self.session(), contextlib.ExitStack() as regions:
                for arguments in _open_autocasts(node):
                    regions.enter_context(torch.autocast(*arguments))
                return _apart_from(self._run(node, target, args, kwargs), args, kwargs)
        except FakeValueError:
            raise
        except Exception as error:  # operators and users' modules raise what they like
            if opaque:
                return _UNKNOWN
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
        return torch.func.functional_call(module, fakes, args, kwargs)

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
            with _ambient_modes_off(), self.mode, enable_python_dispatcher(), torch.no_grad():
                yield
        finally:
            self._open = False
            self.mode.allow_non_fake_inputs = allowed


class _Body(torch.nn.Module):
    """A nested graph, run node by node: its compiled ``forward`` may be older than its graph."""

    def __init__(self, graph_module: GraphModule, evaluation: _Evaluation) -> None:
        super().__init__()
        self.__dict__["graph_module"] = graph_module
        self.__dict__["evaluation"] = evaluation

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        graph_module: GraphModule = self.__dict__["graph_module"]
        evaluation: _Evaluation = self.__dict__["evaluation"]
        graph = graph_module.graph
        flat = iter(graph.process_inputs(*args, **kwargs)) if not kwargs else iter(args)
        env: dict[Node, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                value = kwargs[node.target] if node.target in kwargs else next(flat, *node.args)
            elif node.op == "get_attr":
                found = _attribute(node)
                value = fake_of(found, evaluation.mode, node) if isinstance(found, torch.Tensor) else found
            elif node.op == "output":
                return graph.process_outputs(map_arg(node.args[0], env.__getitem__))
            elif _is_marker(node.target):
                value = None
            else:
                inputs = map_arg(node.args, env.__getitem__), dict(map_arg(node.kwargs, env.__getitem__))
                with _own_symbols(evaluation.mode.shape_env):
                    value = evaluation.call(node, *inputs)
                    if value is _UNKNOWN:
                        raise FakeValueError(f"the value of {node.name!r} in a nested graph is not known", node=node)
                    if evaluation.record:
                        _bind_symbols(node, value, evaluation.mode.shape_env, node.meta.get("unbacked_bindings"))
            env[node] = value
            if evaluation.record and has_value(node) and not same_value(_recorded(node), value):
                set_value(node, value)
        return None


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
        return value.detach() if any(leaf is value for leaf in _leaves((args, kwargs))) else value
    return _detached(value) if isinstance(value, (list, tuple, dict)) else value


def _open_autocasts(node: Node) -> list[tuple[Any, ...]]:
    enter = torch.amp.autocast_mode._enter_autocast
    opened = node.graph.find_nodes(op="call_function", target=enter)
    found = []
    for region in opened:
        closed = any(user < node for user in region.users if getattr(user.target, "__name__", "") == "_exit_autocast")
        if region < node and not closed:
            found.append(tuple(region.args))
    return found


def _failure(node: Node, error: Exception) -> FakeValueError:
    where = f" (from {line})" if (line := user_line(node)) else ""
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    return FakeValueError(
        f"the value of {node.name!r}{where} cannot be computed: {node._pretty_print_target(node.target)} says "
        f"{type(error).__name__}: {first}; make its arguments fit, or register a fake kernel for it with "
        "torch.library.register_fake",
        node=node,
        pass_name=current_pass(),
        reason=first,
    )


# --- writing values and walking on ----------------------------------------------------------------------------------


def same_value(left: Any, right: Any) -> bool:
    """Whether two values look the same to whoever uses them: shape, stride, dtype, device, layout and symbols.

    Symbols are compared by their expressions, so no guard is ever added to the shape environment.
    """
    if left is right:
        return True
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return _same_tensor(left, right)
    if isinstance(left, _SYMBOLIC) or isinstance(right, _SYMBOLIC):
        return _same_size(left, right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return list(left) == list(right) and all(same_value(left[key], right[key]) for key in left)
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def _same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.device != right.device or left.layout != right.layout:
        return False
    if len(left.shape) != len(right.shape) or not all(map(_same_size, left.shape, right.shape)):
        return False
    return left.layout != torch.strided or all(map(_same_size, left.stride(), right.stride()))


def _same_size(left: Any, right: Any) -> bool:
    if not isinstance(left, _SYMBOLIC) and not isinstance(right, _SYMBOLIC):
        return type(left) is type(right) and bool(left == right)
    if type(left) is type(right) and left.node.shape_env is not right.node.shape_env:
        return False
    return bool(_expression(left) == _expression(right))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, _SYMBOLIC) else size


def set_value(node: Node, value: Any) -> None:
    """Record ``value``; what else is said about the old value is brought up to date or dropped."""
    node.meta["val"] = value
    if "example_value" in node.meta:
        node.meta["example_value"] = value
    if "tensor_meta" in node.meta:
        _update_tensor_meta(node, node.meta["tensor_meta"], value)
    node.meta.pop("eager_input_vals", None)
    drop_stale_entries(node)


def _update_tensor_meta(node: Node, sample: Any, value: Any) -> None:
    made = _described(sample, value)
    if made is None:
        del node.meta["tensor_meta"]
    else:
        node.meta["tensor_meta"] = made


def _described(sample: Any, value: Any) -> Any:
    """``tensor_meta`` of a value, in the form that ``sample`` has."""
    while isinstance(sample, (list, tuple)) and not hasattr(sample, "_replace"):
        if not sample:
            return None
        sample = sample[0]
    if not hasattr(sample, "_replace"):
        return None
    if isinstance(value, (list, tuple)):
        parts = [_described(sample, part) for part in value]
        return type(value)(parts) if type(value) in (list, tuple) else tuple(parts)
    if not isinstance(value, torch.Tensor):
        return None
    strided = value.layout == torch.strided
    return sample._replace(
        shape=value.shape,
        dtype=value.dtype,
        requires_grad=value.requires_grad,
        stride=value.stride() if strided else (),
        memory_format=_memory_format(value) if strided else None,
        is_quantized=value.is_quantized,
        qparams={},
    )


def _memory_format(tensor: torch.Tensor) -> torch.memory_format | None:
    if any(isinstance(size, torch.SymInt) for size in tensor.shape):
        return None  # asking would add guards to the shape environment
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return next((each for each in formats if _is_contiguous(tensor, each)), None)


def _is_contiguous(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    dims = {torch.channels_last: 4, torch.channels_last_3d: 5}
    if dims.get(memory_format, tensor.dim()) != tensor.dim():
        return False
    return tensor.is_contiguous(memory_format=memory_format)


def give_value(node: Node, mode: FakeTensorMode | None = None, *, bindings_of: Node | None = None) -> bool:
    """Compute and record the value of a new node; False when it cannot be known.

    Args:
        node: The node; its arguments have their values.
        mode: The mode of the program; looked up if None.
        bindings_of: A node that it replaces; unbacked symbols (``u0``) that were born there are born here from now on,
            so everything that is said about them stays true.
    """
    if not _inputs_known(node):
        return False
    bindings = (bindings_of or node).meta.get("unbacked_bindings")
    value = _computed(node, _Evaluation(mode or obtain_fake_mode(node.graph), record=True), bindings)
    if value is _UNKNOWN:
        return False
    set_value(node, value)
    return True


def _inputs_known(node: Node) -> bool:
    return all(has_value(each) or each.op == "get_attr" for each in node.all_input_nodes)


def _computed(node: Node, evaluation: _Evaluation, bindings: Any) -> Any:
    """What ``node`` gives, its unbacked symbols bound to it; ``_UNKNOWN`` when it cannot be known."""
    with _own_symbols(evaluation.mode.shape_env):
        value = _try_compute(node, evaluation)
        return value if value is _UNKNOWN else _bind_symbols(node, value, evaluation.mode.shape_env, bindings)


@contextlib.contextmanager
def _own_symbols(shape_env: ShapeEnv | None) -> Iterator[None]:
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


def _bind_symbols(node: Node, value: Any, shape_env: ShapeEnv | None, bindings: Any) -> Any:
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


def refresh_values(nodes: Iterable[Node]) -> list[Node]:
    """Compute the values of ``nodes`` again, then those of their users, and so on until nothing changes.

    Nodes are visited in graph order, each once, so the cost is that of the nodes whose inputs really changed. A value
    that can no longer be known is dropped, rather than left wrong.

    Args:
        nodes: Where to begin; nodes of one graph.

    Returns:
        The nodes whose recorded value changed, in graph order.

    Raises:
        FakeValueError: An operator does not fit its arguments any more; all values are what they were before.
    """
    waiting = list(dict.fromkeys(nodes))
    if not waiting:
        return []
    heapq.heapify(waiting)
    queued = set(waiting)
    changed: dict[Node, dict[str, Any]] = {}
    evaluation: _Evaluation | None = None
    with contextlib.ExitStack() as session:
        while waiting:
            node = heapq.heappop(waiting)
            if evaluation is None and node.op != "placeholder" and _inputs_known(node):
                evaluation = _Evaluation(obtain_fake_mode(node.graph), record=True)
                session.enter_context(evaluation.session())
            before = node.meta.copy()
            try:
                if not _refresh(node, evaluation):
                    continue
            except FakeValueError:
                _take_back(changed)
                raise
            changed[node] = before
            for user in node.users:
                if user not in queued:
                    queued.add(user)
                    heapq.heappush(waiting, user)
    return list(changed)


def _take_back(changed: dict[Node, dict[str, Any]]) -> None:
    for node, meta in changed.items():
        node.meta.clear()
        node.meta.update(meta)


def refresh_value(node: Node, mode: FakeTensorMode | None = None) -> bool:
    """Compute the value of one node again and record it; whether it looks different from before.

    Raises:
        FakeValueError: The operator does not fit its arguments any more.
    """
    evaluation = None
    if node.op != "placeholder" and _inputs_known(node):
        evaluation = _Evaluation(mode or obtain_fake_mode(node.graph), record=True)
    return _refresh(node, evaluation)


def _refresh(node: Node, evaluation: _Evaluation | None) -> bool:
    if node.op == "placeholder" or (node.op == "output" and not has_value(node)):
        return node.op == "placeholder"
    known = has_value(node)
    before = _recorded(node)
    value = _UNKNOWN
    if evaluation is not None and _inputs_known(node):
        value = _computed(node, evaluation, node.meta.get("unbacked_bindings"))
    if value is _UNKNOWN:
        if known:
            _forget_value(node)
        return known
    if known and same_value(before, value):
        return False
    set_value(node, value)
    return True


def _forget_value(node: Node) -> None:
    for key in ("val", "example_value", "tensor_meta", "unbacked_bindings", "eager_input_vals"):
        node.meta.pop(key, None)
    drop_stale_entries(node)


def refresh_callers(root: GraphModule) -> list[Node]:
    """Bring the values of all calls in step with the bodies that they call, after bodies were edited.

    A nested graph does not know who calls it, so edits inside stop at its output; this goes on from there, from the
    innermost graphs to ``root``.

    Returns:
        The nodes whose recorded value changed.
    """
    changed: list[Node] = []
    for graph_module in reversed(list(nested_graph_modules(root))):
        changed += refresh_values(_calls_of_bodies(graph_module))
    return changed


def _calls_of_bodies(graph_module: GraphModule) -> list[Node]:
    calls: dict[Node, None] = {}
    for node in graph_module.graph.nodes:
        if node.op in ("call_module", "get_attr") and isinstance(_attribute(node), GraphModule):
            calls.update(dict.fromkeys(node.users if node.op == "get_attr" else [node]))
    return [node for node in calls if has_value(node)]
