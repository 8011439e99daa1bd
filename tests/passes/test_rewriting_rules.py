"""Rules and rule sets: order, fixpoints, reports, actions, safety on random programs, rules that test themselves."""

import operator
import random

import pytest
import torch
import torch.nn.functional as F
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import observe, random_program, same
from torch import nn
from torch.export import export
from torch.fx import GraphModule, symbolic_trace

from fxpasses.errors import PatternError
from fxpasses.partitioners.matching import call, constant, either, literal, outputs, repeat, value, weight
from fxpasses.passes import ApplyRules, FoldToConstant, Outline, Rule, RuleError, RuleSet, check_rule

aten = torch.ops.aten
X = torch.arange(-6.0, 6.0).reshape(3, 4) / 4
x, y = value("x"), value("y")


class Wrap(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def targets(module):
    return [node.target for node in module.graph.nodes if node.op.startswith("call")]


def apply(rules, function, **options):
    module = symbolic_trace(function)
    report = RuleSet(rules).apply(module, **options)
    module.graph.lint()
    return module, report


# ------------------------------------------------------------------------------------------------ replacements
def test_captured_literals_are_reused_in_the_replacement():
    """The function gets nodes as proxies and literals as they are, so it can compute with them."""
    rule = Rule(call(torch.mul, call(torch.mul, x, literal("a")), literal("b")), lambda x, a, b: torch.mul(x, a * b))
    module, report = apply([rule], lambda v: torch.mul(torch.mul(v, 2), 3))

    assert report.modified
    assert [(6,)] == [node.args[1:] for node in module.graph.find_nodes(op="call_function", target=torch.mul)]


def test_captured_lists_are_given_as_lists():
    """cat of any length becomes concat of the same length."""
    rule = Rule(
        call(torch.cat, [repeat(value(), name="parts")], literal("dim")), lambda parts, dim: torch.concat(parts, dim)
    )
    module, _ = apply([rule], lambda a, b, c: torch.cat([a, b, c], 1))

    assert [torch.concat] == targets(module)
    assert torch.equal(torch.cat([X, X, X], 1), module(X, X, X))


def test_a_replacement_may_look_at_the_match():
    """A parameter called match gets the match, with nodes and their metadata."""

    def split(match, x):
        size = match["x"].meta["val"].shape[0]
        return aten.add.Tensor(x, size)

    module = export(Wrap(lambda v: torch.relu(v)), (X,)).module()
    RuleSet([Rule(call(aten.relu.default, x), split)]).apply(module)

    assert torch.equal(X + 3, module(X))


def test_a_graph_may_be_the_replacement_of_a_term():
    """Its placeholders are bound by name."""
    replacement = symbolic_trace(lambda y, x: torch.sub(x, y))
    module, _ = apply([Rule(call(torch.add, x, y), replacement)], lambda a, b: torch.add(a, b))

    assert torch.equal(X - 1, module(X, torch.ones(4)))


def test_several_results_of_terms():
    """Outputs are replaced one by one, in order."""
    rule = Rule(outputs(call(torch.sin, x), call(torch.cos, x)), lambda x: (torch.exp(x), torch.abs(x)))
    module, _ = apply([rule], lambda v: torch.cos(v) - torch.sin(v))

    assert torch.equal(X.abs() - X.exp(), module(X))


# ------------------------------------------------------------------------------------------------ order
def sin_to(function, **options):
    return Rule(call(torch.sin, x), function, name=function.__name__, **options)


def test_the_larger_benefit_goes_first_at_a_node():
    """Among rules of equal priority."""
    _, report = apply([sin_to(_exp, benefit=1), sin_to(_abs, benefit=2)], torch_sin)

    assert {"_abs": 1} == report.counts


def test_the_higher_priority_goes_first_over_the_whole_graph():
    """The lower rule could match earlier in the graph, but needs the same node."""
    pair = Rule(call(torch.neg, call(torch.sin, x)), lambda x: torch.tanh(x), name="late", priority=1)
    _, report = apply([sin_to(_exp), pair], lambda v: torch.neg(torch.sin(v)))

    assert {"late": 1} == report.counts


def test_equal_rules_go_in_the_order_of_the_set():
    """The one that stands first wins."""
    _, report = apply([sin_to(_exp), sin_to(_abs)], torch_sin)

    assert {"_exp": 1} == report.counts


def torch_sin(v):
    return torch.sin(v)


def _exp(x):
    return torch.exp(x)


def _abs(x):
    return torch.abs(x)


def test_hundreds_of_rules_in_one_walk():
    """Each rule looks only at the nodes that its anchor could be."""
    asked = []
    rules = [
        Rule(
            call(torch.mul, value("x", check=lambda node, n=n: asked.append(n) or True), literal(one_of=[float(n)])),
            lambda x: torch.neg(x),
            name=f"rule {n}",
        )
        for n in range(300)
    ]
    _, report = apply([*rules, sin_to(_exp)], lambda v: torch.sin(torch.mul(v, 7.0)))

    assert {"rule 7": 1, "_exp": 1} == report.counts


# ------------------------------------------------------------------------------------------------ rounds
TWICE = Rule(lambda v: torch.relu(torch.relu(v)), lambda v: torch.relu(v), name="relu twice")


def relus(count):
    def function(v):
        for _ in range(count):
            v = torch.relu(v)
        return v

    return function


def test_once_matches_the_graph_as_it_is():
    """What a replacement makes is not matched again."""
    module, report = apply([TWICE], relus(4))

    assert (2, 1, 2, False) == (len(report.applications), report.rounds, len(targets(module)), report.capped)


def test_a_fixpoint_goes_on_until_nothing_matches():
    """And says how many rounds it took; a second run changes nothing."""
    module, report = apply([TWICE], relus(8), until="fixpoint")

    assert (1, 7, False) == (len(targets(module)), len(report.applications), report.capped)
    assert not RuleSet([TWICE]).apply(module, until="fixpoint").modified


def test_a_rule_that_never_stops_is_capped_and_reported():
    """By rounds, or by the number of replacements."""
    grow = Rule(call(torch.sin, x), lambda x: torch.sin(torch.sin(x)), name="grow")
    _, by_rounds = apply([grow], torch_sin, until="fixpoint", max_rounds=4)
    module, by_count = apply([grow], torch_sin, until="fixpoint", max_applications=10)

    assert (True, 4) == (by_rounds.capped, by_rounds.rounds)
    assert (True, 10, 11) == (by_count.capped, len(by_count.applications), len(targets(module)))
    assert "stopped after 4 rounds with rules still matching" in str(by_rounds)


def test_the_report_names_what_can_never_match():
    """A pattern with an op that no graph contains, and a dialect that is another one."""
    _, report = apply([Rule(lambda v: F.gelu(v), lambda v: torch.relu(v), name="gelu")], torch_sin)

    assert {"gelu": ("gelu",)} == report.never
    assert "never: gelu: nothing calls gelu" in str(report)


def test_apply_rules_is_a_pass():
    """Over a GraphModule or an ExportedProgram; the second run is unmodified."""
    relu = Rule(call(aten.relu.default, call(aten.relu.default, x)), lambda x: aten.relu.default(x))
    program = export(Wrap(lambda v: torch.relu(torch.relu(torch.relu(v)))), (X,))
    rewrite = ApplyRules(RuleSet([relu]))
    first = rewrite(program)
    second = rewrite(first)

    assert (True, False) == (first.modified, second.modified)
    assert torch.equal(torch.relu(X), first.exported_program.module()(X))


def test_an_exported_program_stays_valid():
    """Also when a result of the graph is replaced, which gives it another name."""
    program = export(Wrap(lambda v: torch.relu(v)), (X,))
    report = RuleSet([Rule(call(aten.relu.default, x), lambda x: aten.clamp_min.default(x, 0))]).apply(program)
    program.validate()

    assert report.modified
    assert torch.equal(torch.relu(X), program.module()(X))


def test_bodies_of_control_flow_are_rewritten():
    """Or left alone on demand."""

    class M(nn.Module):
        def forward(self, v):
            return torch.cond(v.sum() > 0, lambda u: torch.relu(u), lambda u: u - 1, (v,))

    rule = Rule(call(aten.relu.default, x), lambda x: aten.clamp_min.default(x, 0))

    assert not RuleSet([rule]).apply(export(M(), (X,)).module(), nested=False).modified
    module = export(M(), (X,)).module()
    assert RuleSet([rule]).apply(module).modified
    assert torch.equal(X + 4, module(X + 4))


# ------------------------------------------------------------------------------------------------ refusals
def test_a_replacement_that_does_not_fit_is_left_out_and_reported():
    """In a set, one wrong rule does not stop the others; strict raises, and nothing has changed then."""
    wrong = Rule(call(aten.relu.default, x), lambda x: aten.sum.dim_IntList(x, [1]), name="wrong")
    module = export(Wrap(lambda v: torch.relu(v)), (X,)).module()
    before = module.code
    report = RuleSet([wrong]).apply(module)

    reason = "relu is float32[3, 4] on cpu, the replacement gives float32[3] on cpu"
    assert [("wrong", "relu", reason)] == [(r.rule, r.anchor, r.reason) for r in report.refusals]
    with pytest.raises(PatternError, match=r"rule 'wrong' at relu: relu is float32\[3, 4\]"):
        RuleSet([wrong]).apply(module, strict=True)
    assert before == module.code


def test_a_refused_match_says_which_effect_stands_against_it():
    """The written input is named."""

    def function(v):
        u = v * 1
        v.add_(1)
        return u + v

    _, report = apply([Rule(call(operator.mul, x, 1), lambda x: x, name="one")], function)

    assert ["mul shares memory with v in the replacement but not in the match, and add_ writes it"] == [
        refusal.reason for refusal in report.refusals
    ]


def test_a_replacement_that_raises_leaves_the_module_as_it_was():
    """Although an earlier rule has matched."""

    def broken(x):
        raise ZeroDivisionError("no")

    module = symbolic_trace(lambda v: torch.cos(torch.sin(v)))
    before = module.code
    with pytest.raises(ZeroDivisionError):
        RuleSet([sin_to(_exp), Rule(call(torch.cos, x), broken)]).apply(module)

    assert before == module.code


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule(call(torch.sin, x), lambda z: z), "the replacement asks for 'z', but the pattern names x"),
        (lambda: Rule(lambda v: v, lambda v: v), "the pattern computes nothing"),
        (lambda: Rule(call(torch.sin, x), symbolic_trace(lambda z: z)), "the replacement asks for 'z'"),
        (lambda: Rule(lambda v: torch.sin(v), lambda v, u: v), "the pattern has 1 inputs (v), the replacement has 2"),
        (lambda: RuleSet([torch.sin]), "a RuleSet holds Rules, got builtin_function_or_method"),
    ],
)
def test_bad_rules_are_refused_where_they_are_written(make, message):
    """Before any graph is seen."""
    with pytest.raises(PatternError) as caught:
        make()

    assert message in str(caught.value)


