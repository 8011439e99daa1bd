"""Find the pass that goes wrong, the rewrite in it, and the smallest graph on which it does.

>>> import torch
>>> from torch.fx import symbolic_trace
>>> def harmless(graph_module): ...
>>> def wrong(graph_module):
...     for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
...         node.target = torch.sigmoid
>>> class Model(torch.nn.Module):
...     def forward(self, x):
...         return torch.relu(x) + 1
>>> found = find_guilty_pass([harmless, wrong, harmless], symbolic_trace(Model()), (torch.ones(2),))
>>> found.name, found.number
('wrong', 1)
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from fxpasses.checks.evaluation import flat_inputs, tensors_kept
from fxpasses.checks.outputs import same_outputs
from fxpasses.effects import is_impure
from fxpasses.errors import FxPassesError, InputError, also_as
from fxpasses.instruments import BisectLimit
from fxpasses.instruments.events import Instrument, PassEvent, RewriteLimit, observe
from fxpasses.journal.comparing import clone_sharing_tensors, graph_diff, graph_text
from fxpasses.pass_base.applying import call_alone, is_program_pass, unpack
from fxpasses.pass_base.naming import pass_name
from fxpasses.pass_manager import PassManager
from fxpasses.pass_manager.groups import PassGroup
from fxpasses.programs import with_graph_module
from fxpasses.seeding import seeded

logger = logging.getLogger(__name__)

__all__ = [
    "GuiltyPass",
    "GuiltyRewrite",
    "ReducedGraph",
    "find_guilty_pass",
    "find_guilty_rewrite",
    "goes_wrong",
    "reduce_graph",
]


@attrs.frozen(eq=False)
class GuiltyPass:
    """The pass that goes wrong first.

    Attributes:
        name: What it is called.
        position: Where it stands, such as ``"2.0"``.
        step: Which round of its loop it was.
        number: How many passes ran before it, loops counted; ``BisectLimit(number + 1)`` stops right after it.
        pass_: The pass.
        problem: What is wrong afterwards, in words.
        before: The graph it was given.
        after: The graph it left; None if it raised.
        args: The inputs that show it.
        kwargs: The keyword inputs that show it.
        subject: ``before``, or the program it belongs to.
        is_bad: Tells whether a graph shows the same problem, for :func:`reduce_graph`.
    """

    name: str
    position: str
    step: int
    number: int
    pass_: Any
    problem: str
    before: GraphModule
    after: GraphModule | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    subject: GraphModule | ExportedProgram
    is_bad: Callable[[GraphModule, Sequence[Any]], bool]

    def __str__(self) -> str:
        change = "" if self.after is None else graph_diff(graph_text(self.before), graph_text(self.after))
        return f"pass '{self.name}' (position {self.position}, step {self.step}): {self.problem}\n{change}"

    def reduce(self, *, max_trials: int = 1000) -> ReducedGraph:
        """The smallest graph on which this pass goes wrong in this way; see :func:`reduce_graph`.

        A pass that gave other outputs does so again, one that raised raises the same type of error, and where a check
        judged, it judges.

        Raises:
            InputError: The pass works on whole programs, and a part of one is none.
        """
        _refuse_program_pass(self.pass_)
        return reduce_graph(self.subject, self.args, self.is_bad, self.kwargs, max_trials=max_trials)


@attrs.frozen(eq=False)
class ReducedGraph:
    """A small graph that shows a problem.

    Attributes:
        graph_module: The graph; what was cut away are inputs now.
        args: Its inputs, one for each placeholder.
        nodes_before: How many nodes computed something at first.
        nodes_after: How many do now.
        trials: How often the predicate was asked.
    """

    graph_module: GraphModule
    args: tuple[Any, ...]
    nodes_before: int
    nodes_after: int
    trials: int

    def __str__(self) -> str:
        return (
            f"{self.nodes_after} of {self.nodes_before} nodes show it:\n{graph_text(self.graph_module)}\n"
            f"inputs: {', '.join(map(_shown, self.args)) or 'none'}"
        )


@attrs.frozen(eq=False)
class GuiltyRewrite:
    """The first rewrite after which the graph is wrong.

    Attributes:
        number: How many rewrites came before it; ``RewriteLimit(number + 1)`` stops right after it.
        where: The node it was anchored at, and the pass.
        problem: What is wrong afterwards, in words.
        before: The graph without it (and without those that follow).
        after: The graph with it; None if it raised.
    """

    number: int
    where: str
    problem: str
    before: GraphModule
    after: GraphModule | None

    def __str__(self) -> str:
        change = "" if self.after is None else graph_diff(graph_text(self.before), graph_text(self.after))
        return f"rewrite {self.number} at {self.where}: {self.problem}\n{change}"


def find_guilty_pass(
    pipeline: Any,
    module: GraphModule | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Callable[[Any], Any] | None = None,
    tolerances: Mapping[torch.dtype, float] | float | None = None,
) -> GuiltyPass | None:
    """Bisect a pipeline for the first pass after which the graph is wrong.

    The pipeline runs on copies that share the model's tensors, each time stopped after another number of passes, as
    with LLVM's ``-opt-bisect-limit``: about log2(n) runs for n passes, the rounds of loops counted. A pass that raises
    is wrong too. What passes write into the tensors is put back after each run, and is in the graphs that are returned.

    Args:
        pipeline: A manager, a group, a pass, or a list of them.
        module: What it runs on; left as it is.
        args: Inputs that show the problem; the outputs must be those of ``module``.
        kwargs: Keyword inputs.
        check: What must hold instead of equal outputs: raises, or returns False, for a wrong graph.
        tolerances: How far values may be apart, as for :class:`~fxpasses.checks.same_outputs`.

    Returns:
        The pass, or None if nothing goes wrong.

    Raises:
        InputError: The module is wrong before the first pass already, or ``args`` is no sequence of inputs.
    """
    manager = pipeline if isinstance(pipeline, PassGroup) else PassManager(_listed(pipeline))
    trial = _Trial(manager, module, _inputs(args), dict(kwargs or {}), check, tolerances)
    everything = trial.run(-1)
    if everything.problem is None:
        return None
    if (already := trial.run(0).problem) is not None:
        raise InputError(f"the graph is wrong before the first pass already: {already}")
    good, bad = 0, everything.count
    verdict = everything
    while bad - good > 1:
        middle = (good + bad) // 2
        tried = trial.run(middle)
        if tried.problem is None:
            good = middle
        else:
            bad, verdict = middle, tried
    if verdict.count != bad or verdict is everything:
        verdict = trial.run(bad)
    before = trial.run(good)
    event = verdict.last
    if event is None:  # wrong after zero passes was excluded, so only a pipeline that changes its mind comes here
        raise InputError(f"the pipeline does not go wrong in the same way twice: {everything.problem}")
    return GuiltyPass(
        event.name,
        event.label,
        event.step,
        good,
        event.pass_,
        verdict.problem or everything.problem,
        unpack(before.result)[0],
        None if verdict.result is None else unpack(verdict.result)[0],
        trial.args,
        trial.kwargs,
        unpack(before.result)[1] or unpack(before.result)[0],
        _Problem(event.pass_, trial, verdict.error),
    )


def find_guilty_rewrite(
    pipeline: Any,
    module: GraphModule | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Callable[[Any], Any] | None = None,
    tolerances: Mapping[torch.dtype, float] | float | None = None,
) -> GuiltyRewrite | None:
    """Bisect the rewrites of a pass (or of a whole pipeline) for the first that makes the graph wrong.

    ``replace_pattern`` and rule sets are counted by themselves; a pass of your own takes part by asking
    :func:`~fxpasses.instruments.events.rewrite_allowed` before each rewrite. Takes what :func:`find_guilty_pass` takes.

    Returns:
        The rewrite, or None if nothing goes wrong, or goes wrong without any rewrite that is counted.
    """
    manager = pipeline if isinstance(pipeline, PassGroup) else PassManager(_listed(pipeline))
    trial = _Trial(manager, module, _inputs(args), dict(kwargs or {}), check, tolerances)

    def run(limit: int) -> tuple[_Verdict, RewriteLimit]:
        with RewriteLimit(limit) as gate:
            return trial.run(-1), gate

    everything, gate = run(-1)
    if everything.problem is None or run(0)[0].problem is not None:
        return None
    good, bad = 0, len(gate.allowed)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if run(middle)[0].problem is not None else (middle, bad)
    verdict, gate = run(bad)
    before, _ = run(good)
    after = None if verdict.result is None else unpack(verdict.result)[0]
    problem = verdict.problem or everything.problem
    return GuiltyRewrite(good, gate.allowed[-1], problem, unpack(before.result)[0], after)


def reduce_graph(
    module: GraphModule | ExportedProgram,
    args: Sequence[Any],
    is_bad: Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_trials: int = 1000,
) -> ReducedGraph:
    """Cut a graph down as long as ``is_bad`` stays true.

    First the output becomes a single node that is bad, but whose inputs are not; then nodes become inputs that hold the
    values these nodes gave, in ever smaller groups. This is delta debugging: ddmin of Zeller and Hildebrandt,
    "Simplifying and isolating failure-inducing input", 2002; O(n²) trials at worst, about O(k log n) if k nodes matter.

    Args:
        module: The graph; left as it is.
        args: Its inputs.
        is_bad: Takes ``(graph_module, args)``, or the module alone, and tells whether the problem is there. It may
            raise: then it is taken not to be there. :func:`goes_wrong` makes one from a pass.
        kwargs: Keyword inputs.
        max_trials: How often to ask at most; what is found by then is returned.

    Raises:
        InputError: The problem is not there to begin with.
    """
    return _Reducer(module, _inputs(args), dict(kwargs or {}), is_bad, max_trials).reduce()


def goes_wrong(
    pass_: Any,
    *,
    tolerances: Mapping[torch.dtype, float] | float | None = None,
    raising: bool | None = None,
) -> Callable[[GraphModule, Sequence[Any]], bool]:
    """The predicate that a pass changes what a graph computes, or raises on it; for :func:`reduce_graph`.

    Args:
        pass_: The pass.
        tolerances: How far values may be apart, as for :class:`~fxpasses.checks.same_outputs`.
        raising: False to ask only for other outputs, for a pass whose ``requires`` refuses most parts of a graph; True
            to ask only whether it raises.

    Raises:
        InputError: The pass works on whole programs, and what a graph is cut down to is none.
    """
    _refuse_program_pass(pass_)

    def is_bad(module: GraphModule, args: Sequence[Any]) -> bool:
        with tensors_kept(_tensors(module)):
            error, differs = _outcome(pass_, module, same_outputs(tuple(args), tolerances=tolerances, nodes=False))
        return (error is not None and raising is not False) or (differs and raising is not True)

    return is_bad


def _outcome(pass_: Any, module: GraphModule, check: same_outputs) -> tuple[FxPassesError | None, bool]:
    """What a pass raises on a copy of a module, and whether the copy gives other outputs afterwards."""
    compare = check.begin(module)  # before the pass, which may write into what the copy shares with the module
    try:
        result = call_alone(pass_, clone_sharing_tensors(module))
    except FxPassesError as error:
        return error, False
    try:
        compare(result.graph_module)
    except FxPassesError:
        return None, True
    return None, False


# --- bisecting ------------------------------------------------------------------------------------------------------


class _Last(Instrument):
    """Remembers the last pass that was started."""

    def __init__(self) -> None:
        self.event: PassEvent | None = None

    def before(self, event: PassEvent) -> None:
        if not event.is_group:
            self.event = event


@attrs.frozen(eq=False)
class _Verdict:
    count: int
    last: PassEvent | None
    problem: str | None
    result: Any
    error: FxPassesError | None = None


@attrs.frozen(eq=False)
class _Trial:
    manager: PassGroup
    module: GraphModule | ExportedProgram
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    check: Callable[[Any], Any] | None
    tolerances: Mapping[torch.dtype, float] | float | None

    def run(self, limit: int) -> _Verdict:
        """Run the first ``limit`` passes on a copy, and look at what comes out."""
        gate, last = BisectLimit(limit), _Last()
        with tensors_kept(_tensors(self.module)) as changed:
            judge = self._judge()
            try:
                with observe(gate, last):
                    result = self.manager(_clone(self.module))
            except FxPassesError as error:
                return _Verdict(len(gate.ran), last.event, str(error), None, error)
            problem = judge(result)
            shown: Any = result
            if changed():  # the graphs that are shown keep what was written
                module, program = unpack(result)
                shown = copy.deepcopy(module if program is None else program)
        return _Verdict(len(gate.ran), last.event, problem, shown)

    def _judge(self) -> Callable[[Any], str | None]:
        """What looks at a result; the outputs of the module are taken now, before passes write into its tensors."""
        compare = self.check
        if compare is None:
            try:
                compare = same_outputs(self.args, self.kwargs, self.tolerances, nodes=True).begin(self.module)
            except Exception as error:  # a module that cannot run is wrong in every trial, before the first pass too
                problem = str(error) or type(error).__name__
                return lambda result: problem

        def judge(result: Any) -> str | None:
            module, program = unpack(result)
            try:
                if compare(module if program is None else program) is False:
                    return "the check says no"
            except Exception as error:  # a check may raise anything, and so may a graph that is wrong
                return str(error) or type(error).__name__
            return None

        return judge


@attrs.frozen(eq=False)
class _Problem:
    """The predicate that a pass goes wrong on another graph as it did in a trial."""

    pass_: Any
    trial: _Trial
    error: FxPassesError | None

    def __call__(self, module: GraphModule, args: Sequence[Any]) -> bool:
        with tensors_kept(_tensors(module)):
            if self.error is None and self.trial.check is not None:
                return self._is_refused(module, self.trial.check)
            check = same_outputs(tuple(args), tolerances=self.trial.tolerances, nodes=False)
            error, differs = _outcome(self.pass_, module, check)
        if self.error is None:
            return differs
        return error is not None and type(_cause(error)) is type(_cause(self.error))

    def _is_refused(self, module: GraphModule, check: Callable[[Any], Any]) -> bool:
        """Does the check take the graph before the pass, and not after it?"""
        if not _passes(check, module):
            return False
        try:
            result = call_alone(self.pass_, clone_sharing_tensors(module))
        except FxPassesError:
            return False
        return not _passes(check, result.graph_module)


def _passes(check: Callable[[Any], Any], module: GraphModule) -> bool:
    try:
        return check(module) is not False
    except Exception as error:  # a check may raise anything
        logger.debug("refused: %s", error)
        return False


def _cause(error: BaseException) -> BaseException:
    """What a pass itself raised."""
    return error if error.__cause__ is None else _cause(error.__cause__)


def _refuse_program_pass(pass_: Any) -> None:
    if is_program_pass(pass_):
        raise InputError(
            f"{pass_name(pass_)} works on whole programs, and what a graph is cut down to is none; reduce with a pass "
            "on graph modules that does the same"
        )


def _tensors(module: GraphModule | ExportedProgram) -> Iterator[torch.Tensor]:
    """All the tensors of a module or program that passes may write into."""
    if isinstance(module, ExportedProgram):
        yield from (each for each in module.state_dict.values() if isinstance(each, torch.Tensor))
        yield from (each for each in module.constants.values() if isinstance(each, torch.Tensor))
    root = module.graph_module if isinstance(module, ExportedProgram) else module
    for inner in root.modules():
        for group in (inner._parameters, inner._buffers, inner.__dict__):
            yield from (each for each in group.values() if isinstance(each, torch.Tensor))


def _inputs(args: Any) -> tuple[Any, ...]:
    if not isinstance(args, Sequence):  # a tensor is none
        raise also_as(InputError, TypeError())(
            f"args is a tuple of inputs, not a {type(args).__name__}; write (x,) for a single one"
        )
    return tuple(args)


def _clone(module: GraphModule | ExportedProgram) -> GraphModule | ExportedProgram:
    if isinstance(module, ExportedProgram):
        return with_graph_module(module, clone_sharing_tensors(module.graph_module))
    return clone_sharing_tensors(module)


def _listed(pipeline: Any) -> Iterable[Any]:
    return pipeline if isinstance(pipeline, (list, tuple)) else [pipeline]


# --- reducing -------------------------------------------------------------------------------------------------------


class _Values(Interpreter):
    """Keeps what every node gave."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.given: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        self.given[n] = pytree.tree_map_only(torch.Tensor, _copied, result)
        return result


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


