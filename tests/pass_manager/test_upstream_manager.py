"""The examples and tests that torch documents for its own pass infrastructure, with only the import line changed."""

import pytest
import torch
from torch import fx

from fxpasses.pass_base import PassBase, PassResult
from fxpasses.pass_manager import (
    PassManager,
    pass_result_wrapper,
    this_before_that_pass_constraint,
    topological_sort_passes,
)


class AddModule(torch.nn.Module):
    def forward(self, x):
        y = torch.add(x, x)
        return torch.add(y, x)


class ReplaceAddWithMulPass(PassBase):
    def call(self, gm) -> PassResult:
        modified = False
        for node in gm.graph.nodes:
            if node.op == "call_function" and node.target == torch.add:
                node.target = torch.mul
                modified = True
        return PassResult(gm, modified)


def replace_mul_with_div_pass(gm) -> PassResult:
    modified = False
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target == torch.mul:
            node.target = torch.div
            modified = True
    return PassResult(gm, modified)


class ReplaceDivWithSubPass(PassBase):
    def call(self, gm):
        for node in gm.graph.nodes:
            if node.op == "call_function" and node.target == torch.div:
                node.target = torch.sub


def replace_sub_with_add_pass(gm) -> None:
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target == torch.sub:
            node.target = torch.add


def targets(gm):
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def test_a_manager_runs_all_kinds_of_passes_until_it_has_no_steps_left():
    traced = fx.symbolic_trace(AddModule())
    pm = PassManager(
        passes=[
            ReplaceAddWithMulPass(),
            replace_mul_with_div_pass,
            pass_result_wrapper(ReplaceDivWithSubPass()),
            pass_result_wrapper(replace_sub_with_add_pass),
        ],
        steps=5,
    )

    pm.validate_constraints()
    assert len(pm.passes) == 4
    res = pm(traced)
    assert isinstance(res.graph_module, fx.GraphModule)
    assert targets(res.graph_module) == [torch.add, torch.add]


def test_an_unfulfillable_constraint_is_a_runtime_error():
    passes = [lambda x: 2 * x for _ in range(10)]
    pm = PassManager(passes)
    pm.add_constraint(this_before_that_pass_constraint(passes[-1], passes[0]))

    with pytest.raises(RuntimeError, match="at index"):
        pm.validate_constraints()


def test_two_passes_run_in_order():
    traced = fx.symbolic_trace(AddModule())

    res = PassManager(passes=[ReplaceAddWithMulPass(), replace_mul_with_div_pass])(traced)

    assert res.graph_module is traced
    assert targets(res.graph_module) == [torch.div, torch.div]


def test_added_checks_raise_their_own_exception():
    traced = fx.symbolic_trace(AddModule())
    pm = PassManager(passes=[ReplaceAddWithMulPass(), replace_mul_with_div_pass])

    def check_div_target(graph_module):
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and node.target != torch.div:
                raise ValueError("Target should be div!")

    pm.add_checks(check_div_target)
    with pytest.raises(ValueError, match="Target should be div!"):
        pm(traced)


def test_a_check_with_two_parameters_is_a_type_error():
    def check_bad_args(graph_module, i):
        pass

    with pytest.raises(TypeError, match="should only take in one variable, a module"):
        PassManager().add_checks(check_bad_args)


def test_topological_sort_finds_the_documented_order():
    def make(index):
        def pass_(x):
            return x

        pass_.__name__ = f"pass{index}"
        return pass_

    p = [make(index) for index in range(6)]
    before = this_before_that_pass_constraint

    assert topological_sort_passes(p, []) == p
    rules = [before(p[5], p[0]), before(p[5], p[2]), before(p[4], p[0]), before(p[4], p[1])]
    rules += [before(p[2], p[3]), before(p[3], p[1])]
    assert topological_sort_passes(p, rules) == [p[4], p[5], p[0], p[2], p[3], p[1]]


def test_a_circular_dependency_says_what_upstream_says():
    def pass0(x): ...
    def pass1(x): ...
    def pass2(x): ...

    passes = [pass0, pass1, pass2]
    before = this_before_that_pass_constraint
    rules = [before(pass0, pass1), before(pass1, pass2), before(pass2, pass0)]

    with pytest.raises(RuntimeError) as caught:
        topological_sort_passes(passes, rules)
    assert caught.value.args[0] == f"Circular dependency detected within the following passes: {passes}"
    assert str(caught.value).endswith("; 'pass0' before 'pass1' before 'pass2' before 'pass0'")


def test_an_error_names_the_passes_that_ran_before():
    def pass_fail(graph_module):
        raise RuntimeError("bad")

    traced = fx.symbolic_trace(AddModule())
    pm = PassManager(passes=[ReplaceAddWithMulPass(), replace_mul_with_div_pass, pass_fail])
    with pytest.raises(Exception, match=r"ReplaceAddWithMulPass.*replace_mul_with_div_pass"):
        pm(traced)

    pm = PassManager(
        passes=[ReplaceAddWithMulPass(), pass_result_wrapper(replace_mul_with_div_pass), pass_fail],
    )
    with pytest.raises(Exception, match=r"ReplaceAddWithMulPass.*replace_mul_with_div_pass"):
        pm(traced)


def test_a_passbase_without_call_cannot_be_made():
    class TestPass(PassBase):
        def __init__(self):
            pass

    with pytest.raises(TypeError):
        TestPass()
