"""Arguments by schema name: however they were written, they are the same."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx import Graph, symbolic_trace

from fxpasses.arguments import (
    REQUIRED,
    bind_arguments,
    canonical_arguments,
    coerce_scalars,
    get_argument,
    getitem_of,
    getitem_users,
    is_call_to,
    is_getitem,
    map_arguments_by_schema,
    normalized_arguments,
    only_user,
    producer_and_index,
    set_argument,
    signature_for,
    signature_of,
    target_name,
    tensor_arguments,
)
from fxpasses.errors import GraphError

aten = torch.ops.aten


def call(target, *args, op="call_function", **kwargs):
    """A graph with one call; ``x`` and ``y`` in the arguments stand for inputs."""
    graph = Graph()
    inputs = {name: graph.placeholder(name) for name in "xy"}
    args = tuple(inputs.get(arg, arg) if isinstance(arg, str) else arg for arg in args)
    kwargs = {name: inputs.get(arg, arg) if isinstance(arg, str) else arg for name, arg in kwargs.items()}
    return graph.create_node(op, target, args, kwargs)


def shown(named):
    return {name: str(value) for name, value in named.items()}


@pytest.mark.parametrize(
    "node",
    [
        call(aten.sum.dim_IntList, "x", [1], False),
        call(aten.sum.dim_IntList, "x", [1]),
        call(aten.sum.dim_IntList, "x", dim=[1]),
        call(aten.sum.dim_IntList, self="x", keepdim=False, dim=[1], dtype=None),
    ],
)
def test_all_spellings_of_a_call_have_the_same_arguments(node):
    expected = {"self": "x", "dim": "[1]", "keepdim": "False", "dtype": "None"}

    assert expected == shown(normalized_arguments(node))
    assert "((x, [1]), {})" == str(canonical_arguments(node))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (call(torch.sum, "x", dim=1), {"self": "x", "dim": "1", "keepdim": "False", "dtype": "None"}),
        (
            call(torch.sum, input="x", axis=1, keepdims=True),
            {"self": "x", "dim": "1", "keepdim": "True", "dtype": "None"},
        ),
        (call(torch.sum, "x"), {"self": "x", "dtype": "None"}),
        (call("view", "x", 2, -1, op="call_method"), {"self": "x", "size": "(2, -1)"}),
        (call("view", "x", (2, -1), op="call_method"), {"self": "x", "size": "(2, -1)"}),
        (call("transpose", "x", 0, 1, op="call_method"), {"self": "x", "dim0": "0", "dim1": "1"}),
        (call(torch.add, "x", 2), {"self": "x", "other": "2", "alpha": "1"}),
        (call(operator.add, "x", 2), {"a": "x", "b": "2"}),
        (call(torch.nn.functional.relu, "x"), {"input": "x", "inplace": "False"}),
        (call(aten.add.Tensor, "x", other="y"), {"self": "x", "other": "y", "alpha": "1"}),
    ],
)
def test_functions_methods_and_operators_name_their_arguments(node, expected):
    assert expected == shown(normalized_arguments(node))


def test_a_module_names_the_arguments_of_its_forward():
    module = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    node = module.graph.find_nodes(op="call_module")[0]

    assert {"input": "input_1"} == shown(normalized_arguments(node))


def test_without_defaults_only_what_is_given_is_named():
    assert ["self", "dim"] == list(bind_arguments(call(aten.sum.dim_IntList, "x", [1]), defaults=False))


def test_the_value_of_an_argument_chooses_the_overload():
    tensor, number = call(torch.mul, "x", "y"), call(torch.mul, "x", "y")
    tensor.args[1].meta["val"] = torch.ones(2)
    number.args[1].meta["val"] = 3

    assert "TensorType" == signature_for(tensor)["other"].type.kind()
    assert "NumberType" == signature_for(number)["other"].type.kind()


def test_one_argument_is_read_by_name_with_its_default():
    node = call(aten.sum.dim_IntList, "x", [1])

    assert [1] == get_argument(node, "dim")
    assert get_argument(node, "keepdim") is False


def test_an_unknown_argument_lists_those_there_are():
    with pytest.raises(GraphError, match=r"has no argument 'axis'; it has: self, dim, keepdim, dtype") as caught:
        get_argument(call(aten.sum.dim_IntList, "x", [1]), "axis")

    assert caught.value.node.target is aten.sum.dim_IntList


@pytest.mark.parametrize(
    ("node", "name", "value", "args", "kwargs"),
    [
        (call(aten.sum.dim_IntList, "x", [1]), "dim", [0], "(x, [0])", {}),
        (call(aten.sum.dim_IntList, "x", [1]), "keepdim", True, "(x, [1], True)", {}),
        (call(aten.softmax.int, "x", 1), "dtype", torch.half, "(x, 1, torch.float16)", {}),
        (call(aten.sum.dim_IntList, "x", dim=[1]), "dim", [0], "(x,)", {"dim": [0]}),
        (call(aten.sum.dim_IntList, "x", [1]), "dtype", torch.half, "(x, [1])", {"dtype": torch.half}),
        (call(aten.conv2d.default, "x", "y"), "groups", 2, "(x, y, None, [1, 1], [0, 0], [1, 1], 2)", {}),
        (call("view", "x", 2, -1, op="call_method"), "size", [6], "(x, [6])", {}),
    ],
)  # fmt: skip
def test_one_argument_is_set_where_it_stands_or_belongs(node, name, value, args, kwargs):
    set_argument(node, name, value)

    assert (args, kwargs) == (str(node.args), dict(node.kwargs))


def test_a_call_whose_target_does_not_tell_its_arguments_is_an_error():
    with pytest.raises(GraphError, match=r"no schema is known for .float\(\)"):
        normalized_arguments(call("float", "x", op="call_method"))
    with pytest.raises(GraphError, match="placeholder node 'x'"):
        normalized_arguments(call(torch.relu, "x").args[0])


@pytest.mark.parametrize(
    ("node", "match"),
    [
        (call(aten.relu.default, "x", 1), r"2 positional arguments for \(self\)"),
        (call(aten.relu.default), "argument 'self' is missing"),
        (call(aten.relu.default, "x", self="x"), "argument 'self' is given by position and by keyword"),
        (call(aten.relu.default, "x", alpha=1), "no argument named 'alpha'; there are: self"),
    ],
)
def test_arguments_that_do_not_fit_say_how(node, match):
    with pytest.raises(GraphError, match=match):
        normalized_arguments(node)


def test_a_signature_tells_defaults_and_keywords():
    signature = signature_of(aten.add.Tensor)

    assert ("self", "other", "alpha") == signature.names
    assert (REQUIRED, 1) == (signature["self"].default, signature["alpha"].default)
    assert signature["alpha"].keyword_only
    assert signature_of(torch.sum) is None  # overloads: one needs a node to choose


def test_variadic_python_functions_keep_the_rest_together():
    def many(first, *rest, **options): ...

    named = normalized_arguments(call(many, "x", 1, 2, flag=True))

    assert {"first": "x", "rest": "(1, 2)", "options": "{'flag': True}"} == shown(named)
    assert "((x, 1, 2), {'flag': True})" == str(canonical_arguments(call(many, "x", 1, 2, flag=True)))


def test_arguments_are_mapped_with_their_schema():
    seen = []

    def double(value, argument):
        seen.append((argument.name, argument.kwarg_only))
        return value * 2

    args, kwargs = map_arguments_by_schema(aten.add.Tensor, double, (1, 2), {"alpha": 3})

    assert [("self", False), ("other", False), ("alpha", True)] == seen
    assert ((2, 4), {"alpha": 6}) == (args, kwargs)


def test_mapping_needs_an_operator_with_a_schema():
    with pytest.raises(GraphError, match="has no schema of its own: give an OpOverload such as"):
        map_arguments_by_schema(torch.add, lambda value, _: value, (1, 2), {})


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [(torch.float32, 2, torch.int64), (torch.float32, 0.1, torch.float32), (torch.float64, 0.1, torch.float64),
     (torch.float64, True, torch.bool)],
)  # fmt: skip
def test_scalars_become_tensors_of_a_fitting_type(dtype, value, expected):
    (_, made), kwargs = coerce_scalars(aten.add.Tensor, (torch.ones(2, dtype=dtype), value), {"alpha": 2})

    assert (expected, ()) == (made.dtype, tuple(made.shape))
    assert {"alpha": 2} == kwargs  # a Scalar in the schema stays one


def test_tensor_arguments_are_told_from_the_others():
    node = call(aten.cat.default, ["x", "y"], 1)
    node.args = (node.graph.find_nodes(op="placeholder"), 1)

    assert {"tensors": "[x, y]"} == shown(tensor_arguments(node))
    assert {"self": "x"} == shown(tensor_arguments(call(aten.sum.dim_IntList, "x", [1])))


def test_elements_of_a_tuple_are_found_both_ways():
    graph = Graph()
    parts = graph.call_function(aten.split.Tensor, (graph.placeholder("x"), 2))
    first, again, other = (graph.call_function(operator.getitem, (parts, index)) for index in (0, 0, 1))
    deep = graph.call_function(operator.getitem, (other, 3))

    assert {0: [first, again], 1: [other]} == getitem_users(parts)
    assert getitem_of(parts, 1) is other
    assert getitem_of(parts, 7) is None
    assert (parts, (1, 3)) == producer_and_index(deep)
    assert is_getitem(first)
    assert not is_getitem(parts)
    assert only_user(other) is deep
    assert only_user(parts) is None


def test_calls_are_recognized_by_overload_packet_function_or_method():
    node = call(aten.add.Tensor, "x", "y")

    assert is_call_to(node, aten.add.Tensor)
    assert is_call_to(node, aten.mul, aten.add)
    assert not is_call_to(node, aten.add.Scalar)
    assert is_call_to(call("relu", "x", op="call_method"), "relu", torch.relu)
    assert not is_call_to(node.args[0], "x")
    assert not is_call_to(3, aten.add)


@pytest.mark.parametrize(
    ("node", "name"),
    [(call(aten.add.Tensor, "x", "y"), "aten.add.Tensor"), (call("view", "x", 1, op="call_method"), ".view()"),
     (call(torch.relu, "x"), "relu"), (call("a.b", "x", op="call_module"), "a.b")],
)  # fmt: skip
def test_targets_have_short_names(node, name):
    assert name == target_name(node)
