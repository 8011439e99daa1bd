"""The classes that passes are made of, and what makes a pass of a function."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Iterable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast, overload

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.errors import PassError, also_as
from fxpasses.pass_base import naming

if TYPE_CHECKING:
    from fxpasses.instruments.records import PassRecord, RunReport
    from fxpasses.pass_manager.properties import Property
else:
    from torch.fx.passes.infra.pass_base import PassResult as _TorchPassResult

__all__ = [
    "ExportedProgramPassBase",
    "ExportedProgramPassResult",
    "FunctionPass",
    "PassBase",
    "PassResult",
    "PassType",
    "as_pass",
    "pass_result_wrapper",
]

if TYPE_CHECKING:

    class PassResult(NamedTuple):
        """What a pass gives back."""

        graph_module: GraphModule
        modified: bool

        @property
        def exported_program(self) -> ExportedProgram | None:
            """The program with a fitting signature, when the pass was given one."""

        @property
        def report(self) -> RunReport | None:
            """The records of a run; None for a single pass."""

        @property
        def records(self) -> tuple[PassRecord, ...]:
            """One record per pass that ran, in order; empty for a single pass."""

        @property
        def warnings(self) -> tuple[str, ...]:
            """What the framework has to say about the run; empty for a single pass."""

else:

    class PassResult(_TorchPassResult):
        """What a pass gives back: the module, and whether it changed.

        It unpacks as a pair, and is one of torch's own results, so torch's and ExecuTorch's managers take it.

        Args:
            graph_module: The module; the one that was given if the pass works in place.
            modified: Whether anything changed. What a pass says here is checked against the graph.

        Attributes:
            exported_program: The program with a fitting signature, when the pass was given an ExportedProgram.
            report: The records of a :class:`~fxpasses.PassManager` run; None for a single pass.
        """

        exported_program = None
        report = None

        @property
        def records(self):
            """One record per pass that ran, in order; empty for a single pass."""
            return () if self.report is None else self.report.records

        @property
        def warnings(self):
            """What the framework has to say about the run, as sentences; empty for a single pass."""
            return () if self.report is None else self.report.warnings


Subject: TypeAlias = GraphModule | ExportedProgram | PassResult


class PassBase(abc.ABC):
    """A transformation of one graph.

    Make a subclass with ``call``, best an :func:`attrs.frozen` one whose fields are the options: then equal options
    make equal passes and ``repr`` is the call that makes it. An ``__init__`` that never calls ``super`` is fine.

    Attributes:
        needs: Properties that must hold before the pass.
        provides: Properties that hold after it.
        destroys: Properties that no longer hold after it.
        target_ops: Ops, functions, method names or module classes the pass looks for; a graph that has none of them is
            skipped at no cost. None (the default) means that it looks at every graph.
        visit_nested: Whether ``call`` is also given the graphs inside: bodies of ``cond``, ``map``, ``scan``,
            ``while_loop``, and partitions. Innermost first, each once. ``requires`` and ``ensures`` see the outer one.

    >>> class Nothing(PassBase):
    ...     def call(self, graph_module):
    ...         return PassResult(graph_module, False)
    >>> Nothing()
    Nothing()
    """

    needs: ClassVar[tuple[Property, ...]] = ()
    provides: ClassVar[tuple[Property, ...]] = ()
    destroys: ClassVar[tuple[Property, ...]] = ()
    target_ops: ClassVar[Iterable[Any] | None] = None
    visit_nested: ClassVar[bool] = True

    def __call__(self, graph_module: Subject) -> PassResult:
        """Run ``requires``, ``call`` and ``ensures``; give the result, with ``modified`` as it really is.

        Args:
            graph_module: A GraphModule, an ExportedProgram, or what another pass returned.

        Returns:
            A :class:`PassResult`; for an ExportedProgram it carries ``exported_program`` too.

        Raises:
            PassError: The pass raised or broke its contract; also catchable as what it raised. The graph is as it was.
        """
        from fxpasses.pass_base.applying import call_alone

        return call_alone(self, graph_module)

    @abc.abstractmethod
    def call(self, graph_module: GraphModule) -> PassResult | GraphModule:
        """Change the graph.

        Args:
            graph_module: The module to work on, in place or not.

        Returns:
            A :class:`PassResult`, or the resulting GraphModule.
        """

    def requires(self, graph_module: GraphModule) -> None:  # noqa: B027 - a hook, empty by default
        """Raise when the pass cannot work on this graph."""

    def ensures(self, graph_module: GraphModule) -> None:  # noqa: B027 - a hook, empty by default
        """Raise when what the pass returned is not what it promises."""

    @property
    def digest(self) -> naming.Digest:
        """A hash of the class and the options, the same in every process; for caches."""
        return naming.digest_of(self)

    @property
    def uuid(self) -> naming.Digest:
        """The digest under the name that Inductor asks for."""
        return self.digest

    def __repr__(self) -> str:
        return naming.spelled(self)


@attrs.frozen(repr=False)
class FunctionPass(PassBase):
    """A function as a pass; None from the function means that it worked in place."""

    function: Callable[..., Any]
    needs: tuple[Property, ...] = attrs.field(default=(), kw_only=True, converter=tuple)  # type: ignore[misc]
    provides: tuple[Property, ...] = attrs.field(default=(), kw_only=True, converter=tuple)  # type: ignore[misc]
    destroys: tuple[Property, ...] = attrs.field(default=(), kw_only=True, converter=tuple)  # type: ignore[misc]
    target_ops: tuple[Any, ...] | None = attrs.field(  # type: ignore[misc]
        default=None, kw_only=True, converter=attrs.converters.optional(tuple)
    )
    visit_nested: bool = attrs.field(default=True, kw_only=True)  # type: ignore[misc]

    @property
    def pass_name(self) -> str:
        """The name of the function."""
        return naming.pass_name(self.function)

    def call(self, graph_module: GraphModule) -> PassResult | GraphModule:
        """Call the function."""
        returned = self.function(graph_module)
        return graph_module if returned is None else cast("PassResult | GraphModule", returned)

    def __repr__(self) -> str:
        return self.pass_name

    def __reduce__(self) -> Any:
        """Pickle a decorated function by its place in its module, as functions are."""
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        if _look_up(module, name) is self:
            return _look_up, (module, name)
        options = {field.name: getattr(self, field.name) for field in attrs.fields(FunctionPass)}
        return _rebuild, (options,)


@overload
def as_pass(function: Callable[..., Any], /) -> FunctionPass: ...
@overload
def as_pass(
    *,
    needs: Iterable[Property] = ...,
    provides: Iterable[Property] = ...,
    destroys: Iterable[Property] = ...,
    target_ops: Iterable[Any] | None = ...,
    visit_nested: bool = ...,
) -> Callable[[Callable[..., Any]], FunctionPass]: ...
def as_pass(function: Callable[..., Any] | None = None, /, **declared: Any) -> Any:
    """Make a function a pass, as a decorator or as a call; what :class:`PassBase` declares can be given.

    >>> @as_pass(target_ops=["relu_"])
    ... def use_relu(graph_module):
    ...     for node in graph_module.graph.find_nodes(op="call_method", target="relu_"):
    ...         node.target = "relu"
    >>> use_relu
    use_relu
    """
    if function is None:
        return lambda decorated: as_pass(decorated) if not declared else FunctionPass(decorated, **declared)
    if isinstance(function, FunctionPass):
        return attrs.evolve(function, **declared)
    if not callable(function):
        raise also_as(PassError, TypeError())(
            f"a pass must be callable, not {type(function).__name__}: {function!r}; give a function or a PassBase",
            reason="not callable",
        )
    return FunctionPass(function, **declared)


def pass_result_wrapper(fn: Callable[..., Any]) -> Callable[..., PassResult]:
    """Make a callable return a :class:`PassResult`: None counts as "changed in place", a module as changed.

    The upstream way to use functions (and passes whose ``call`` returns None) in a list; :func:`as_pass` does the same
    and can also say more. Whether something really changed is established by whoever runs the pass.
    """
    given: Any = fn
    if given is None:
        return cast("Callable[..., PassResult]", None)  # as upstream does
    ours = isinstance(given, PassBase) and type(given).__call__ is PassBase.__call__
    run = _none_is_in_place(given) if ours else fn

    def wrapped(graph_module: Any) -> PassResult:
        returned = run(graph_module)
        if returned is None:
            return PassResult(graph_module, True)
        if isinstance(returned, torch.nn.Module):
            return PassResult(cast("GraphModule", returned), True)
        return cast("PassResult", returned)

    update_wrapper(wrapped, fn, updated=())
    wrapped.__name__ = naming.pass_name(fn)
    return wrapped


@attrs.frozen
class ExportedProgramPassResult:
    """What a pass over a whole ExportedProgram gives back."""

    exported_program: ExportedProgram
    modified: bool
    report: RunReport | None = attrs.field(default=None, kw_only=True, eq=False, repr=False)

    @property
    def graph_module(self) -> GraphModule:
        """The graph of the program."""
        module: GraphModule = self.exported_program.graph_module
        return module


class ExportedProgramPassBase(abc.ABC):
    """A transformation of an ExportedProgram: its graph, its signature and its constants together."""

    needs: ClassVar[tuple[Property, ...]] = ()
    provides: ClassVar[tuple[Property, ...]] = ()
    destroys: ClassVar[tuple[Property, ...]] = ()
    target_ops: ClassVar[Iterable[Any] | None] = None

    def __call__(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Run ``requires``, ``call`` and ``ensures`` (the latter on the result); ``modified`` is as it really is."""
        from fxpasses.pass_base.applying import call_program_pass_alone

        return call_program_pass_alone(self, exported_program)

    @abc.abstractmethod
    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Change the program; may return it, or another one."""

    def requires(self, exported_program: ExportedProgram) -> None:  # noqa: B027 - a hook, empty by default
        """Raise when the pass cannot work on this program."""

    def ensures(self, exported_program: ExportedProgram) -> None:  # noqa: B027 - a hook, empty by default
        """Raise when what the pass returned is not what it promises."""

    @property
    def digest(self) -> naming.Digest:
        """A hash of the class and the options, the same in every process; for caches."""
        return naming.digest_of(self)

    def __repr__(self) -> str:
        return naming.spelled(self)


PassType: TypeAlias = PassBase | ExportedProgramPassBase | Callable[..., Any]


def _none_is_in_place(pass_: PassBase) -> Callable[[Any], Any]:
    def call(graph_module: GraphModule) -> Any:
        pass_.requires(graph_module)
        returned: Any = pass_.call(graph_module)
        after = graph_module if returned is None else getattr(returned, "graph_module", returned)
        pass_.ensures(after)
        return returned

    return call


def _look_up(module: str | None, qualified_name: str) -> Any:
    found: Any = sys.modules.get(module or "")
    for part in qualified_name.split("."):
        found = getattr(found, part, None)
    return found


def _rebuild(options: dict[str, Any]) -> FunctionPass:
    return FunctionPass(**options)
