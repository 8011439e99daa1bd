"""Replace subgraphs, safely: ``replace_pattern``, and rules applied together in one walk.

>>> import torch
>>> from fxpasses.partitioners.matching import call, literal, value
>>> x, y = value("x"), value("y")
>>> rule = Rule(call(torch.add, x, call(torch.mul, y, literal("c"))), lambda x, y, c: torch.add(x, y, alpha=c))
>>> module = torch.fx.symbolic_trace(lambda a, b: torch.add(torch.mul(b, 3), a))
>>> report = RuleSet([rule]).apply(module)
>>> report.modified, [node.kwargs for node in module.graph.find_nodes(op="call_function", target=torch.add)]
(True, [{'alpha': 3}])
"""

from fxpasses.passes.rewriting.actions import Action, FoldToConstant, Outline
from fxpasses.passes.rewriting.checking import Counterexample, RuleCheck, RuleError, check_rule
from fxpasses.passes.rewriting.pattern_replacement import (
    Match,
    ReplacedPatterns,
    replace_pattern,
    replace_pattern_with_filters,
)
from fxpasses.passes.rewriting.rule_sets import Application, ApplyRules, Refusal, RewriteReport, Rule, RuleSet

__all__ = [
    "Action",
    "Application",
    "ApplyRules",
    "Counterexample",
    "FoldToConstant",
    "Match",
    "Outline",
    "Refusal",
    "ReplacedPatterns",
    "RewriteReport",
    "Rule",
    "RuleCheck",
    "RuleError",
    "RuleSet",
    "check_rule",
    "replace_pattern",
    "replace_pattern_with_filters",
]
