"""The class to subclass: its hooks, and what they do when nobody overrides them."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule

from fxpasses.arguments import map_arguments_by_schema
from fxpasses.export_pass.hooks import BODY_HOOKS, HOOKS
from fxpasses.export_pass.proxy_values import (
    Argument,
    ExportPassBaseError,
    Fn,
    NodeMetadata,
    ProxyValue,
)
from fxpasses.export_pass.replay import Baseline, ReplayTracer, Run, run_of
from fxpasses.guards import GUARDS
from fxpasses.metadata import current_pass, running_pass, value_of
from fxpasses.outlining.owning import own_bodies
from fxpasses.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, PassBase, PassResult

__all__ = [
    "ExportPass",
    "ExportedProgramPassBase",
    "ExportedProgramPassResult",
    "PassResult",
    "map_args",
]

map_args = map_arguments_by_schema
"""The upstream name of :func:`fxpasses.arguments.map_arguments_by_schema`."""

_BASELINES: ContextVar[tuple[tuple[Any, Baseline], ...]] = ContextVar("fxpasses_baselines", default=())


def _symbolic_inputs(graph_module: GraphModule) -> list[tuple[str | None, ...]]:
    """For each input, its sizes as expressions where they are symbolic; of a symbolic number, the number."""
    found: list[tuple[str | None, ...]] = []
    for node in graph_module.graph.find_nodes(op="placeholder"):
        value = value_of(node)
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
        found.append(tuple(str(size) if isinstance(size, symbolic) else None for size in sizes))
    return found


def _check_symbolic_inputs(before: list[tuple[str | None, ...]], graph_module: GraphModule) -> None:
    after = _symbolic_inputs(graph_module)
    if len(after) != len(before):  # the pass adds or drops inputs, so positions tell nothing
        return
    for position, (old, new) in enumerate(zip(before, after, strict=True)):
        if any(old) and old != new:
            raise ExportPassBaseError(
                f"Input at position {position} did not preserve symbolic metadata: its sizes were {old} and are {new} "
                "(None is a fixed size); give it a value with the same symbols, or let "
                "should_preserve_symbolic_input_metadata() return False"
            )


class _VisitNested:
    """Who gives a pass the graphs inside: the walk itself, through ``call_cond`` and its like, or the framework.

    The walk does, wherever there are hooks. A subclass that overrides ``call`` and no hook edits graphs by hand, so the
    framework hands them over one by one, as to any other pass. A class that says ``visit_nested = ...`` itself has its
    way.
    """

    def __get__(self, instance: Any, owner: type[ExportPass]) -> bool:
        return _edits_by_hand(owner) and not _has_hooks(owner)


class _AfterEdits(PassResult):
    """What a walk has changed, after an override of ``call`` may have edited by hand: only a change is sure."""

    is_vague = True


class ExportPass(PassBase):
    """Rebuild a graph op by op, without rebuilding what stays.

    Override what you want to be asked about:

    =============================================  ===============================================================
    ``call_operator(op, args, kwargs, meta)``      calls of operators and functions
    ``call_sym(target, args, meta)``               arithmetic on sizes and other numbers
    ``call_getitem(value, key, meta)``             one element of a tuple
    ``call_cond``, ``call_while``, ``call_map``,   control flow; the graphs inside go through ``call_submodule``
    ``call_scan``, ``call_higher_order``
    ``call_delegate(module, args, ...)``           a lowered part, which is opaque
    ``call_module``, ``call_method``               as ``symbolic_trace`` writes them
    ``placeholder(name, arg, meta)``               an input
    ``get_attr(target, meta)``, ``on_attr(attr)``  a parameter, buffer or constant
    ``output(results, meta)``                      the end
    =============================================  ===============================================================

    Hooks see ``ProxyValue`` objects in place of nodes. Nodes made by a hook get their value, where they come from, and
    the entries of ``meta``; what loses its last user through the rewrite is removed unless it has an effect.

    A subclass may also override ``call``, edit the graph by hand and return ``super().call(graph_module)``: the values
    of what was edited, and of what depends on it, are then brought up to date.

    >>> import torch
    >>> class UseRelu(ExportPass):
    ...     def call_operator(self, op, args, kwargs, meta):
    ...         if op == torch.ops.aten.relu_.default:
    ...             op = torch.ops.aten.relu.default
    ...         return super().call_operator(op, args, kwargs, meta)
    >>> class Model(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.relu_(x + 1)
    >>> module = torch.export.export(Model(), (torch.ones(2),)).graph_module
    >>> UseRelu()(module).modified, UseRelu()(module).modified
    (True, False)
    """

    visit_nested = _VisitNested()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls).get("call")
        if own is not None and not hasattr(own, "_takes_baseline"):
            _watch_edits(cls, own)

    # --- what a run offers --------------------------------------------------------------------------------------

    @property
    def tracer(self) -> ReplayTracer:
        """Makes nodes beside the visited one; for subclasses that need a node without a hook."""
        return ReplayTracer(run_of(self).walk)

    @property
    def fake_tensor_mode(self) -> FakeTensorMode | None:
        """The one mode that the program's fake values live in; None while the pass is not running."""
        try:
            return run_of(self).mode
        except ExportPassBaseError:
            return None

    @property
    def node_debug_str(self) -> str | None:
        """The visited node as text, for messages."""
        return run_of(self).walk.node.format_node()

    # --- running ------------------------------------------------------------------------------------------------

    def call(self, graph_module: GraphModule) -> PassResult:
        """Walk the graph and the graphs inside it.

        Returns:
            The module that was given, edited in place, and whether it was.

        Raises:
            ExportPassBaseError: A hook gave something that cannot stand in a graph.
            FakeValueError: A new node's arguments do not fit its operator.
        """
        own_bodies(graph_module)
        by_hand = type(self).call is not ExportPass.call
        run = Run(self, graph_module, all_stale=by_hand, baseline=_baseline_of(self))
        name = contextlib.nullcontext() if current_pass() else running_pass(type(self).__name__)
        symbolic = _symbolic_inputs(graph_module) if self.should_preserve_symbolic_input_metadata() else []
        with name, run.active():
            result = self.call_submodule(graph_module, tuple(self.inputs(graph_module)))
        _check_symbolic_inputs(symbolic, result.graph_module)
        return (_AfterEdits if by_hand else PassResult)(result.graph_module, result.modified)

    def should_preserve_symbolic_input_metadata(self) -> bool:
        """Whether an input with a symbolic size that becomes a fixed one is an error; a subclass may say no."""
        return True

    def call_submodule(self, graph_module: GraphModule, inputs: tuple[Argument, ...]) -> PassResult:
        """Walk one graph: the outermost, the body of a control-flow op, or a partition.

        A graph that several ops share is walked once.

        Args:
            graph_module: The graph.
            inputs: The values it is called with, one for each placeholder.
        """
        run = run_of(self)
        if run.walks and not self.walks_nested:
            return PassResult(graph_module, False)
        return PassResult(graph_module, run.visit(graph_module, inputs, self._asked_hooks()))

    @property
    def walks_nested(self) -> bool:
        """Whether the walk goes into the graphs inside by itself."""
        return not self.visit_nested and not _says_visit_nested(type(self))

    def _asked_hooks(self) -> frozenset[str]:
        """The hooks that are overridden, on the class or the instance, and those that lead to nested graphs."""
        asked = _overridden(type(self))
        if own := [name for name in vars(self) if name in _HOOK_NAMES]:
            asked = asked.union("get_attr" if name == "on_attr" else name for name in own)
        return asked | BODY_HOOKS if self.walks_nested else asked

    def inputs(self, graph_module: GraphModule) -> list[Argument]:
        """The values the graph is called with: ``graph_module.meta["args"]`` if it is there, else what is recorded."""
        if (args := graph_module.meta.get("args")) is not None:
            return list(args)
        return [value_of(node) for node in graph_module.graph.find_nodes(op="placeholder")]

    # --- hooks --------------------------------------------------------------------------------------------------

    def placeholder(self, name: str, arg: Argument, meta: NodeMetadata) -> ProxyValue:
        """An input; another ``arg`` than the one given becomes its value."""
        return run_of(self).walk.emit_placeholder(name, arg, meta)

    def get_attr(self, target: str, meta: NodeMetadata) -> Argument:
        """A parameter, buffer or constant, by its dotted name; a graph module for the body of a control-flow op."""
        walk = run_of(self).walk
        found = walk.emit("get_attr", target, (), {}, meta)
        if isinstance(found, ProxyValue):
            self.on_attr(found)
        return found

    def on_attr(self, attr: ProxyValue) -> None:
        """Look at a parameter, buffer or constant; ``attr.data`` is the tensor itself."""

    def call_operator(
        self, op: Any, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], meta: NodeMetadata
    ) -> ProxyValue:
        """A call of an operator, or of a function."""
        return self._fx("call_function", op, args, kwargs, meta)

    def call_sym(self, target: Fn, args: tuple[Argument, ...], meta: NodeMetadata) -> ProxyValue:
        """Arithmetic on sizes and other numbers."""
        return self._fx("call_function", target, args, {}, meta)

    def call_getitem(self, value: Argument, key: Argument, meta: NodeMetadata) -> Argument:
        """One element of a tuple; of a tuple that a hook returned, the element itself."""
        if isinstance(value, list | tuple) and isinstance(key, int):
            return value[key]
        return self._fx("call_function", operator.getitem, (value, key), {}, meta)

    def call_method(
        self, target: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], meta: NodeMetadata
    ) -> ProxyValue:
        """A method of the first argument."""
        return self._fx("call_method", target, args, kwargs, meta)

    def call_module(
        self, target: str, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], meta: NodeMetadata
    ) -> ProxyValue:
        """A module; one that is a graph is walked first."""
        module = run_of(self).walk.graph_module.get_submodule(target)
        if isinstance(module, GraphModule) and target != GUARDS:
            self.call_submodule(module, _flat_inputs(module, args, kwargs))
        return self._fx("call_module", target, args, kwargs, meta)

    def call_cond(
        self,
        pred: Argument,
        true_fn: GraphModule,
        false_fn: GraphModule,
        inputs: Sequence[Argument],
        meta: NodeMetadata,
    ) -> ProxyValue:
        """``torch.cond``."""
        taken = self.call_submodule(true_fn, tuple(inputs)).graph_module
        other = self.call_submodule(false_fn, tuple(inputs)).graph_module
        return self._fx("call_function", torch.ops.higher_order.cond, (pred, taken, other, list(inputs)), {}, meta)

    def call_while(
        self,
        cond_fn: GraphModule,
        body_fn: GraphModule,
        carried_inputs: Sequence[Argument],
        additional_inputs: Sequence[Argument],
        meta: NodeMetadata,
    ) -> ProxyValue:
        """``torch.while_loop``."""
        inputs = (*carried_inputs, *additional_inputs)
        condition = self.call_submodule(cond_fn, inputs).graph_module
        body = self.call_submodule(body_fn, inputs).graph_module
        args = (condition, body, carried_inputs, additional_inputs)
        return self._fx("call_function", torch.ops.higher_order.while_loop, args, {}, meta)

    def call_map(
        self, f: GraphModule, mapped_args: Sequence[Argument], operands: Sequence[Argument], meta: NodeMetadata
    ) -> ProxyValue:
        """``map``; its body sees one row of each mapped argument."""
        body = self.call_submodule(f, (*self._rows(f, 0, mapped_args), *operands)).graph_module
        return self._fx("call_function", torch.ops.higher_order.map_impl, (body, mapped_args, operands), {}, meta)

    def call_scan(
        self,
        combine_fn: GraphModule,
        init: Sequence[Argument],
        xs: Sequence[Argument],
        additional_inputs: Sequence[Argument],
        meta: NodeMetadata,
    ) -> ProxyValue:
        """``scan``; its body sees the carried values, then one row of each ``xs``."""
        rows = self._rows(combine_fn, len(init), xs)
        body = self.call_submodule(combine_fn, (*init, *rows, *additional_inputs)).graph_module
        return self._fx("call_function", torch.ops.higher_order.scan, (body, init, xs, additional_inputs), {}, meta)

    def call_delegate(
        self,
        lowered_module: torch.nn.Module,
        args: tuple[Argument, ...],
        kwargs: Mapping[str, Argument],
        meta: NodeMetadata,
    ) -> ProxyValue:
        """A lowered part: nothing is known of its inside, and nothing in it is visited."""
        target = run_of(self).walk.node.target
        return self._fx("call_function", target, (lowered_module, *args), kwargs, meta)

    def call_higher_order(
        self, op: Any, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], meta: NodeMetadata
    ) -> ProxyValue:
        """Any other higher-order operator; the graphs among its arguments are walked with their recorded inputs."""
        for module in (*args, *kwargs.values()):
            if isinstance(module, GraphModule):
                self.call_submodule(module, _recorded_inputs(module))
        return self._fx("call_function", op, args, kwargs, meta)

    def output(self, results: Argument, meta: NodeMetadata) -> ProxyValue:
        """The end of the graph, with everything it gives back."""
        return self._fx("output", "output", (results,), {}, meta)

    def _fx(
        self, kind: str, target: Any, args: tuple[Argument, ...], kwargs: Mapping[str, Argument], meta: NodeMetadata
    ) -> ProxyValue:
        """Keep the visited node if this is the very call it makes; make a node otherwise."""
        return run_of(self).walk.emit(kind, target, args, kwargs, meta)

    def _rows(self, body: GraphModule, first: int, stacked: Sequence[Argument]) -> list[Argument]:
        """What a body sees of values that it gets row by row: what is recorded, unless they have changed."""
        walk = run_of(self).walk
        recorded = _recorded_inputs(body)[first : first + len(stacked)]
        return [
            value.data[0] if walk.is_changed(value) and isinstance(value.data, FakeTensor) else row
            for value, row in zip(stacked, recorded, strict=True)
        ]


