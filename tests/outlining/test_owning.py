"""Passes edit copies of the bodies that ``ep.module()`` shares with its program."""

import copy

import pytest
import torch

from fxpasses import ExportPass, PassManager
from fxpasses.outlining.owning import own_bodies
from fxpasses.passes import replace_pattern, split_module
from fxpasses.passes.rewriting import Rule, RuleSet
from fxpasses.programs.moving import move_to_device

aten = torch.ops.aten


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.relu(), lambda x: x.relu() + 1, (x,)) * 2


class UseNeg(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(aten.neg.default if op == aten.relu.default else op, args, kwargs, meta)


X = torch.tensor([-1.0, 5.0])


def program():
    return torch.export.export(Branches(), (X,))


def rewrite(module):
    replace_pattern(module, lambda x: aten.relu.default(x), lambda x: aten.neg.default(x))


def apply_rules(module):
    RuleSet([Rule(lambda x: aten.relu.default(x), lambda x: aten.neg.default(x))]).apply(module)


def split_and_rewrite(module):
    split = split_module(module, None, lambda node: 0)
    rewrite(split)
    return split


EDITS = [rewrite, apply_rules, PassManager([rewrite]), UseNeg(), UseNeg().call]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_stays_in_the_module_that_was_given(edit):
    given = program()
    module = given.module()
    edit(module)

    assert [2.0, -10.0] == module(X).tolist()
    assert [0.0, 10.0] == given.module()(X).tolist()


def test_what_was_split_off_is_edited_alone():
    given = program()
    module = given.module()

    assert [2.0, -10.0] == split_and_rewrite(module)(X).tolist()
    assert [[0.0, 10.0]] * 2 == [module(X).tolist(), given.module()(X).tolist()]


def test_moving_leaves_the_program_where_it_was():
    given = program()
    before = given.graph_module.true_graph_0
    move_to_device(given.module(), "meta")

    assert {"cpu"} == {node.meta["val"].device.type for node in before.graph.find_nodes(op="placeholder")}


def test_a_body_is_copied_once():
    """A second pass edits what the first one has made."""
    module = program().module()
    shared = module.true_graph_0
    rewrite(module)
    own = module.true_graph_0
    result = UseNeg()(module)

    assert shared is not own
    assert own is module.true_graph_0
    assert result.modified is False


def test_names_metadata_and_tensors_stay():
    module = program().module()
    shared = module.true_graph_0
    shared.meta["note"] = 1
    shared.register_buffer("state", X)
    own_bodies(module)
    own = module.true_graph_0

    assert {"note": 1} == own.meta
    assert own.state is X
    assert [(node.name, node.meta) for node in shared.graph.nodes] == [
        (node.name, node.meta) for node in own.graph.nodes
    ]


def test_a_body_that_is_used_twice_stays_one():
    module = program().module()
    module.false_graph_0 = module.true_graph_0
    own_bodies(module)

    assert module.false_graph_0 is module.true_graph_0


def test_what_changed_nothing_says_so():
    result = PassManager([lambda module: None])(program().module())

    assert result.modified is False


def test_a_failed_pass_leaves_both_as_they_were():
    def fail(module):
        raise ValueError("no")

    given = program()
    module = given.module()
    with pytest.raises(ValueError, match="no"):
        PassManager([rewrite, fail])(module)

    assert [[0.0, 10.0]] * 2 == [module(X).tolist(), given.module()(X).tolist()]


def test_copies_of_an_edited_module_are_their_own():
    module = program().module(check_guards=False)
    rewrite(module)
    copied = copy.deepcopy(module)
    replace_pattern(copied, lambda x: aten.neg.default(x), lambda x: aten.relu.default(x))

    assert [0.0, 10.0] == copied(X).tolist()
    assert [2.0, -10.0] == module(X).tolist()


def test_passes_on_a_program_edit_it():
    given = program()
    PassManager([UseNeg()])(given)

    assert [2.0, -10.0] == given.module()(X).tolist()
