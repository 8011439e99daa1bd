"""Operator support: tables, chains, denials, and objects that misbehave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from partition_graphs import named, supports, trace
from torch.fx import GraphModule, Node
from torch.fx.passes.operator_support import OperatorSupportBase as TorchOperatorSupportBase
from torch.fx.passes.shape_prop import ShapeProp

from fxpasses.errors import PartitionError, PatternError
from fxpasses.partitioners import (
    CapabilityBasedPartitioner,
    OperatorSupport,
    OperatorSupportBase,
    OpSupports,
    any_chain,
    chain,
    create_op_support,
    create_pattern_support,
)
from fxpasses.partitioners.support import ask_support, target_name


class AddMulSupport(OperatorSupportBase):
    """The classic."""

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        return node.op == "call_function" and node.target in (torch.add, torch.mul)


def add_mul_relu() -> tuple[GraphModule, dict[str, Node]]:
    return trace(lambda x: torch.relu(torch.mul(torch.add(x, 1), 2)))


def test_classic_support_class() -> None:
    """A subclass with ``is_node_supported`` is a support, here and for torch."""
    _, node = add_mul_relu()
    support = AddMulSupport()

    assert [True, True, False] == [support.is_node_supported({}, node[name]) for name in ("add", "mul", "relu")]
    assert isinstance(support, TorchOperatorSupportBase)


def test_a_class_without_the_method_cannot_be_made() -> None:
    """A subclass that lacks ``is_node_supported`` fails when it is made."""

    class Lacking(OperatorSupportBase):
        pass

    with pytest.raises(TypeError, match="is_node_supported"):
        Lacking()


def test_chain_and_any_chain() -> None:
    """``chain`` wants all to agree, ``any_chain`` one; both stop asking as soon as they know."""
    _, node = add_mul_relu()
    asked: list[str] = []

    def only(*targets: Any) -> OperatorSupportBase:
        def support(_: Any, each: Node) -> bool:
            asked.append(each.name)
            return each.target in targets

        return create_op_support(support)

    both = chain(only(torch.add, torch.mul), only(torch.mul))
    either = any_chain(only(torch.add), only(torch.relu))

    assert [False, True, False] == [both.is_node_supported({}, node[name]) for name in ("add", "mul", "relu")]
    assert ["add", "add", "mul", "mul", "relu"] == asked
    assert [True, False, True] == [either.is_node_supported({}, node[name]) for name in ("add", "mul", "relu")]


def test_dtype_table() -> None:
    """A table allows targets, and dtypes for single arguments by position and by keyword."""
    module, node = trace(lambda x, y: torch.relu(torch.add(x, other=y)))
    ShapeProp(module).propagate(torch.ones(2), torch.ones(2, dtype=torch.float64))
    any_dtype = OperatorSupport({"torch.add": None})
    by_position = OperatorSupport({"torch.add": (([torch.float32],), {})})
    by_keyword = OperatorSupport({"torch.add": ((None,), {"other": [torch.float32]})})

    assert any_dtype.is_node_supported({}, node["add"])
    assert not any_dtype.is_node_supported({}, node["relu"])
    assert by_position.is_node_supported({}, node["add"])
    assert not by_keyword.is_node_supported({}, node["add"])
    assert by_keyword.why_not({}, node["add"]) == "torch.add takes torch.float32 there, but y is torch.float64"
    assert any_dtype.why_not({}, node["relu"]) == "torch.relu is not in the table of supported operators"


def test_dtypes_are_read_from_exported_graphs_too() -> None:
    """``meta["val"]`` serves where nobody ran ShapeProp."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return x + 1

    program = torch.export.export(Model(), (torch.ones(2, dtype=torch.float64),))
    node = named(program.graph_module)["add"]

    assert not OpSupports.decline_if_input_dtype(torch.float64).is_node_supported({}, node)
    assert OpSupports.decline_if_input_dtype(torch.float32).is_node_supported({}, node)


def test_target_names() -> None:
    """Names of targets are those that torch's tables use."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x):
            return torch.ops.aten.add.Tensor(torch.nn.functional.linear(self.linear(x).relu()[0], x), 1)

    module = torch.fx.symbolic_trace(Model())
    submodules = dict(module.named_modules())

    found = [target_name(node, submodules) for node in module.graph.nodes if node.op.startswith("call")]

    assert found == [
        "torch.nn.modules.linear.Linear",
        "relu",
        "_operator.getitem",
        "torch._C._nn.linear",
        "torch.ops.aten.add.Tensor",
    ]
    with pytest.raises(PartitionError, match=r"^x is of kind placeholder and calls nothing that could be supported$"):
        target_name(named(module)["x"], submodules)


def test_denials_by_name_path_type_and_target() -> None:
    """Nodes are declined by name, by module path, by module type and by target, each with that reason."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x).relu()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()

        def forward(self, x):
            return self.second(self.first(x)) + 1

    module = torch.export.export(Model(), (torch.ones(1, 2),)).graph_module

    def declined(support: OperatorSupportBase) -> dict[str, str]:
        return {node.name: reason for node, reason in ask_support(module, support).reasons.items()}

    assert declined(OpSupports.decline_if_node_in_names({"relu"})) == {"relu": "denied by name: relu"}
    assert declined(OpSupports.decline_if_module_path(["second"])) == {
        "linear_1": "denied by module path: second",
        "relu_1": "denied by module path: second",
    }
    assert declined(OpSupports.decline_if_module_type([torch.nn.Linear])) == {
        "linear": "denied by module type: Linear",
        "linear_1": "denied by module type: Linear",
    }
    assert declined(OpSupports.decline_if_target(["torch.ops.aten.add.Tensor"])) == {
        "add": "denied by target: torch.ops.aten.add.Tensor"
    }