_HOOK_NAMES = frozenset({*HOOKS, "on_attr"})


@functools.cache
def _overridden(cls: type[ExportPass]) -> frozenset[str]:
    found = {name for name in HOOKS if getattr(cls, name) is not getattr(ExportPass, name)}
    return frozenset(found if cls.on_attr is ExportPass.on_attr else found | {"get_attr"})


def _has_hooks(cls: type[ExportPass]) -> bool:
    return bool(_overridden(cls)) or cls.call_submodule is not ExportPass.call_submodule


def _edits_by_hand(cls: type[ExportPass]) -> bool:
    return cls.call is not ExportPass.call


@functools.cache
def _says_visit_nested(cls: type[ExportPass]) -> bool:
    return any("visit_nested" in vars(base) for base in cls.__mro__[: cls.__mro__.index(ExportPass)])


def _recorded_inputs(body: GraphModule) -> tuple[Argument, ...]:
    return tuple(value_of(node) for node in body.graph.find_nodes(op="placeholder"))


def _flat_inputs(
    module: GraphModule, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]
) -> tuple[Argument, ...]:
    """The values of a submodule's placeholders; what is recorded where a calling convention stands in between."""
    placeholders = module.graph.find_nodes(op="placeholder")
    if kwargs or len(args) != len(placeholders):
        return _recorded_inputs(module)
    return tuple(
        arg if isinstance(arg, ProxyValue) else value_of(node) for arg, node in zip(args, placeholders, strict=True)
    )


