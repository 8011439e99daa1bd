"""Rules and sets of rules: many patterns matched in one walk over the graph, replaced safely, and reported.

Order. Rules with a higher ``priority`` are matched first, over the whole graph. Among rules of equal priority the graph
is walked once, from its first node to its last, through an index from what a node calls to the rules that could match
there; at a node the rule with the larger ``benefit`` goes first, then the one that stands first in the set. A match
takes its nodes; later matches that need one of them are not made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.collecting import collection_paused
from fxpasses.editing import nested_graph_modules
from fxpasses.effects import analyze_effects
from fxpasses.errors import PatternError, also_as
from fxpasses.journal import Snapshot
from fxpasses.metadata import current_pass, running_pass
from fxpasses.outlining.body_constants import hand_in_constants
from fxpasses.outlining.owning import own_bodies
from fxpasses.partitioners.matching import CompiledPattern, GraphView, Pattern, PatternMatch, compile_pattern
from fxpasses.partitioners.matching.matching import Matcher, MatchFilter, checked_filters, impossible_calls
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.passes.rewriting.actions import Action
from fxpasses.passes.rewriting.code_on_demand import recompile_on_demand
from fxpasses.passes.rewriting.replacements import BoundReplacement, ReplacementSource, replacement_source
from fxpasses.passes.rewriting.replacing import Refused, Replacer
from fxpasses.programs import with_graph_module

__all__ = ["Application", "ApplyRules", "Refusal", "RewriteReport", "Rule", "RuleSet"]

logger = logging.getLogger(__name__)


def _rules(given: Iterable[Rule]) -> tuple[Rule, ...]:
    if not isinstance(given, Iterable):
        raise also_as(PatternError, TypeError())(f"a RuleSet takes a list of Rules, got {type(given).__name__}")
    return tuple(given)


@attrs.frozen(eq=False)
class Rule:
    """A pattern and what comes in its place.

    Args:
        pattern: A callable, graph, module, exported program, or a term of the pattern language.
        replacement: The same forms with the same inputs; for a term, a function whose parameters are names in the
            pattern; or an action: ``Outline(name)``, ``FoldToConstant()``.
        name: How reports call it; the pattern's own name if None.
        filters: Questions that a match (a ``PatternMatch``) must answer with yes.
        inputs: For a pattern made from a graph: what a placeholder must look like, by its name.
        priority: Rules with a higher priority are matched first.
        benefit: Among equal priorities, at one node: the rule with the larger benefit goes first.
        keeps_shared: Match even if a value inside is used outside; what is used then stays.
        check_values: Refuse a replacement whose results have another dtype, shape or device.
        holds_for_shared: The rule also holds where two inputs are one memory, though the replacement reads and writes
            them in another order; ``check_rule`` tries it. Otherwise such a match is refused.
        options: Further options of ``compile_pattern``.

    Raises:
        PatternError: The pattern cannot work, or the replacement does not fit it.
    """

    pattern: Any
    replacement: Any
    name: str | None = attrs.field(default=None, kw_only=True)
    filters: tuple[MatchFilter, ...] = attrs.field(default=(), kw_only=True, converter=checked_filters)
    inputs: Mapping[str, Pattern] = attrs.field(factory=dict, kw_only=True)
    priority: int = attrs.field(default=0, kw_only=True)
    benefit: float = attrs.field(default=0.0, kw_only=True)
    keeps_shared: bool = attrs.field(default=False, kw_only=True)
    check_values: bool = attrs.field(default=True, kw_only=True)
    holds_for_shared: bool = attrs.field(default=False, kw_only=True)
    options: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.source  # noqa: B018 - compiles both sides, so that a rule that cannot work is refused where it is written

    @cached_property
    def compiled(self) -> CompiledPattern:
        """The pattern, compiled."""
        return compile_pattern(self.pattern, inputs=self.inputs, **self.options)

    @cached_property
    def source(self) -> ReplacementSource | Action:
        """What makes the replacements."""
        if isinstance(self.replacement, Action):
            return self.replacement
        return replacement_source(self.replacement, self.compiled)

    @property
    def label(self) -> str:
        """The name in reports."""
        if self.name is not None:
            return self.name
        return str(getattr(self.pattern, "__name__", None) or self.compiled.roots[0].describe())


@attrs.frozen
class Application:
    """One rule applied in one place; names of nodes, because the matched ones are gone.

    Args:
        rule: The rule's label.
        anchor: The node that the match was found at.
        nodes: The matched nodes.
        made: The new nodes.
        round: In which round, counted from 1.
    """

    rule: str
    anchor: str
    nodes: tuple[str, ...]
    made: tuple[str, ...]
    round: int


@attrs.frozen
class Refusal:
    """One match that was left alone, and why."""

    rule: str
    anchor: str
    reason: str


@attrs.define
class RewriteReport:
    """What a set of rules did.

    Args:
        applications: Every replacement, in order.
        refusals: Matches that were left alone because replacing them would not have been right.
        rounds: How many rounds replaced something (1 if none did).
        capped: Whether the rules could have gone on, but reached a limit.
        never: For each rule that cannot match anywhere: the calls in its pattern that no graph contains.
        gave_up: Nodes at which the search ran out of its budget.
    """

    applications: list[Application] = attrs.field(factory=list)
    refusals: list[Refusal] = attrs.field(factory=list)
    rounds: int = 0
    capped: bool = False
    never: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    gave_up: list[str] = attrs.field(factory=list)

    @property
    def modified(self) -> bool:
        """Whether anything was replaced."""
        return bool(self.applications)

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule was applied."""
        found: dict[str, int] = {}
        for each in self.applications:
            found[each.rule] = found.get(each.rule, 0) + 1
        return found

    def __str__(self) -> str:
        lines = [f"{count:6} x {rule}" for rule, count in self.counts.items()] or ["nothing was replaced"]
        lines += [f"refused: {each.rule} at {each.anchor}: {each.reason}" for each in self.refusals]
        lines += [f"never: {rule}: nothing calls {', '.join(calls)}" for rule, calls in self.never.items()]
        if self.capped:
            lines.append(f"stopped after {self.rounds} rounds with rules still matching")
        return "\n".join(lines)


