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

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Interpreter, Node

from fxpasses.checks.evaluation import flat_inputs
from fxpasses.checks.outputs import same_outputs
from fxpasses.effects import is_impure
from fxpasses.errors import FxPassesError, InputError
from fxpasses.instruments import BisectLimit
from fxpasses.instruments.events import Instrument, PassEvent, RewriteLimit, observe
from fxpasses.journal.comparing import clone_sharing_tensors, graph_diff, graph_text
from fxpasses.pass_base.applying import call_alone, unpack
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

    def __str__(self) -> str:
        change = "" if self.after is None else graph_diff(graph_text(self.before), graph_text(self.after))
        return f"pass '{self.name}' (position {self.position}, step {self.step}): {self.problem}\n{change}"

    def reduce(self, *, max_trials: int = 1000) -> ReducedGraph:
        """The smallest graph on which this pass goes wrong; see :func:`reduce_graph`."""
        return reduce_graph(self.subject, self.args, goes_wrong(self.pass_), self.kwargs, max_trials=max_trials)


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
    is wrong too.

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
        InputError: The module is wrong before the first pass already.
    """
    manager = pipeline if isinstance(pipeline, PassGroup) else PassManager(_listed(pipeline))
    trial = _Trial(manager, module, tuple(args), dict(kwargs or {}), check, tolerances)
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
    trial = _Trial(manager, module, tuple(args), dict(kwargs or {}), check, tolerances)

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

    First the output becomes a single node, the earliest that is bad; then nodes become inputs that hold the values
    these nodes gave, in ever smaller groups. This is delta debugging: ddmin of Zeller and Hildebrandt, "Simplifying and
    isolating failure-inducing input", 2002; O(n²) trials at worst, about O(k log n) if k nodes matter.

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
    return _Reducer(module, tuple(args), dict(kwargs or {}), is_bad, max_trials).reduce()


def goes_wrong(
    pass_: Any, *, tolerances: Mapping[torch.dtype, float] | float | None = None
) -> Callable[[GraphModule, Sequence[Any]], bool]:
    """The predicate that a pass changes what a graph computes, or raises on it; for :func:`reduce_graph`."""

    def is_bad(module: GraphModule, args: Sequence[Any]) -> bool:
        after = clone_sharing_tensors(module)
        try:
            result = call_alone(pass_, after)
        except FxPassesError:
            return True
        try:
            same_outputs(tuple(args), tolerances=tolerances, nodes=False)(module, result.graph_module)
        except FxPassesError:
            return True
        return False

    return is_bad


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
        subject = _clone(self.module)
        gate, last = BisectLimit(limit), _Last()
        try:
            with observe(gate, last):
                result = self.manager(subject)
        except FxPassesError as error:
            return _Verdict(len(gate.ran), last.event, str(error), None)
        return _Verdict(len(gate.ran), last.event, self._problem(result), result)

    def _problem(self, result: Any) -> str | None:
        module, program = unpack(result)
        after = module if program is None else program
        try:
            if self.check is None:
                same_outputs(self.args, self.kwargs, self.tolerances, nodes=True)(self.module, after)
            elif self.check(after) is False:
                return "the check says no"
        except Exception as error:  # a check may raise anything, and so may a graph that is wrong
            return str(error) or type(error).__name__
        return None


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
        self.given[n] = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), result)
        return result


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
        with torch.no_grad(), seeded():
            interpreter.run(*flat_inputs(module, args, kwargs), enable_io_processing=False)
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
        """The earliest single node that is bad by itself, searched from the front in halving steps."""
        candidates = self._needed(kept, outputs)
        stride = max(1, len(candidates) // 2)
        best: list[Node] = outputs
        end = len(candidates)
        while stride >= 1:
            for index in range(stride - 1, end, stride):
                if self._bad(candidates[: index + 1], [candidates[index]]):
                    best, end = [candidates[index]], index
                    break
            stride //= 2
        if len(best) > 1:
            best = next(([one] for one in best if self._bad(kept, [one])), best)
        return best

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
