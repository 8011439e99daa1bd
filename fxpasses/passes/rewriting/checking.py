"""Rules that test themselves: run the pattern against its replacement on generated inputs, and shrink what differs.

The pattern is written out as a graph (alternatives, optional parts and literals chosen at random), the rule is applied
to a copy, and both run on the same inputs: shapes that fit together, dtypes, strides, inputs that share memory, NaN,
infinities, negative zero, empty tensors. Results, their dtypes and shapes, and what became of the inputs must agree.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from fxpasses.errors import PatternError
from fxpasses.outlining.lazy_modules import lazy_graph_module
from fxpasses.passes.rewriting.concretizing import ConcretePattern, concretize
from fxpasses.passes.rewriting.rule_sets import Rule, RuleSet
from fxpasses.passes.rewriting.sampling import Sample, build, random_sample, smaller
from fxpasses.seeding import seeded

__all__ = ["Counterexample", "RuleCheck", "RuleError", "check_rule"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_MAX_SHRINKS = 200


@attrs.frozen(eq=False)
class Counterexample:
    """Inputs on which pattern and replacement differ.

    Args:
        inputs: The tensors, by the names that the pattern gives them.
        literals: The literals of the pattern that were chosen.
        reason: What differs.
        pattern: What the pattern gives; None if it is the inputs that differ afterwards.
        replacement: What the replacement gives, or the error that it raises.
    """

    inputs: Mapping[str, torch.Tensor]
    literals: Mapping[str, Any]
    reason: str
    pattern: Any
    replacement: Any

    def __str__(self) -> str:
        lines = [self.reason]
        lines += [f"  {name} = {_show(tensor)}" for name, tensor in self.inputs.items()]
        lines += [f"  {name} = {value!r}" for name, value in self.literals.items()]
        return "\n".join([*lines, f"  pattern:     {_show(self.pattern)}", f"  replacement: {_show(self.replacement)}"])


@attrs.frozen
class RuleCheck:
    """What checking a rule found.

    Args:
        rule: The rule's label.
        compared: On how many inputs both sides ran and were compared.
        rejected: How many inputs the pattern itself, its conditions or its filters did not accept.
        counterexample: Where they differ; None if nowhere.
    """

    rule: str
    compared: int
    rejected: int
    counterexample: Counterexample | None = None

    def __bool__(self) -> bool:
        return self.counterexample is None

    def __str__(self) -> str:
        if self.counterexample is None:
            return f"{self.rule}: the same on {self.compared} inputs ({self.rejected} were not accepted)"
        return f"{self.rule}: {self.counterexample}"


class RuleError(PatternError, AssertionError):
    """A rule whose replacement does something else than its pattern; ``check`` holds the counterexample."""

    def __init__(self, message: str = "", *, check: RuleCheck | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.check = check

    @property
    def counterexample(self) -> Counterexample | None:
        """Where the two differ, as small as it could be made."""
        return None if self.check is None else self.check.counterexample


def check_rule(
    rule: Rule,
    *,
    examples: int = 100,
    seed: int = 0,
    dtypes: Sequence[torch.dtype] = _DTYPES,
    example_inputs: Sequence[torch.Tensor] | None = None,
    literals: Mapping[str, Sequence[Any]] | None = None,
    special_values: bool = True,
    tolerance: float | None = None,
    raises: bool = True,
) -> RuleCheck:
    """Compare pattern and replacement on generated inputs.

    >>> import torch
    >>> check_rule(Rule(lambda x: torch.neg(torch.neg(x)), lambda x: x), examples=20).compared
    20
    >>> wrong = Rule(lambda x: torch.sqrt(x * x), lambda x: x, name="root of square")
    >>> bool(check_rule(wrong, raises=False))
    False

    Args:
        rule: The rule.
        examples: How many inputs to compare.
        seed: Same seed, same inputs.
        dtypes: Which dtypes to try.
        example_inputs: Tensors that the pattern accepts; their shapes are varied instead of guessed.
        literals: Candidates for literals, and for placeholders that stand for literals, by name.
        special_values: Also NaN, infinities, negative zero and denormals.
        tolerance: The relative difference allowed; the default depends on the dtype.
        raises: Raise if they differ; otherwise look at ``counterexample``.

    Returns:
        How much was compared.

    Raises:
        RuleError: They differ; the smallest inputs found are in the message.
        PatternError: No inputs were found that the pattern accepts.
    """
    rng = random.Random(seed)
    with seeded():
        return _check(rule, examples, rng, dtypes, example_inputs, literals, special_values, tolerance, raises)


def _check(
    rule: Rule,
    examples: int,
    rng: random.Random,
    dtypes: Sequence[torch.dtype],
    example_inputs: Sequence[torch.Tensor] | None,
    literals: Mapping[str, Sequence[Any]] | None,
    special_values: bool,
    tolerance: float | None,
    raises: bool,
) -> RuleCheck:
    run = _Comparison(RuleSet((attrs.evolve(rule, check_values=False, holds_for_shared=True),)), tolerance)
    compared = rejected = 0
    while compared < examples and rejected < 30 * examples + 500:
        concrete = concretize(rule.compiled, rng, literals)
        like = None if example_inputs is None else [tuple(tensor.shape) for tensor in example_inputs]
        if like is not None and len(like) != len(concrete.inputs):
            like = None
        sample = random_sample(rng, len(concrete.inputs), dtypes, special_values=special_values, like=like)
        outcome = run.compare(concrete, build(sample))
        if outcome is None:
            rejected += 1
            continue
        compared += 1
        if isinstance(outcome, Counterexample):
            smallest = _shrunk(run, concrete, sample, outcome)
            return _answer(RuleCheck(rule.label, compared, rejected, smallest), raises)
    if not compared:
        why = f"; the last reason: {run.last_rejection}" if run.last_rejection else ""
        raise PatternError(
            f"check_rule({rule.label!r}): none of {rejected} generated inputs was accepted by the pattern and its "
            f"filters{why}; give example_inputs= or literals=",
            reason=run.last_rejection,
        )
    return RuleCheck(rule.label, compared, rejected)


def _answer(check: RuleCheck, raises: bool) -> RuleCheck:
    if raises:
        raise RuleError(f"the rule {check}", check=check)
    return check


def _shrunk(run: _Comparison, concrete: ConcretePattern, sample: Sample, found: Counterexample) -> Counterexample:
    """Take simpler samples for as long as they still differ."""
    left = _MAX_SHRINKS
    progress = True
    while progress and left > 0:
        progress = False
        for simpler in smaller(sample):
            left -= 1
            outcome = run.compare(concrete, build(simpler)) if left >= 0 else None
            if isinstance(outcome, Counterexample):
                sample, found, progress = simpler, outcome, True
                break
    return found


@attrs.define
class _Comparison:
    rules: RuleSet
    tolerance: float | None
    last_rejection: str = ""

    def compare(self, concrete: ConcretePattern, inputs: Sequence[torch.Tensor]) -> Counterexample | bool | None:
        """None if the inputs are not accepted, True if both sides agree, else where they differ."""
        ours = _copies(inputs)
        expected = _run(concrete.graph_module, ours)
        if isinstance(expected, Exception):
            self.last_rejection = f"the pattern raised {type(expected).__name__}: {expected}"
            return None
        theirs = _copies(inputs)
        try:
            rewritten = self._rewritten(concrete.graph_module, inputs)
            if rewritten is None:
                return None
            found = _run(rewritten, theirs)
        except PatternError as error:  # the function that makes the replacement raised
            found = error
        reason = self._difference(expected, found, ours, theirs)
        if reason is None:
            return True
        return Counterexample(
            dict(zip(concrete.inputs, inputs, strict=True)), concrete.literals, reason, expected, found
        )

    def _rewritten(self, module: GraphModule, inputs: Sequence[torch.Tensor]) -> GraphModule | None:
        """A copy to which the rule was applied; None if a condition, a filter or the rewriter said no."""
        changed = _copied(module)
        _give_values(changed, inputs)
        report = self.rules.apply(changed, nested=False)
        if report.modified:
            return changed
        self.last_rejection = report.refusals[0].reason if report.refusals else "a condition or filter did not hold"
        return None

    def _difference(self, expected: Any, found: Any, ours: Sequence[Any], theirs: Sequence[Any]) -> str | None:
        if isinstance(found, Exception):
            return f"the replacement raises {type(found).__name__}: {str(found).splitlines()[0]}"
        left, right = pytree.tree_leaves(expected), pytree.tree_leaves(found)
        if len(left) != len(right):
            return f"{len(left)} results against {len(right)}"
        for a, b in zip(left, right, strict=True):
            if (why := self._differ(a, b)) is not None:
                return f"results {why}"
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if (why := self._differ(a, b)) is not None:
                return f"input {place} is left in another state: they {why}"
        return None

    def _differ(self, a: Any, b: Any) -> str | None:
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            return None if type(a) is type(b) and bool(a == b) else f"differ: {a!r} against {b!r}"
        if a.dtype != b.dtype:
            return f"differ in dtype: {a.dtype} against {b.dtype}"
        if a.shape != b.shape:
            return f"differ in shape: {list(a.shape)} against {list(b.shape)}"
        limit = self.tolerance if self.tolerance is not None else _TOLERANCE.get(a.dtype, 0.0)
        return _distance(a, b, limit)


def _distance(a: torch.Tensor, b: torch.Tensor, limit: float) -> str | None:
    """How two tensors differ; relative to the larger one, and absolutely near zero."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.detach().to(wide), b.detach().to(wide)
    if bool((x.isnan() != y.isnan()).any()):
        return "differ: NaN on one side only"
    infinite = x.isinf() | y.isinf()
    if bool((infinite & (x != y)).any()):
        return "differ: infinite on one side only"
    usable = ~(infinite | x.isnan())
    gap = (x - y).abs()[usable]
    allowed = (limit * torch.maximum(torch.ones_like(x.abs()), torch.maximum(x.abs(), y.abs())))[usable]
    if bool((gap > allowed).any()):
        return f"differ by {gap.max().item():.3}" + (f" (tolerance {limit})" if limit else "")
    return None