# --- subclasses that edit by hand and then call super().call ----------------------------------------------------------


def _watch_edits(cls: type[ExportPass], own: Callable[..., Any]) -> None:
    """Remember what the graph looked like before an overridden ``call``, so that its edits can be told.

    The function itself stays an attribute of the class under another name: attrs rebuilds classes with slots and mends
    ``super()`` in the functions it finds there.
    """
    name = f"_call_of_{cls.__module__.replace('.', '_')}_{cls.__qualname__.replace('.', '_')}"

    @functools.wraps(own)
    def call(self: ExportPass, graph_module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        with _remembering(self, graph_module):
            return getattr(self, name)(graph_module, *args, **kwargs)

    call._takes_baseline = True  # type: ignore[attr-defined]  # marks it for classes that attrs rebuilds
    setattr(cls, name, own)
    cls.call = call  # type: ignore[method-assign]


@contextlib.contextmanager
def _remembering(owner: ExportPass, graph_module: GraphModule) -> Iterator[None]:
    known = _BASELINES.get()
    if any(each is owner for each, _ in known):
        yield
        return
    token = _BASELINES.set((*known, (owner, Baseline(graph_module))))
    try:
        yield
    finally:
        _BASELINES.reset(token)


def _baseline_of(owner: ExportPass) -> Baseline | None:
    return next((baseline for each, baseline in reversed(_BASELINES.get()) if each is owner), None)
