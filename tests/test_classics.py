"""The classics that every pass framework is learned with, by PassBase and PassManager."""

import attrs
import pytest
import torch
from torch import fx

from fxpasses import (
    CheckError,
    PassBase,
    PassError,
    PassManager,
    PassResult,
    create_node,
    insert_before,
    replace_node,
)
from fxpasses.arguments import map_arguments_by_schema
from fxpasses.checks import lint, metadata_is_complete, same_outputs, signature_is_valid

aten = torch.ops.aten


class InPlace(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        return torch.relu_(y).detach() * 2


class Adds(torch.nn.Module):
    def forward(self, x, y):
        return torch.add(torch.add(x, y), y)


def exported(model, *inputs):
    return torch.export.export(model, inputs)


def functions(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


@attrs.frozen
class ReplaceInPlaceRelu(PassBase):
    """Replace ``relu_`` by ``relu``."""

    target_ops = (aten.relu_.default,)

    def call(self, graph_module):
        nodes = graph_module.graph.find_nodes(op="call_function", target=aten.relu_.default)
        for node in nodes:
            new = insert_before(node, aten.relu.default, node.args, replaces=[node])
            replace_node(node, new)
        return PassResult(graph_module, bool(nodes))


@attrs.frozen
class AddBecomesMulThenSub(PassBase):
    """Replace ``add(x, y)`` by ``sub(mul(x, y), y)``."""

    def call(self, graph_module):
        nodes = graph_module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
        for node in nodes:
            with graph_module.graph.inserting_before(node):
                product = create_node(graph_module.graph, "call_function", aten.mul.Tensor, node.args, replaces=[node])
                args = (product, node.args[1])
                difference = create_node(graph_module.graph, "call_function", aten.sub.Tensor, args, replaces=[node])
            replace_node(node, difference)
        return PassResult(graph_module, bool(nodes))


@attrs.frozen
class RemoveDetach(PassBase):
    """Replace every ``aten.detach`` by its input."""

    def call(self, graph_module):
        detaches = graph_module.graph.find_nodes(op="call_function", target=aten.detach.default)
        for node in detaches:
            replace_node(node, node.all_input_nodes[0])
        return PassResult(graph_module, modified=bool(detaches))


@attrs.frozen
class CoerceScalars(PassBase):
    """Turn numbers into tensors where the schema asks for a tensor."""

    def call(self, graph_module):
        for node in list(graph_module.graph.nodes):
            if isinstance(node.target, torch._ops.OpOverload):
                node.args, node.kwargs = map_arguments_by_schema(
                    node.target, self._coerce(node), node.args, node.kwargs
                )
        return PassResult(graph_module, True)

    @staticmethod
    def _coerce(node):
        def coerce(value, argument):
            if isinstance(value, (int, float)) and argument.type.kind() == "TensorType":
                return insert_before(node, aten.scalar_tensor.default, (value,))
            return value

        return coerce


@attrs.frozen
class Swap(PassBase):
    """Replace one function by another; refuse a graph where there is nothing to swap."""

    old: object
    new: object

    def requires(self, graph_module):
        if self.old not in functions(graph_module):
            raise ValueError(f"nothing to swap: there is no {self.old}")

    def call(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=self.old):
            node.target = self.new
        return PassResult(graph_module, True)


CHECKS = [lint, metadata_is_complete, signature_is_valid]


def test_in_place_relu_becomes_relu():
    program, x = exported(InPlace(), torch.ones(3)), torch.randn(3)
    want = program.module()(x)

    result = PassManager([ReplaceInPlaceRelu()], checks=[*CHECKS, same_outputs((x,))])(program)

    assert aten.relu.default in functions(result.graph_module)
    assert torch.equal(want, result.exported_program.module()(x))
    assert not PassManager([ReplaceInPlaceRelu()])(result).modified


def test_add_becomes_mul_then_sub():
    x, y = torch.randn(3), torch.randn(3)
    program = exported(Adds(), x, y)

    result = PassManager([AddBecomesMulThenSub()], checks=CHECKS)(program)

    assert [aten.mul.Tensor, aten.sub.Tensor] * 2 == functions(result.graph_module)
    assert torch.equal((x * y - y) * y - y, result.exported_program.module()(x, y))
    for node in result.graph_module.graph.find_nodes(op="call_function", target=aten.sub.Tensor):
        assert node.meta["val"].shape == (3,)
        assert "test_classics.py" in node.meta["stack_trace"]
        assert "AddBecomesMulThenSub" in [source.pass_name for source in node.meta["from_node"]]


def test_detach_is_removed():
    program, x = exported(InPlace(), torch.ones(3)), torch.randn(3)
    want = program.module()(x)
    before = len(program.graph_module.graph.nodes)

    result = PassManager([RemoveDetach()], checks=[*CHECKS, same_outputs((x,))])(program)

    assert aten.detach.default not in functions(result.graph_module)
    assert len(result.graph_module.graph.nodes) < before
    assert torch.equal(want, result.exported_program.module()(x))
    again = RemoveDetach()(result)
    assert not again.modified
    assert again.graph_module is result.graph_module


def test_scalars_become_tensors_by_the_types_of_the_schema():
    program, x = exported(InPlace(), torch.ones(3)), torch.randn(3)
    want = program.module()(x)

    result = PassManager([CoerceScalars()], checks=CHECKS)(program)

    assert 2 == functions(result.graph_module).count(aten.scalar_tensor.default)
    assert torch.equal(want, result.exported_program.module()(x))
    assert not PassManager([CoerceScalars()])(result).modified


def test_requires_refuses_a_graph_with_nothing_to_swap():
    module = fx.symbolic_trace(Adds())

    assert torch.mul in functions(Swap(torch.add, torch.mul)(module).graph_module)
    with pytest.raises(ValueError, match="nothing to swap"):
        Swap(torch.add, torch.mul)(module)
    with pytest.raises(PassError, match="running the 'Swap' pass") as caught:
        PassManager([Swap(torch.mul, torch.div), Swap(torch.add, torch.mul)])(module)
    assert 1 == caught.value.index
    assert torch.mul in functions(module)


def check_no_div(graph_module):
    if torch.div in functions(graph_module):
        raise ValueError("there must be no div")


def test_a_check_of_a_manager_rejects_a_target_after_the_second_pass():
    module = fx.symbolic_trace(Adds())
    manager = PassManager([Swap(torch.add, torch.mul), Swap(torch.mul, torch.div)], run_checks_after_each_pass=True)
    manager.add_checks(check_no_div)

    with pytest.raises(ValueError, match="there must be no div") as caught:
        manager(module)

    assert isinstance(caught.value, CheckError)
    assert ("Swap", 1) == (caught.value.pass_name, caught.value.index)
    assert [torch.add, torch.add] == functions(module)


def test_the_same_pipeline_runs_on_every_kind_of_graph():
    pipeline = PassManager([ReplaceInPlaceRelu(), RemoveDetach()], checks=[lint])
    x = torch.randn(3)
    want = InPlace()(x)
    program = exported(InPlace(), torch.ones(3))

    for subject in (program, exported(InPlace(), torch.ones(3)).module()):
        result = pipeline(subject)
        assert result.modified
        callable_ = result.exported_program.module() if subject is program else result.graph_module
        assert torch.equal(want, callable_(x))
    assert not pipeline(fx.symbolic_trace(InPlace())).modified