def test_a_refused_match_does_not_keep_its_nodes_from_others():
    """The rule with the larger benefit never fits, so the other one gets the node."""
    wrong = Rule(call(aten.relu.default, x), lambda x: aten.sum.dim_IntList(x, [1]), name="wrong", benefit=1)
    right = Rule(call(aten.relu.default, x), lambda x: aten.clamp_min.default(x, 0), name="right")
    module = export(Wrap(lambda v: torch.relu(v)), (X,)).module()
    report = RuleSet([wrong, right]).apply(module)

    assert {"right": 1} == report.counts
    assert ["wrong"] == [refusal.rule for refusal in report.refusals]
    assert torch.equal(torch.relu(X), module(X))


# ------------------------------------------------------------------------------------------------ actions
def test_outline_moves_the_match_into_a_submodule():
    """Same outputs, one call a match, values kept."""
    rule = Rule(lambda v: torch.sigmoid(torch.neg(v)), Outline("block"))
    module = symbolic_trace(lambda v: torch.sigmoid(torch.neg(torch.sigmoid(torch.neg(v)))) + 1)
    report = RuleSet([rule]).apply(module)
    module.graph.lint()

    assert 2 == len(report.applications)
    assert 2 == len(module.graph.find_nodes(op="call_module", target="block")) + len(
        [n for n in module.graph.nodes if n.op == "call_module" and n.target != "block"]
    )
    assert torch.equal(torch.sigmoid(-torch.sigmoid(-X)) + 1, module(X))