@attrs.frozen(eq=False)
class RuleSet:
    """Rules that are applied together.

    >>> import torch
    >>> rules = RuleSet([Rule(lambda x: torch.relu(torch.relu(x)), lambda x: torch.relu(x), name="relu twice")])
    >>> module = torch.fx.symbolic_trace(lambda x: torch.relu(torch.relu(torch.relu(torch.relu(x)))))
    >>> rules.apply(module, until="fixpoint").counts
    {'relu twice': 3}

    Args:
        rules: The rules.
        name: How provenance calls the set.
    """

    rules: tuple[Rule, ...] = attrs.field(converter=_rules)
    name: str = "RuleSet"

    @rules.validator
    def _are_rules(self, _: Any, rules: Sequence[Any]) -> None:
        for rule in rules:
            if not isinstance(rule, Rule):
                raise PatternError(f"a RuleSet holds Rules, got {type(rule).__name__}")

    def apply(
        self,
        graph_module: GraphModule | ExportedProgram,
        *,
        until: Literal["once", "fixpoint"] = "once",
        max_rounds: int = 100,
        max_applications: int | None = None,
        nested: bool = True,
        strict: bool = False,
    ) -> RewriteReport:
        """Apply the rules in place.

        Args:
            graph_module: The module; of an exported program, its graph.
            until: ``"once"``: match the graph as it is, and replace. ``"fixpoint"``: again, until nothing matches.
            max_rounds: The cap for a fixpoint.
            max_applications: Stop after so many replacements; the default lets the graph grow to ten times its size.
            nested: Also inside control flow and submodules, each body once.
            strict: Raise for a rule whose replacement does not fit, instead of leaving that match alone.

        Returns:
            What was done, and what was not done and why.

        Raises:
            PatternError: A filter, a condition or a replacement raised; the graph is as it was before.
        """
        root = graph_module.graph_module if isinstance(graph_module, ExportedProgram) else graph_module
        report = RewriteReport()
        if nested:
            own_bodies(root)
        bodies = list(nested_graph_modules(root)) if nested else [root]
        snapshot = Snapshot.take(graph_module)
        try:
            with running_pass(current_pass() or self.name), collection_paused():
                for body in bodies:
                    program = graph_module if isinstance(graph_module, ExportedProgram) and body is root else None
                    _Run(self, body, report, strict, program).go(until, max_rounds, max_applications)
                if nested and report.modified:
                    for body in hand_in_constants(root):
                        recompile_on_demand(body)
                if isinstance(graph_module, ExportedProgram) and report.modified:
                    with_graph_module(graph_module, root)
        except Exception:
            snapshot.restore()
            raise
        return report

    def matches(self, graph_module: GraphModule) -> list[tuple[Rule, PatternMatch]]:
        """What one round would replace, in order; nothing is changed, and bodies of control flow are not visited."""
        run = _Run(self, graph_module, RewriteReport(), strict=False)
        return run.matches(run.view())