class Counting(OperatorSupportBase):
    """A support that counts who it is asked about."""

    def __init__(self, answer: bool) -> None:
        self.asked: list[Node] = []
        self.answer = answer

    def is_node_supported(self, submodules: Any, node: Node) -> bool:
        self.asked.append(node)
        return self.answer


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return (x * self.w).relu() + 1


@pytest.mark.parametrize("answer", [True, False])
def test_complaint_35_each_call_is_asked_about_once(answer: bool) -> None:
    """Complaint 35: the support is asked once about each call, never about placeholders, outputs and attributes."""
    module = torch.fx.symbolic_trace(Model())
    support = Counting(answer)

    CapabilityBasedPartitioner(
        module, chain(any_chain(support)), allows_single_node_partition=True
    ).propose_partitions()

    assert ["mul", "relu", "add"] == [node.name for node in support.asked]


def test_complaint_35_always_true_gives_a_module_that_runs() -> None:
    """Complaint 35: support for everything fuses all calls, and the result can be called."""
    module = torch.fx.symbolic_trace(Model())
    expected = module(torch.ones(2))

    fused = CapabilityBasedPartitioner(module, Counting(True)).partition_and_fuse()

    assert torch.equal(expected, fused(torch.ones(2)))
    assert ["x", "fused_0", "output"] == [node.name for node in fused.graph.nodes]


def test_complaint_35_an_exception_is_a_reason() -> None:
    """Complaint 35: a support that raises makes the node unsupported, and what it said is kept."""
    module = torch.fx.symbolic_trace(Model())

    def raising(_: Any, node: Node) -> bool:
        if node.name == "relu":
            raise KeyError("no kernel table")
        return True

    assignment = CapabilityBasedPartitioner(module, create_op_support(raising), True).propose()

    assert assignment.why(named(module)["relu"]) == "its support check raised KeyError: 'no kernel table'"
    assert len(assignment) == 2


@pytest.mark.parametrize("wrong", [3, None, object(), AddMulSupport, "aten.add"])
def test_refuses_what_is_no_support(wrong: Any) -> None:
    """An object without the method, or the class instead of an object, is a TypeError that says what to do."""
    module, _ = add_mul_relu()

    with pytest.raises(PartitionError) as caught:
        CapabilityBasedPartitioner(module, wrong)

    assert isinstance(caught.value, TypeError)
    what = "the class AddMulSupport" if wrong is AddMulSupport else repr(wrong)
    assert str(caught.value) == (
        "an operator support must be an object with a method is_node_supported(submodules, node); "
        f"got {what}; subclass OperatorSupportBase, or wrap a function in create_op_support"
    )


def test_refuses_what_is_no_function() -> None:
    """``create_op_support`` wants a function."""
    with pytest.raises(PartitionError, match=r"^create_op_support takes a function .* not str$"):
        create_op_support("add")


def test_torchs_support_objects_work() -> None:
    """A subclass of torch's own base class is accepted, and its class is named in the reason."""

    class Theirs(TorchOperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Node) -> bool:
            return node.target is torch.add

    module, node = add_mul_relu()

    assignment = CapabilityBasedPartitioner(module, Theirs(), allows_single_node_partition=True).propose()

    assert [node["add"]] == assignment.nodes(0)
    assert assignment.why(node["relu"]) == "unsupported by Theirs"


def test_a_subclass_that_overrides_the_answer_is_asked_itself() -> None:
    """A subclass of a support that explains itself, with an answer of its own, is asked for that answer."""

    class Stricter(OperatorSupport):
        def is_node_supported(self, submodules: Any, node: Node) -> bool:
            return super().is_node_supported(submodules, node) and node.name != "add"

    module, node = add_mul_relu()

    verdicts = ask_support(module, Stricter({"torch.add": None, "torch.mul": None}))

    assert [node["mul"]] == list(verdicts.supported)
    assert verdicts.reasons[node["add"]] == "unsupported by Stricter"


def test_a_lambda_is_named_by_its_place() -> None:
    """The reason of a lambda says where it was written."""
    module, node = add_mul_relu()

    reason = ask_support(module, create_op_support(lambda submodules, node: False)).reasons[node["add"]]

    assert reason.startswith("unsupported by the lambda in line ")
    assert reason.endswith(" of test_support.py")


def test_pattern_support() -> None:
    """``create_pattern_support`` supports what is in a match, and refuses an empty list."""
    module, node = trace(lambda x: torch.relu(torch.mul(torch.add(x, 1), 2)) * 2)
    pattern = torch.fx.symbolic_trace(lambda a, b: torch.relu(torch.mul(a, b))).graph

    support = any_chain(create_pattern_support([pattern]), supports(torch.add))

    assert [node["add"], node["mul"], node["relu"]] == list(ask_support(module, support).supported)
    assert ask_support(module, create_pattern_support([pattern])).reasons[node["add"]] == (
        "in no match of the given patterns"
    )
    with pytest.raises(
        PatternError, match=r"^create_pattern_support got an empty list of patterns; give at least one$"
    ):
        create_pattern_support([])