def test_outline_of_an_exported_graph_keeps_values():
    """The call and what follows it have val."""
    rule = Rule(call(aten.relu.default, call(aten.neg.default, x)), Outline("block"))
    module = export(Wrap(lambda v: torch.relu(-v) * 2), (X,)).module()
    RuleSet([rule]).apply(module)

    assert all("val" in n.meta for n in module.graph.nodes if n.op.startswith("call_f") or n.target == "block")
    assert torch.equal(torch.relu(-X) * 2, module(X))


def test_outline_of_several_results_before_another_replacement():
    """What is replaced later reads the results of the submodule."""
    pair = Rule(lambda v: (torch.sin(v), torch.cos(v)), Outline("pair"))
    after = Rule(lambda a, b: operator.sub(a, b), lambda a, b: torch.add(a, torch.neg(b)), name="sub")
    module, report = apply([pair, after], lambda v: torch.cos(v) - torch.sin(v))

    assert {"sub": 1} == {k: v for k, v in report.counts.items() if k == "sub"}
    assert torch.equal(torch.cos(X) - torch.sin(X), module(X))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 4.0))
        self.weight = nn.Parameter(torch.full((4,), 9.0))

    def forward(self, v):
        return v * torch.sqrt(self.scale) + torch.sqrt(self.weight)