@attrs.frozen
class ApplyRules(PassBase):
    """Apply a set of rules.

    Args:
        rules: The rules.
        until: ``"once"`` or ``"fixpoint"``.
        max_rounds: The cap for a fixpoint.
    """

    rules: RuleSet
    until: Literal["once", "fixpoint"] = attrs.field(default="fixpoint", kw_only=True)
    max_rounds: int = attrs.field(default=100, kw_only=True)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Apply them to one graph; the framework visits the graphs inside."""
        report = self.rules.apply(graph_module, until=self.until, max_rounds=self.max_rounds, nested=False)
        return PassResult(graph_module, report.modified)


@attrs.define(eq=False)
class _Run:
    """One set of rules on one graph."""

    rules: RuleSet
    graph_module: GraphModule
    report: RewriteReport
    strict: bool
    program: ExportedProgram | None = None
    refused: set[tuple[str, str]] = attrs.field(factory=set)

    def view(self) -> GraphView:
        """The graph as it is now; an exported program knows the values of its constants and what it mutates."""
        program = self.program
        if program is None:
            return GraphView(self.graph_module)
        signature = program.graph_signature
        constants = {
            name: program.constants[fqn]
            for name, fqn in signature.inputs_to_lifted_tensor_constants.items()
            if isinstance(program.constants.get(fqn), torch.Tensor)
        }
        mutates = bool(signature.buffers_to_mutate or signature.user_inputs_to_mutate)
        effects = analyze_effects(self.graph_module, program=program) if mutates else None
        return GraphView(self.graph_module, effects=effects, constants=constants)

    def go(self, until: str, max_rounds: int, max_applications: int | None) -> None:
        """All rounds."""
        if max_applications is None:
            max_applications = 10 * len(self.graph_module.graph.nodes) + 100
        done, rounds = 0, 0
        limit = 1 if until == "once" else max_rounds
        while rounds < limit and done < max_applications:
            known = len(self.refused)
            applied = self._round(rounds + 1, max_applications - done)
            done += applied
            if applied:
                rounds += 1
            elif len(self.refused) == known:
                break  # a round that only refused is tried again: others may want the nodes
        is_open = done >= max_applications or (until == "fixpoint" and rounds == limit)
        if done and is_open and self.matches(self.view()):
            self.report.capped = True
            logger.warning(
                "the rules of %s still match after %d rounds, %d replacements", self.rules.name, rounds, done
            )
        self.report.rounds = max(self.report.rounds, rounds, 1)
        if done:
            recompile_on_demand(self.graph_module)

    def _round(self, number: int, at_most: int) -> int:
        view = self.view()
        found = self.matches(view, note=number == 1)
        replacer = Replacer(self.graph_module, view)
        applied = 0
        found = found[: max(at_most, 0)]
        bound = [
            None if isinstance(r.source, Action) else r.source.bind(m) for r, m in found
        ]  # before anything changes
        replacer.prepare([each for each in bound if each is not None])
        for (rule, match), replacement in zip(found, bound, strict=True):
            anchor, nodes = match.anchors[0].name, tuple(node.name for node in match.nodes)
            replacer.check_values, replacer.holds_for_shared = rule.check_values, rule.holds_for_shared
            try:
                made = _apply(rule, match, replacement, replacer)
            except Refused as refusal:
                self._refuse(rule, anchor, refusal)
                continue
            applied += 1
            names = tuple(node.name for node in made)
            self.report.applications.append(Application(rule.label, anchor, nodes, names, number))
        replacer.finish()
        return applied

    def _refuse(self, rule: Rule, anchor: str, refusal: Refused) -> None:
        if refusal.is_wrong and self.strict:
            raise PatternError(f"rule {rule.label!r} at {anchor}: {refusal.reason}", reason=refusal.reason) from None
        if (rule.label, anchor) not in self.refused:
            self.refused.add((rule.label, anchor))
            self.report.refusals.append(Refusal(rule.label, anchor, refusal.reason))
            logger.debug("rule %s at %s refused: %s", rule.label, anchor, refusal.reason)

    def matches(self, view: GraphView, *, note: bool = False) -> list[tuple[Rule, PatternMatch]]:
        """All matches, in the order in which they are to be replaced."""
        taken: set[Node] = set()
        found: list[tuple[Rule, PatternMatch]] = []
        for rules in _by_priority(self.rules.rules):
            matchers = [
                Matcher(rule.compiled, view, rule.filters, taken, keeps_shared=rule.keeps_shared) for rule in rules
            ]
            for anchor, choice in _walk(view, matchers):
                is_refused = (rules[choice].label, anchor.name) in self.refused  # so that others get the nodes
                match = None if is_refused else matchers[choice].at(anchor)
                if match is not None:
                    found.append((rules[choice], match))
            if note:
                self._note(rules, matchers, view)
        return found

    def _note(self, rules: Sequence[Rule], matchers: Sequence[Matcher], view: GraphView) -> None:
        for rule, matcher in zip(rules, matchers, strict=True):
            self.report.gave_up += [node.name for node in matcher.search.gave_up]
            missing = tuple(call.describe() for call in impossible_calls(rule.compiled, view))
            if missing and rule.label not in self.report.counts:
                self.report.never[rule.label] = missing
            else:
                self.report.never.pop(rule.label, None)


def _by_priority(rules: Sequence[Rule]) -> Iterator[list[Rule]]:
    """Rules of equal priority together, the highest first, each group by benefit."""
    for priority in sorted({rule.priority for rule in rules}, reverse=True):
        yield sorted((rule for rule in rules if rule.priority == priority), key=lambda rule: -rule.benefit)


def _walk(view: GraphView, matchers: Sequence[Matcher]) -> Iterator[tuple[Node, int]]:
    """The nodes at which a rule could match, in graph order, with the rule; by benefit where there are several."""
    places = sorted(
        (view.position[node], choice) for choice, matcher in enumerate(matchers) for node in matcher.candidates()
    )
    for position, choice in places:
        yield view.nodes[position], choice


def _bind(rule: Rule, match: PatternMatch) -> BoundReplacement | None:
    source = rule.source
    return None if isinstance(source, Action) else source.bind(match)


def _apply(rule: Rule, match: PatternMatch, replacement: BoundReplacement | None, replacer: Replacer) -> list[Node]:
    if replacement is not None:
        return replacer.replace(match, replacement)
    assert isinstance(rule.source, Action)  # what has no replacement
    return rule.source.apply(match, replacer)
