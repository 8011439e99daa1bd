"""Rules about pass lists: what each refuses, how they compose, and the order that obeys them."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxpasses import PassBase, PassManager, PipelineError, this_before_that_pass_constraint, topological_sort_passes
from fxpasses.pass_base import pass_result_wrapper
from fxpasses.pass_manager import all_of, must_also_run, must_be_adjacent, must_not_both, validate_constraints


def make(name):
    def pass_(graph_module): ...

    pass_.__name__ = name
    return pass_


A, B, C, D = (make(name) for name in "abcd")


@attrs.frozen
class Fold(PassBase):
    size: int = 1

    def call(self, graph_module):
        return graph_module


@pytest.mark.parametrize(
    ("constraint", "fine", "wrong", "message"),
    [
        (this_before_that_pass_constraint(A, B), [A, C, B], [B, A], "Expected 'a' before 'b' but found 'b' at index 0"),
        (this_before_that_pass_constraint(A, B), [A, A, B], [A, B, A], "found 'b' at index 1 and 'a' at index 2"),
        (
            this_before_that_pass_constraint(A, B),
            [A, B],
            [B],
            "is about 'a', which is not in the pipeline; add it or drop",
        ),
        (must_also_run(A, B), [B, A], [C, A], "'a' needs 'b' in the same pipeline; add it (there are: c, a)"),
        (must_also_run(A, B), [C], [A], "'a' needs 'b'"),
        (must_be_adjacent(A, B), [C, A, B], [A, C, B], "'b' must stand directly after 'a' (index 0), but 'c' does"),
        (must_be_adjacent(A, B), [A, B], [B, A], "must stand directly after 'a' (index 1), but nothing does"),
        (must_not_both(A, B), [A, C], [B, A], "'a' (index 1) and 'b' (index 0) must not both run; remove one"),
        (lambda earlier, later: earlier is not B, [A, B], [B, A], "Expected 'a' before 'b'"),
    ],
)
def test_each_constraint_says_what_is_wrong(constraint, fine, wrong, message):
    validate_constraints(fine, [constraint])
    with pytest.raises(PipelineError) as caught:
        PassManager(wrong, [constraint]).validate_constraints()

    assert message in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_a_constraint_on_a_function_holds_for_what_wraps_it():
    rule, wrapped = this_before_that_pass_constraint(A, B), pass_result_wrapper(A)

    validate_constraints([wrapped, B], [rule])
    with pytest.raises(PipelineError, match="Expected 'a' before 'b' but found 'b' at index 0 and 'a' at index 1"):
        validate_constraints([B, wrapped], [rule])
    assert [wrapped, B] == topological_sort_passes([B, wrapped], [rule])


def test_constraints_compose_and_report_everything():
    rules = this_before_that_pass_constraint(A, B) & must_not_both(A, C) & must_also_run(A, D)

    assert len(rules.constraints) == 3
    assert rules == all_of(*rules.constraints)
    with pytest.raises(PipelineError) as caught:
        validate_constraints([B, A, C], [rules])
    assert all(part in str(caught.value) for part in ("before 'b'", "must not both", "needs 'd'"))
    assert [A, B] == topological_sort_passes([B, A], [rules])


@pytest.mark.parametrize("named", [Fold(3), Fold, "Fold", "fold"])
def test_a_pass_is_meant_by_itself_its_class_or_its_name(named):
    manager = PassManager([A, Fold(3)], [this_before_that_pass_constraint(named, A)])

    manager.solve_constraints()
    assert [Fold(3), A] == manager.passes


def test_adjacent_passes_move_as_one():
    assert [B, C, A, D] == topological_sort_passes([A, B, C, D], [must_be_adjacent(C, A)])
    assert [C, A, B, D] == topological_sort_passes(
        [A, B, C, D], [must_be_adjacent(C, A), this_before_that_pass_constraint(A, B)]
    )


def test_a_rule_that_order_cannot_mend_is_refused_before_the_run():
    with pytest.raises(PipelineError, match="must not both run"):
        PassManager([A, B], [must_not_both(A, B)]).solve_constraints()


def test_contradictions_show_their_circle():
    before = this_before_that_pass_constraint
    with pytest.raises(PipelineError, match="'b' before 'c' before 'b'"):
        PassManager([A, B, C], [before(B, C), before(C, B)]).solve_constraints()
    with pytest.raises(PipelineError, match="cannot stand directly before two passes at once"):
        topological_sort_passes([A, B, C], [must_be_adjacent(A, B), must_be_adjacent(A, C)])
    with pytest.raises(PipelineError, match="make a circle"):
        topological_sort_passes([A, B], [must_be_adjacent(A, B), must_be_adjacent(B, A)])


@given(st.permutations(range(7)), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8))
def test_sorting_obeys_every_rule_and_leaves_a_good_list_alone(order, pairs):
    passes = [make(str(index)) for index in order]
    by_index = dict(zip(order, passes, strict=True))
    rules = [this_before_that_pass_constraint(by_index[a], by_index[b]) for a, b in pairs if a < b]

    ordered = topological_sort_passes(passes, rules)

    validate_constraints(ordered, rules)
    assert sorted(map(id, passes)) == sorted(map(id, ordered))
    assert ordered == topological_sort_passes(ordered, rules)