def traced(module):
    """A graph in which buffers are get_attr nodes."""
    tracer = torch.fx.Tracer()
    tracer.proxy_buffer_attributes = True
    return GraphModule(module, tracer.trace(module))


def test_fold_to_constant():
    """What a buffer gives is computed now; a parameter that is trained stays."""
    module = traced(Scaled())
    report = RuleSet([Rule(call(torch.sqrt, weight("w")), FoldToConstant(), name="fold")]).apply(module)
    module.graph.lint()

    assert {"fold": 1} == report.counts
    assert ["weight is a parameter that may be trained; FoldToConstant(parameters=True) folds it too"] == [
        refusal.reason for refusal in report.refusals
    ]
    assert 1 == targets(module).count(torch.sqrt)
    assert torch.allclose(X * 2 + 3, module(X))


def test_fold_leaves_what_is_not_constant():
    """An input, and a buffer that something writes."""

    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.ones(4))

        def forward(self, v):
            before = torch.sqrt(self.state)
            self.state.add_(3)
            return before + torch.sqrt(v)

    module = traced(Writes())
    report = RuleSet([Rule(call(torch.sqrt, x), FoldToConstant())]).apply(module)

    assert ["state is written by add_", "v is not constant"] == [refusal.reason for refusal in report.refusals]


def test_a_constant_can_be_matched_by_value_and_replaced():
    """x * tensor(1.0) is x, x * tensor(99.0) is not."""

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.many = torch.tensor(1.0), torch.tensor(99.0)

        def forward(self, v):
            return v * self.one + v * self.many

    module = symbolic_trace(M())
    report = RuleSet([Rule(call(operator.mul, x, constant(1)), lambda x: x)]).apply(module)

    assert 1 == len(report.applications)
    assert torch.equal(X + X * 99, module(X))


# ------------------------------------------------------------------------------------------------ metadata
def test_complaint_03_a_fixpoint_of_rules_that_ask_for_shapes():
    """Complaint 3: the second rule asks for the shape of what the first one made."""
    first = Rule(call(aten.relu.default, value("x", shape=(3, 4))), lambda x: aten.neg.default(aten.neg.default(x)))
    second = Rule(
        call(aten.neg.default, call(aten.neg.default, value("x")).where(shape=(3, 4))).where(dtype=torch.float32),
        lambda x: aten.mul.Tensor(x, 1.0),
    )
    module = export(Wrap(lambda v: torch.relu(v)), (X,)).module()
    report = RuleSet([first, second], name="two steps").apply(module, until="fixpoint")
    (made,) = module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)

    assert 2 == len(report.applications)
    assert (3, 4) == tuple(made.meta["val"].shape)
    assert "two steps" == made.meta["from_node"][-1].pass_name
    assert made.meta["stack_trace"]