class _Reducer:
    """One reduction: a candidate is the nodes that still compute, and those that are given out."""

    def __init__(
        self,
        module: GraphModule | ExportedProgram,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_bad: Any,
        limit: int,
    ) -> None:
        self.source = clone_sharing_tensors(module.graph_module if isinstance(module, ExportedProgram) else module)
        self.is_bad = is_bad
        self.limit = limit
        self.trials = 0
        interpreter = _Values(self.source)
        given = flat_inputs(module, *pytree.tree_map_only(torch.Tensor, _copied, (args, kwargs)))
        with torch.no_grad(), seeded(), tensors_kept(_tensors(module)):
            interpreter.run(*given, enable_io_processing=False)
        self.values = interpreter.given
        self.compute = [node for node in self.source.graph.nodes if node.op.startswith("call_")]
        self.impure = {node for node in self.compute if is_impure(node)}

    def reduce(self) -> ReducedGraph:
        kept = list(self.compute)
        outputs = list(self.source.graph.output_node().all_input_nodes)
        if not self._bad(kept, outputs):
            raise InputError("the problem is not there on the whole graph; is_bad must be true for it")
        outputs = self._fewer_outputs(kept, outputs)
        kept = self._needed(kept, outputs)
        kept = self._fewer_nodes(kept, outputs)
        outputs = self._fewer_outputs(kept, outputs)
        kept = self._needed(kept, outputs)
        module, args = self._build(kept, outputs)
        return ReducedGraph(module, args, len(self.compute), len(kept), self.trials)

    def _fewer_outputs(self, kept: list[Node], outputs: list[Node]) -> list[Node]:
        """A single node that is bad by itself and whose inputs are not: one of the outputs, or what it depends on."""
        inside = set(kept)
        best: Node | None = None
        wanted = self._first_bad(kept, outputs)
        while wanted is not None:
            best = self._halved(kept, wanted)
            wanted = self._first_bad(kept, [one for one in best.all_input_nodes if one in inside])
        return outputs if best is None else [best]

    def _first_bad(self, kept: list[Node], nodes: list[Node]) -> Node | None:
        return next((one for one in nodes if self._bad(kept, [one])), None)

    def _halved(self, kept: list[Node], bad: Node) -> Node:
        """An early bad node among those that ``bad`` depends on; the earliest if what follows a bad one is bad."""
        candidates = self._needed(kept, [bad])
        begin, end = 0, candidates.index(bad) if bad in candidates else 0
        while begin < end:
            middle = (begin + end) // 2
            if self._bad(kept, [candidates[middle]]):
                bad, end = candidates[middle], middle
            else:
                begin = middle + 1
        return bad

    def _fewer_nodes(self, kept: list[Node], outputs: list[Node]) -> list[Node]:
        """Zeller's ddmin over the nodes that still compute."""
        pieces = 2
        while len(kept) > 1 and self.trials < self.limit:
            size = -(-len(kept) // pieces)
            for begin in range(0, len(kept), size):
                rest = kept[:begin] + kept[begin + size :]
                if rest and self._bad(rest, outputs):
                    kept, pieces = self._needed(rest, outputs), max(pieces - 1, 2)
                    break
            else:
                if size == 1:
                    break
                pieces = min(len(kept), pieces * 2)
        return kept

    def _needed(self, kept: list[Node], outputs: list[Node]) -> list[Node]:
        """Those of ``kept`` that the outputs use, or that have effects, in graph order."""
        inside = set(kept)
        wanted = {node for node in [*outputs, *self.impure] if node in inside}
        for node in reversed(kept):
            if node in wanted:
                wanted.update(used for used in node.all_input_nodes if used in inside)
        return [node for node in kept if node in wanted]

    def _bad(self, kept: list[Node], outputs: list[Node]) -> bool:
        if self.trials >= self.limit:
            return False
        self.trials += 1
        try:
            module, args = self._build(self._needed(kept, outputs), outputs)
            return bool(_ask(self.is_bad, module, args))
        except Exception as error:  # a graph that cannot be built, run or asked about does not show the problem
            logger.debug("not a candidate: %s", error)
            return False

    def _build(self, kept: list[Node], outputs: list[Node]) -> tuple[GraphModule, tuple[Any, ...]]:
        """A module that computes ``kept`` and takes everything else as inputs."""
        graph, made, args = Graph(), dict[Node, Node](), list[Any]()
        inside = set(kept)
        used = dict.fromkeys([*outputs, *(one for node in kept for one in node.all_input_nodes)])
        for node in self.source.graph.nodes:
            if node in inside or (node.op == "get_attr" and node in used):
                continue
            if node in used:
                made[node] = graph.placeholder(node.name)
                made[node].meta = dict(node.meta)
                args.append(self.values[node])
        for node in self.source.graph.nodes:
            if node in inside or (node.op == "get_attr" and node in used):
                made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[node] for node in outputs))
        return GraphModule(self.source, graph), tuple(args)


def _ask(is_bad: Callable[..., Any], module: GraphModule, args: tuple[Any, ...]) -> Any:
    takes = [one for one in inspect.signature(is_bad).parameters.values() if one.default is one.empty]
    return is_bad(module, args) if len(takes) > 1 else is_bad(module)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
