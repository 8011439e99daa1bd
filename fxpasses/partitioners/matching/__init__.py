"""Find subgraphs: a typed pattern language, a matcher without blow-ups, and answers to "why did this not match?".

>>> import torch
>>> from fxpasses.partitioners import matching as m
>>> x, dim = m.value("x"), m.literal("dim")
>>> pattern = m.call(torch.softmax, m.call(torch.mul, x, m.anything("scale")), dim)
>>> module = torch.fx.symbolic_trace(lambda a: torch.softmax(torch.mul(0.5, a), dim=-1))
>>> [match.captures for match in m.find_matches(pattern, module)]
[{'x': a, 'scale': 0.5, 'dim': -1}]
"""

from fxpasses.partitioners.matching.compiling import CompiledPattern, compile_pattern
from fxpasses.partitioners.matching.explaining import Explanation, MatchFailure, explain
from fxpasses.partitioners.matching.language import (
    anything,
    both,
    call,
    call_method,
    call_module,
    constant,
    either,
    literal,
    maybe,
    not_,
    one_of,
    outputs,
    repeat,
    value,
    weight,
)
from fxpasses.partitioners.matching.matches import PatternMatch
from fxpasses.partitioners.matching.matching import find_matches
from fxpasses.partitioners.matching.subgraph_matcher import (
    InternalMatch,
    SubgraphMatcher,
    SubgraphMatcherWithNameNodeMap,
)
from fxpasses.partitioners.matching.terms import Outputs, Pattern
from fxpasses.partitioners.matching.views import GraphView

__all__ = [
    "CompiledPattern",
    "Explanation",
    "GraphView",
    "InternalMatch",
    "MatchFailure",
    "Outputs",
    "Pattern",
    "PatternMatch",
    "SubgraphMatcher",
    "SubgraphMatcherWithNameNodeMap",
    "anything",
    "both",
    "call",
    "call_method",
    "call_module",
    "compile_pattern",
    "constant",
    "either",
    "explain",
    "find_matches",
    "literal",
    "maybe",
    "not_",
    "one_of",
    "outputs",
    "repeat",
    "value",
    "weight",
]
