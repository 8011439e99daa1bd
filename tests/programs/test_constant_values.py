"""The tensors behind a graph's attributes and a program's lifted inputs, and the program a pass works on."""

from __future__ import annotations

import pytest
import torch

from fxpasses.programs.constant_values import Constants
from fxpasses.programs.current_program import program_of, working_on


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x):
        self.count.add_(1)
        return x * self.weight + self.count


@pytest.fixture
def program():
    return torch.export.export(Model(), (torch.ones(2),))


def named(module):
    return {node.name: node for node in module.graph.nodes}


def test_the_program_is_known_only_while_a_pass_works_on_it(program):
    with working_on(program):
        inside = program_of(program.graph_module)
        other = program_of(torch.fx.symbolic_trace(torch.nn.ReLU()))

    assert inside is program
    assert other is None
    assert program_of(program.graph_module) is None


def test_lifted_inputs_of_a_program_are_constants_unless_written(program):
    with working_on(program):
        constants = Constants.of(program.graph_module)
    nodes = named(program.graph_module)

    assert constants.tensor(nodes["p_weight"]) is program.state_dict["weight"]
    assert constants.tensor(nodes["b_count"]) is None
    assert constants.tensor(nodes["x"]) is None
    assert constants.name(nodes["p_weight"]) == "weight"


def test_attributes_of_a_module_are_constants_unless_written(program):
    module = program.module()
    constants = Constants.of(module)
    nodes = named(module)

    assert constants.tensor(nodes["weight"]) is module.weight
    assert constants.tensor(nodes["count"]) is None


def test_new_constants_get_free_names_and_unused_ones_go(program):
    with working_on(program):
        constants = Constants.of(program.graph_module)
        mul = next(node for node in program.graph.nodes if node.name == "mul")
        first = constants.add("weight", torch.zeros(2), before=mul, replaces=[])
        second = constants.add("weight", torch.nn.Parameter(torch.zeros(2)), before=mul, replaces=[])
        targets = [constants.name(first), constants.name(second)]
        constants.drop_unused([first, second])
    program.validate()

    assert ["weight_0", "weight_1"] == targets
    assert ["weight"] == [name for name in program.state_dict if name.startswith("weight")]


def test_fake_tensors_are_no_constants():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = Model()
    module = torch.fx.symbolic_trace(model)
    constants = Constants.of(module)

    assert [None, None] == [constants.tensor(node) for node in module.graph.find_nodes(op="get_attr")]
