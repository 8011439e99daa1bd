"""What users of ExecuTorch's pass managers write, with only the import line changed."""

import operator

import pytest
import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from fxpasses import (
    ExportedProgramPassBase,
    ExportedProgramPassManager,
    ExportedProgramPassResult,
    ExportPass,
    ExportPassBaseError,
    PassManager,
    ProxyValue,
)


class WithConstant(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.ones(3)

    def forward(self, x):
        return x + self.weight


class Identity(torch.nn.Module):
    def forward(self, x):
        return x


class DoubleConstants(ExportedProgramPassBase):
    def call(self, exported_program):
        for key, constant in exported_program.constants.items():
            exported_program.constants[key] = constant * 2
        return ExportedProgramPassResult(exported_program, True)


class AddConstant(ExportedProgramPassBase):
    def call(self, exported_program):
        graph = exported_program.graph_module.graph
        (user_input,) = graph.find_nodes(op="placeholder")
        constant = torch.tensor([1.0, 2.0, 3.0])
        with graph.inserting_before(user_input):
            placeholder = graph.placeholder("added_constant")
            placeholder.meta["val"] = constant
        exported_program.constants["added_constant"] = constant
        spec = InputSpec(
            kind=InputKind.CONSTANT_TENSOR,
            arg=TensorArgument(name=placeholder.name),
            target="added_constant",
            persistent=False,
        )
        signature = exported_program.graph_signature
        signature.input_specs = (spec, signature.input_specs[0])
        return ExportedProgramPassResult(exported_program, modified=True)


def replace_add_with_mul(graph_module):
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and "aten.add.Tensor" in str(node.target):
            node.target = torch.mul


def replace_mul_with_div(graph_module):
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.target == torch.mul:
            node.target = torch.div


def test_functions_run_under_the_old_manager():
    module = torch.export.export(WithConstant(), (torch.randn(3),)).graph_module
    manager = PassManager(passes=[replace_add_with_mul, replace_mul_with_div])

    assert 2 == len(manager.passes)
    manager(module)
    assert [torch.div] == [node.target for node in module.graph.nodes if node.op == "call_function"]


def test_constants_are_changed_by_a_program_pass():
    program = torch.export.export(WithConstant(), (torch.randn(3),))

    result = ExportedProgramPassManager(passes=[DoubleConstants()])(program)

    assert isinstance(result, ExportedProgramPassResult)
    assert result.modified
    (constant,) = result.exported_program.constants.values()
    assert torch.equal(torch.full((3,), 2.0), constant)


def test_a_constant_is_added_by_a_program_pass():
    program = torch.export.export(Identity(), (torch.randn(3),))

    result = ExportedProgramPassManager(passes=[AddConstant()], run_checks_after_each_pass=True)(program)

    after = result.exported_program
    assert result.modified
    assert {"added_constant"} == set(after.constants)
    specs = {spec.target: spec.kind for spec in after.graph_signature.input_specs}
    assert InputKind.CONSTANT_TENSOR == specs["added_constant"]
    assert 2 == len(after.graph_module.graph.find_nodes(op="placeholder"))
    after.validate()


class Flatten(torch.nn.Module):
    def forward(self, x):
        return x.view(x.size(0), -1)


def dynamic_module():
    dynamic = ({0: torch.export.Dim("batch", min=1, max=8)},)
    return torch.export.export(Flatten(), (torch.randn(2, 3),), dynamic_shapes=dynamic, strict=True).graph_module


class CollapseInputs(ExportPass):
    def placeholder(self, name, arg, meta):
        proxy = super().placeholder(name, arg, meta)
        if any(isinstance(size, torch.SymInt) for size in arg.shape):
            proxy.node.meta["val"] = torch.empty(2, 3, device="meta")
        return proxy


def test_an_input_that_loses_its_symbols_is_refused():
    with pytest.raises(ExportPassBaseError, match="Input at position 0 did not preserve symbolic metadata"):
        CollapseInputs()(dynamic_module())


def test_a_subclass_may_let_inputs_lose_their_symbols():
    class Allowed(CollapseInputs):
        def should_preserve_symbolic_input_metadata(self):
            return False

    after = Allowed()(dynamic_module()).graph_module

    assert (2, 3) == tuple(next(iter(after.graph.nodes)).meta["val"].shape)


@pytest.mark.parametrize(
    ("convert", "words"),
    [(bool, "boolean context"), (int, "converted to int"), (operator.index, "used in index context")],
)
def test_symbolic_values_are_not_coerced(convert, words):
    (size,) = [n for n in dynamic_module().graph.nodes if isinstance(n.meta.get("val"), torch.SymInt)][:1]

    with pytest.raises(ExportPassBaseError, match=words):
        convert(ProxyValue(size.meta["val"], torch.fx.Graph().placeholder("x")))