# ------------------------------------------------------------------------------------------------ random programs
RULES = [
    Rule(lambda v: torch.sin(v), lambda v: torch.neg(torch.sin(torch.neg(v))), name="sin"),
    Rule(lambda v: torch.cos(v), lambda v: torch.cos(torch.neg(v)), name="cos"),
    Rule(lambda a, b: operator.add(a, b), lambda a, b: operator.add(b, a), name="add"),
    Rule(lambda a, b: operator.mul(a, b), lambda a, b: operator.mul(b, a), name="mul"),
    Rule(
        lambda a, b: torch.cos(torch.add(a, b)), lambda a, b: torch.cos(torch.neg(torch.add(a, b))), name="cos of add"
    ),
    Rule(
        lambda a, b: (torch.sin(a), torch.cos(b)),
        lambda a, b: (torch.neg(torch.sin(torch.neg(a))), torch.cos(torch.neg(b))),
        name="apart",
    ),
    Rule(lambda a: (torch.cos(a), operator.neg(a)), lambda a: (torch.cos(torch.neg(a)), torch.neg(a)), name="together"),
    Rule(lambda v: v.clone(), lambda v: v, name="clone"),
    Rule(lambda v: v.contiguous(), lambda v: v.clone(), name="contiguous"),
    Rule(lambda v: v.view(-1), lambda v: v.reshape(-1).clone(), name="view"),
    Rule(lambda v: F.relu(v), lambda v: torch.relu(v), name="relu"),
    Rule(lambda v: v.neg_(), lambda v: aten.neg_.default(v), name="neg_"),
    Rule(lambda v: v.tanh_(), lambda v: v.tanh(), name="no longer in place"),
    Rule(lambda v: aten.tanh.default(v), lambda v: v.tanh_(), name="now in place"),
    Rule(lambda a, b: operator.add(a.sin(), b), lambda a, b: torch.add(b, torch.sin(a)), name="add of sin"),
]
EXAMPLES = examples(60)


@settings(max_examples=EXAMPLES, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_random_programs_mean_the_same_after_rewriting(rng):
    """In-place writes, views, random numbers, regions: outputs, inputs, buffers and the random state stay equal."""
    program = random_program(rng, size=rng.choice([5, 10, 20]))
    before = observe(program.graph_module, program.inputs)
    rules = rng.sample(RULES, 5)
    RuleSet(rules).apply(program.graph_module)
    program.graph_module.graph.lint()

    assert same(before, observe(program.graph_module, program.inputs))


@settings(max_examples=EXAMPLES // 2, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_planted_patterns_in_random_programs_are_replaced_and_nothing_else_changes(rng):
    """Planted calls are all found where nothing is written; every other node stays as it was."""
    program = random_program(rng, size=8, steps=("unary", "binary", "view"))
    graph = program.graph_module.graph
    output = next(iter(reversed(graph.nodes)))
    count = rng.randint(1, 4)
    results = list(output.args[0])
    for _ in range(count):
        place = rng.choice([n for n in graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)])
        after = max([place, *graph.find_nodes(op="placeholder")])
        with graph.inserting_after(after):
            inner = graph.call_function(torch.sigmoid, (place,))
        with graph.inserting_after(inner):
            outer = graph.call_function(torch.asinh, (inner,))
        results.append(outer)
    output.args = (tuple(results),)
    program.graph_module.recompile()
    others = [n for n in graph.nodes if n.target not in (torch.sigmoid, torch.asinh) and n.op != "output"]
    texts = [n.format_node() for n in others]
    before = observe(program.graph_module, program.inputs)
    rule = Rule(lambda v: torch.asinh(torch.sigmoid(v)), lambda v: torch.asinh(torch.special.expit(v)))
    report = RuleSet([rule]).apply(program.graph_module)

    assert count == len(report.applications)
    assert texts == [n.format_node() for n in others]
    assert others == [n for n in graph.nodes if n in set(others)]
    assert same(before, observe(program.graph_module, program.inputs))


# ------------------------------------------------------------------------------------------------ check_rule
@pytest.mark.parametrize(
    "rule",
    [
        Rule(lambda v: torch.neg(torch.neg(v)), lambda v: v, name="neg twice"),
        Rule(lambda v: torch.relu(v), lambda v: torch.clamp_min(v, 0), name="relu"),
        Rule(lambda a, b: torch.sub(a, torch.neg(b)), lambda a, b: torch.add(a, b), name="sub of neg"),
        Rule(
            call(torch.cat, [repeat(value(), at_least=1, name="parts")], literal("dim", one_of=[0, -1])),
            lambda parts, dim: torch.concat(parts, dim),
            name="cat",
        ),
        Rule(
            either(call(aten.pow.Tensor_Scalar, x, 2), call(aten.mul.Tensor, x, x)),
            lambda x: aten.square.default(x),
            name="square",
        ),
    ],
    ids=lambda rule: rule.label,
)
def test_right_rules_pass_their_check(rule):
    """On shapes, dtypes, strides, shared inputs and special values."""
    check = check_rule(rule, examples=40)

    assert check
    assert 40 == check.compared


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule(lambda v: torch.sqrt(v * v), lambda v: v, name="root of a square"), "results differ by"),
        (Rule(lambda a, b: torch.matmul(a, b), lambda a, b: torch.matmul(b, a), name="swapped product"), "differ"),
        (Rule(lambda a, b: a / b * b, lambda a, b: a, name="quotient"), "NaN on one side only"),
        (Rule(lambda v: torch.relu(v), lambda v: torch.clamp(v, 0, 6), name="relu6"), "differ"),
        (Rule(lambda a, b: torch.add(a, b), lambda a, b: torch.add(a, b).double(), name="wide"), "differ in dtype"),
        (Rule(lambda v: torch.sum(v, 0), lambda v: torch.sum(v, 0, keepdim=True), name="kept"), "differ in shape"),
        (Rule(lambda a, b: a.mul_(b).add_(b), lambda a, b: a.copy_(a * b + b), name="shared inputs"), "differ by"),
    ],
    ids=lambda each: each.label if isinstance(each, Rule) else "",
)
def test_wrong_rules_fail_their_check_with_a_small_counterexample(rule, reason):
    """One or a few elements are left, in the default dtype where that is enough."""
    with pytest.raises(RuleError) as caught:
        check_rule(rule)
    example = caught.value.counterexample

    assert reason in example.reason
    assert all(tensor.numel() <= 4 for tensor in example.inputs.values())
    assert f"the rule {rule.label}: " in str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert not check_rule(rule, raises=False)