def _copies(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that lie in memory as the inputs do, shared where those are shared."""
    made: dict[int, torch.Tensor] = {}
    for tensor in inputs:
        if id(tensor) not in made:
            twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            made[id(tensor)] = twin.copy_(tensor) if 0 not in tensor.stride() else tensor.clone()
    return [made[id(tensor)] for tensor in inputs]


def _copied(module: GraphModule) -> GraphModule:
    """The same graph over the same attributes, without generating code."""
    graph = Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result)
    made = lazy_graph_module(graph)
    for path, tensor in module.named_buffers():
        made.register_buffer(path, tensor)
    for path, child in module.named_children():
        made.add_module(path, child)
    return made


class _Record(Interpreter):
    """Runs a graph node by node, and records what each gives if asked to."""

    is_recording = False

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if self.is_recording:
            n.meta["val"] = value
        return value


def _run(module: GraphModule, inputs: Sequence[torch.Tensor]) -> Any:
    """The results; if an operator raises, what it raised."""
    runner = _Record(module, garbage_collect_values=False)
    runner.extra_traceback = False
    try:
        with torch.no_grad(), seeded():
            return runner.run(*inputs)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError) as error:
        return error


def _give_values(module: GraphModule, inputs: Sequence[torch.Tensor]) -> None:
    """Record fake values, so that conditions on dtype and shape can be asked."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    known = {id(tensor): mode.from_tensor(tensor, static_shapes=True) for tensor in inputs}
    runner = _Record(module, garbage_collect_values=False)
    runner.is_recording = True
    with mode:
        runner.run(*[known[id(tensor)] for tensor in inputs])


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.numel() <= 12:
            stride = "" if value.is_contiguous() else f", strides {value.stride()}"
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{stride} {value.tolist()}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_show, value))
    return f"{type(value).__name__}: {value}" if isinstance(value, Exception) else repr(value)