def test_a_replacement_that_cannot_be_made_is_a_counterexample():
    """The function that makes it divides by a literal that may be zero."""
    rule = Rule(call(torch.div, x, literal("by", one_of=[2, 0])), lambda x, by: torch.mul(x, 1 / by), name="by")

    assert "raises PatternError: the replacement <lambda> raised ZeroDivisionError" in (
        check_rule(rule, raises=False).counterexample.reason
    )


def test_special_values_are_what_finds_some_errors():
    """max(x, y) and where(x > y, x, y) differ on NaN only."""
    rule = Rule(lambda a, b: torch.maximum(a, b), lambda a, b: torch.where(a > b, a, b), name="maximum")

    assert check_rule(rule, special_values=False)
    assert "NaN" in check_rule(rule, raises=False).counterexample.reason


def test_conditions_and_filters_restrict_what_is_compared():
    """A rule for vectors is compared on vectors."""
    rule = Rule(call(torch.sum, value("x", rank=1)), lambda x: torch.sum(x, 0), name="vector")
    check = check_rule(rule, examples=10, special_values=False)

    assert check.compared == 10
    assert check.rejected > 0


def test_example_inputs_give_shapes_that_fit():
    """Their sizes are varied together."""
    rule = Rule(lambda v, w: F.linear(v, w), lambda v, w: torch.matmul(v, w.t()), name="linear")
    check = check_rule(
        rule, examples=20, example_inputs=[torch.ones(2, 3), torch.ones(4, 3)], special_values=False, tolerance=0.05
    )

    assert (20, True) == (check.compared, bool(check))


def test_a_rule_whose_pattern_accepts_nothing_is_an_error():
    """With the last reason, and what to give."""
    rule = Rule(call(torch.sum, value("x", rank=9)), lambda x: torch.sum(x, 0), name="nine dimensions")

    with pytest.raises(PatternError, match=r"none of .* was accepted .* a condition or filter did not hold; give"):
        check_rule(rule, examples=1)


def test_the_random_state_is_left_alone():
    """Checking a rule does not change what comes out of the user's generator."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check_rule(RULES[0], examples=3)

    assert torch.equal(expected, torch.rand(2))
    assert random.Random(0).random() == random.Random(0).random()
