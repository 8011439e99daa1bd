from __future__ import annotations

import random
import re

import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import observe, random_program, same
from torch.export import Dim, export
from torch.fx import Graph, GraphModule, Node, symbolic_trace

from fxpasses.editing import (
    add_constant,
    create_node,
    erase_nodes,
    extract_submodule,
    inline_submodule,
    insert_after,
    insert_before,
    nested_graph_modules,
    remove_unused_attributes,
    replace_node,
    replace_nodes,
)
from fxpasses.errors import CycleError, FakeValueError, GraphError
from fxpasses.journal import Snapshot
from fxpasses.metadata import MetaKey, running_pass

aten = torch.ops.aten
COST = MetaKey[int]("tests.editing.cost", made_by="MeasureCost()")
TRACE = ("stack_trace", "nn_module_stack", "torch_fn", "from_node", "val")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).relu() + 1


def program():
    return export(Net().requires_grad_(False), (torch.randn(2, 4),), dynamic_shapes=({0: Dim.DYNAMIC},))


def node_named(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if node.name == name)


# --- creating ---


def test_a_created_node_carries_value_and_origin_of_what_it_replaces() -> None:
    """val, stack_trace, nn_module_stack, torch_fn and from_node with the pass's name, on a node made for another."""
    graph = program().graph
    relu = node_named(graph, "relu")

    with running_pass("SwapRelu"):
        new = insert_after(relu, aten.tanh.default, (relu.args[0],), replaces=[relu])

    assert all(key in new.meta for key in TRACE)
    assert relu.meta["stack_trace"] == new.meta["stack_trace"]
    assert relu.meta["nn_module_stack"] == new.meta["nn_module_stack"]
    assert [("relu", "SwapRelu")] == [(source.name, source.pass_name) for source in new.meta["from_node"]]
    assert "s" in str(new.meta["val"].shape[0])
    assert new.meta["val"].fake_mode is relu.meta["val"].fake_mode


def test_a_node_that_replaces_nothing_lies_where_its_input_lies() -> None:
    """An inserted node takes the module stack and the source line of the last of its inputs."""
    graph = program().graph
    relu = node_named(graph, "relu")

    new = insert_after(relu, aten.neg.default, (relu,))

    assert relu.meta["nn_module_stack"] == new.meta["nn_module_stack"]
    assert relu.meta["nn_module_stack"] is not new.meta["nn_module_stack"]
    assert "relu" == new.meta["from_node"][0].name


def test_a_node_of_inputs_only_lies_beside_its_neighbour() -> None:
    """A node computed from placeholders, or from nothing, takes the origin of the next node that has one."""
    graph = program().graph
    x = graph.find_nodes(op="placeholder")[-1]

    from_input = insert_after(x, aten.neg.default, (x,))
    from_nothing = insert_after(x, aten.full.default, ([2], 1.0))

    linear = node_named(graph, "linear")
    assert linear.meta["stack_trace"] == from_input.meta["stack_trace"] == from_nothing.meta["stack_trace"]
    assert "val" in from_nothing.meta


def test_insert_before_and_after_put_nodes_where_they_say() -> None:
    """insert_after a placeholder goes behind the last placeholder, so that placeholders stay first."""
    graph = program().graph
    relu = node_named(graph, "relu")
    first = graph.find_nodes(op="placeholder")[0]

    before = insert_before(relu, aten.neg.default, (relu.args[0],))
    after = insert_after(relu, aten.neg.default, (relu,))
    behind = insert_after(first, aten.neg.default, (first,))

    assert relu.prev is before
    assert relu.next is after
    assert "placeholder" == behind.prev.op
    graph.lint()


def test_foreign_and_erased_arguments_are_refused() -> None:
    """A node of another graph, or one that was erased, cannot become an argument."""
    graph = program().graph
    relu = node_named(graph, "relu")
    other = node_named(program().graph, "relu")
    gone = insert_after(relu, aten.neg.default, (relu,))
    graph.erase_node(gone)

    with pytest.raises(GraphError, match=re.escape("its argument 'relu' belongs to another graph")):
        insert_after(relu, aten.neg.default, (other,))
    with pytest.raises(GraphError, match=re.escape("its argument 'neg_default' was erased")):
        insert_after(relu, aten.neg.default, (gone,))
    with pytest.raises(GraphError, match=re.escape("cannot insert after 'neg_default': it was erased")):
        insert_after(gone, aten.neg.default, (relu,))


def test_a_get_attr_of_nothing_is_refused() -> None:
    """A constant has to hang on the module before a node reads it."""
    graph_module = symbolic_trace(torch.nn.ReLU())
    message = (
        "cannot create a get_attr node for 'weight': the graph module has no such attribute; hang it there first, for "
        "instance with add_constant"
    )

    with pytest.raises(GraphError, match=re.escape(message)):
        create_node(graph_module.graph, "get_attr", "weight")


def test_impossible_nodes_are_refused_with_a_sentence() -> None:
    """A wrong kind, a target that does not go with it, and an argument that stands too late."""
    graph = program().graph
    relu, late = node_named(graph, "relu"), node_named(graph, "relu_1")
    before = str(graph)

    with pytest.raises(
        GraphError, match=re.escape("'nonsense' is no kind of node; there are call_function, call_method")
    ):
        create_node(graph, "nonsense", "relu", (relu,))
    with pytest.raises(GraphError, match=re.escape("a call_function node calls a function, and 'relu' is a str")):
        create_node(graph, "call_function", "relu", (relu,))
    with pytest.raises(GraphError, match=re.escape("the target of a call_method node is a name, not <built-in")):
        create_node(graph, "call_method", torch.relu, (relu,))
    with pytest.raises(GraphError, match=re.escape("its argument 'relu_1' stands further down; insert it after that")):
        insert_after(relu, aten.neg.default, (late,))

    assert before == str(graph)


# --- replacing ---


def test_replacing_refreshes_whoever_uses_the_value() -> None:
    """After a node is replaced by one of another dtype, all values downstream say so, and their entries are dropped."""
    graph = program().graph
    relu = node_named(graph, "relu_1")
    add = node_named(graph, "add")
    COST.write(add, 5)

    new = insert_after(relu, aten._to_copy.default, (relu.args[0],), {"dtype": torch.float64}, replaces=[relu])
    given = replace_node(relu, new)

    assert given is new
    assert relu._erased
    assert torch.float64 == add.meta["val"].dtype
    assert not COST.has(add)
    graph.lint()


def test_complaint_03_the_second_step_of_a_rewrite_sees_the_first_steps_nodes() -> None:
    """Complaint 3: a filter on val.shape matches nodes that an earlier rewrite inserted; no call is without val."""
    exported = program()
    graph = exported.graph
    for target, by in ((aten.relu.default, aten.tanh.default), (aten.tanh.default, aten.sigmoid.default)):
        found = [
            node
            for node in graph.find_nodes(op="call_function", target=target)
            if node.meta["val"].shape[1] == 4 and node.meta["nn_module_stack"]
        ]
        assert len(found) == 2
        for node in found:
            with running_pass(str(by)):
                replace_node(node, insert_after(node, by, node.args, replaces=[node]))

    assert all("val" in node.meta for node in graph.nodes if node.op == "call_function")
    assert all(
        key in node.meta for node in graph.find_nodes(op="call_function", target=aten.sigmoid.default) for key in TRACE
    )
    origin = node_named(graph, "sigmoid_default").meta["from_node"][0]
    assert ("tanh_default", "aten.sigmoid.default") == (origin.name, origin.pass_name)
    assert "relu" == origin.from_node[0].name


def test_a_replacement_made_with_plain_fx_gets_its_value_as_well() -> None:
    """Nodes created with graph.call_function have no val; replacing by them computes what is missing."""
    graph = program().graph
    relu = node_named(graph, "relu")
    with graph.inserting_after(relu):
        inner = graph.call_function(aten.neg.default, (relu.args[0],))
    with graph.inserting_after(inner):
        outer = graph.call_function(aten.tanh.default, (inner,))

    replace_node(relu, outer)

    assert all("val" in node.meta for node in (inner, outer))
    assert "relu" == outer.meta["from_node"][0].name


def test_several_replacements_at_once_follow_chains() -> None:
    """{a: b, b: c} ends at c, and everything that was replaced is gone."""
    graph = program().graph
    one, two = node_named(graph, "relu"), node_named(graph, "relu_1")
    tanh = insert_after(one, aten.tanh.default, one.args)
    final = insert_after(tanh, aten.sigmoid.default, one.args)
    other = insert_after(two, aten.tanh.default, two.args)

    replace_nodes({one: tanh, tanh: final, two: other})

    assert {"sigmoid_default", "tanh_default_1"} == {
        node.name for node in graph.nodes if node.target in (aten.tanh.default, aten.sigmoid.default, aten.relu.default)
    }
    graph.lint()


def test_replacements_in_a_circle_are_refused() -> None:
    """{a: b, b: a} names the circle."""
    graph = program().graph
    one, two = node_named(graph, "relu"), node_named(graph, "relu_1")

    with pytest.raises(CycleError, match=re.escape("the replacements relu -> relu_1 -> relu lead back")) as caught:
        replace_nodes({one: two, two: one})

    assert (one, two, one) == caught.value.path


def test_a_replacement_that_needs_the_old_node_is_refused_with_the_path() -> None:
    """Wrapping a node in something computed from it is a cycle, and the message says how to go about it."""
    graph = program().graph
    relu = node_named(graph, "relu")
    wrapped = insert_after(relu, aten.neg.default, (relu,))
    before = str(graph)

    with pytest.raises(CycleError, match=re.escape("which is computed from it (relu -> neg_default)")) as caught:
        replace_node(relu, wrapped)

    assert (relu, wrapped, relu) == caught.value.path
    assert before == str(graph)


def test_a_replacement_that_stands_too_late_is_moved_up() -> None:
    """A pure replacement behind the first user is moved before it, with what it needs; other nodes stay in place."""
    exported = program()
    graph = exported.graph
    relu = node_named(graph, "relu")
    order = [node.name for node in graph.nodes if node is not relu]
    x = relu.args[0]
    inner = insert_before(graph.output_node(), aten.neg.default, (x,))
    late = insert_before(graph.output_node(), aten.tanh.default, (inner,))

    replace_node(relu, late)

    graph.lint()
    assert order == [node.name for node in graph.nodes if node not in (inner, late)]


def test_a_replacement_is_not_moved_across_a_write() -> None:
    """Moving it up past an in-place write of what it reads is refused, with the reason."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        z = y * 2
        x.sin_()
        return z + x.cos()

    graph_module = symbolic_trace(forward)
    graph = graph_module.graph
    before = str(graph)

    with pytest.raises(CycleError) as caught:
        replace_node(node_named(graph, "add"), node_named(graph, "cos"))

    assert "cannot move 'cos' up to 'mul': it must stay after 'sin_'" in str(caught.value)
    assert before == str(graph)


def test_a_replacement_that_users_cannot_take_leaves_the_graph_as_it_was() -> None:
    """If a user does not fit the new value, the replacement does not happen at all."""
    exported = program()
    graph = exported.graph
    relu = node_named(graph, "relu")
    narrow = insert_after(relu, aten.slice.Tensor, (relu.args[0], 1, 0, 3))
    snapshot = Snapshot.take(exported)

    with pytest.raises(FakeValueError):
        replace_node(relu, narrow)

    assert not snapshot.changed()
    assert not snapshot.metadata_changed()
    graph.lint()


def test_placeholders_and_the_output_cannot_be_replaced() -> None:
    """The message for a placeholder names the edit to use instead."""
    graph = program().graph
    x = graph.find_nodes(op="placeholder")[-1]
    relu = node_named(graph, "relu")

    with pytest.raises(GraphError, match=re.escape("use fxpasses.programs.remove_input")):
        replace_node(x, relu)
    with pytest.raises(GraphError, match=re.escape("set the arguments of the output node")):
        replace_node(graph.output_node(), relu)


# --- erasing ---


def test_erasing_takes_nodes_in_any_order() -> None:
    """Nodes that only use each other can be erased together, listed in any order."""
    graph = program().graph
    relu = node_named(graph, "relu")
    one = insert_after(relu, aten.neg.default, (relu,))
    two = insert_after(one, aten.neg.default, (one,))

    erase_nodes([one, two])

    assert one._erased
    assert two._erased
    graph.lint()


def test_erasing_a_node_in_use_names_its_users() -> None:
    """Nothing is erased when one of the nodes is still used from outside."""
    graph = program().graph
    relu = node_named(graph, "relu")
    spare = insert_after(relu, aten.neg.default, (relu,))
    message = "cannot erase 'relu': 'linear_1' still use it; replace it there first, or erase its users with it"

    with pytest.raises(GraphError, match=re.escape(message)):
        erase_nodes([spare, relu])

    assert not spare._erased


# --- attributes ---


def test_constants_get_free_names_and_are_never_copied() -> None:
    """add_constant keeps the tensor itself, as a parameter or a non-persistent buffer, under a name that is free."""
    graph_module = symbolic_trace(torch.nn.ReLU())
    tensor, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))

    names = [
        add_constant(graph_module, name, each) for name, each in [("a.b", tensor), ("a.b", tensor), ("1p", parameter)]
    ]

    assert ["a_b", "a_b_0", "_1p"] == names
    assert graph_module.a_b is tensor
    assert graph_module._1p is parameter
    assert ["_1p"] == list(graph_module.state_dict())


def test_unused_attributes_go_and_used_ones_stay() -> None:
    """Submodules, parameters and tensors without a reader are removed; what a called module needs stays."""
    graph_module = symbolic_trace(Net())
    graph_module.register_buffer("spare", torch.ones(1))
    graph_module.plain = torch.ones(1)
    relu = node_named(graph_module.graph, "relu_1")
    replace_node(relu.args[0], relu.args[0].args[0])

    removed = remove_unused_attributes(graph_module)

    assert ["plain", "second", "spare"] == removed
    assert {"first.weight", "first.bias"} == set(graph_module.state_dict())


def test_nested_graph_modules_come_once_and_in_order() -> None:
    """The module itself comes first, then bodies, a shared one once."""
    root = torch.nn.Module()
    root.inner = symbolic_trace(torch.nn.ReLU())
    root.again = root.inner
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("again", (graph.call_module("inner", (x,)),)))
    graph_module = GraphModule(root, graph)

    assert [graph_module, graph_module.inner] == list(nested_graph_modules(graph_module))


# --- nodes <-> submodules ---


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.two = torch.nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        a = self.one(x) + self.shift
        b = self.two(a) + y.sin()
        left, right = torch.split(b.relu(), 2, -1)
        return left + y[:, :2], right, a


def traced() -> GraphModule:
    return symbolic_trace(Tied())


def exported_module() -> GraphModule:
    return export(Tied(), (torch.randn(3, 4), torch.randn(3, 4))).module()


def everything_about(graph_module: GraphModule) -> list[object]:
    return [str(graph_module.graph), sorted(graph_module.state_dict())]


@pytest.mark.parametrize("make", [traced, exported_module])
@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 4), (2, 7), (0, 30), (4, 5)])
def test_extracting_computes_the_same_and_inlining_gives_back_the_graph(make, start: int, stop: int) -> None:
    """Any run of nodes becomes a submodule that computes the same; inlining it restores text, metadata, state names."""
    graph_module = make()
    graph = graph_module.graph
    args = torch.randn(3, 4), torch.randn(3, 4)
    want = graph_module(*args)
    nodes = [
        node
        for node in graph.nodes
        if node.op not in ("placeholder", "output", "get_attr") and node.target != "_guards_fn"
    ]
    reads_first = [node for node in graph.nodes if node.op == "get_attr"]
    for node in reversed(reads_first):  # where constants stand is not kept: they go back to their users
        min(node.users, default=graph.output_node()).prepend(node)
    before = everything_about(graph_module)
    metas = {node.name: {key: str(entry) for key, entry in node.meta.items() if key != "from_node"} for node in nodes}

    call = extract_submodule(graph_module, nodes[start:stop], "part")
    graph_module.recompile()
    graph.lint()
    graph_module.part.graph.lint()
    assert all(map(torch.equal, want, graph_module(*args)))
    assert [node.name for node in call.args] == [node.name for node in graph.nodes if node in call.args], (
        "inputs come in graph order"
    )

    made = inline_submodule(call)
    graph_module.recompile()
    graph.lint()

    assert all(map(torch.equal, want, graph_module(*args)))
    assert sorted(str(before[0]).split("\n")) == sorted(str(graph).split("\n"))
    assert before[1] == sorted(graph_module.state_dict())
    assert not hasattr(graph_module, "part")
    kept = {
        node.name: {key: str(entry) for key, entry in node.meta.items() if key != "from_node"} for node in graph.nodes
    }
    assert metas == {name: kept[name] for name in metas}
    assert made


def test_a_single_output_is_handed_over_and_several_are_a_tuple() -> None:
    """One output: the call is the value. Several: a tuple, taken apart by getitem nodes, with values on all of them."""
    graph_module = exported_module()
    graph = graph_module.graph

    one = extract_submodule(graph_module, [node_named(graph, "sin")], "single")
    many = extract_submodule(
        graph_module, [node_named(graph, name) for name in ("linear", "add", "linear_1", "add_1")], "several"
    )

    assert (3, 4) == tuple(one.meta["val"].shape)
    assert isinstance(many.meta["val"], tuple)
    assert all("val" in user.meta for user in many.users)
    assert all("val" in node.meta for node in graph_module.several.graph.nodes if node.op == "placeholder")
    graph.lint()


def test_a_submodule_is_made_inside_of_another_where_its_name_has_a_dot() -> None:
    graph_module = exported_module()

    call = extract_submodule(graph_module, [node_named(graph_module.graph, "sin")], "block.part")

    assert "block.part" == call.target
    assert "block_part" == call.name
    assert isinstance(graph_module.block.part, GraphModule)
    for name in ("", "a..b", None):
        with pytest.raises(GraphError, match=r"named like an attribute, as 'part_0' or 'block.part_0'; .* is no name"):
            extract_submodule(graph_module, [call], name)  # type: ignore[arg-type]  # what is tried


def test_attributes_move_with_their_nodes_and_ties_hold() -> None:
    """What only the part uses moves into it, non-persistent buffers stay so, and a tied weight is one tensor still."""
    graph_module = exported_module()
    graph = graph_module.graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]

    extract_submodule(graph_module, nodes[1:4], "part")

    weight = node_named(graph, "linear").args[1]
    here = graph_module.get_parameter(str(weight.target))
    there = [each for each in graph_module.part.parameters() if each is here]
    assert len(there) == 1
    assert "part.shift" not in graph_module.state_dict()
    assert "shift" in dict(graph_module.part.named_buffers())
    assert "two.bias" not in graph_module.state_dict()
    assert "part.two.bias" in graph_module.state_dict()


def test_nodes_that_leave_and_come_back_are_refused_with_the_path() -> None:
    """A set of nodes with a path through an outsider is no submodule; the message names the outsider."""
    graph_module = traced()
    graph = graph_module.graph
    before = str(graph)
    message = "one -> add -> two leaves it and comes back; extract 'add' as well, or leave one end out"

    with pytest.raises(CycleError, match=re.escape(message)) as caught:
        extract_submodule(graph_module, [node_named(graph, "one"), node_named(graph, "two")], "part")

    assert ["one", "add", "two"] == [node.name for node in caught.value.path]
    assert before == str(graph)


def test_effects_make_a_path_as_well() -> None:
    """x + 1 and x + 2 around x.sin_() are not one submodule: the write has to run between them."""

    def forward(x: torch.Tensor):
        y = x + 1
        x.sin_()
        return y, x + 2

    graph_module = symbolic_trace(forward)
    graph = graph_module.graph

    with pytest.raises(CycleError) as caught:
        extract_submodule(graph_module, [node_named(graph, "add"), node_named(graph, "add_1")], "part")

    assert "sin_" in str(caught.value)
    assert "'sin_' as well" in str(caught.value)


def test_outsiders_between_the_nodes_move_only_if_they_must() -> None:
    """A node between that needs the part moves behind the call, one that does not stays."""

    def forward(x: torch.Tensor, y: torch.Tensor):
        a = x + 1
        needs = a * 2
        free = y * 3
        b = x + 4
        return needs, free, a + b

    graph_module = symbolic_trace(forward)
    graph = graph_module.graph
    args = torch.randn(3), torch.randn(3)
    want = graph_module(*args)

    extract_submodule(graph_module, [node_named(graph, "add"), node_named(graph, "add_1")], "part")
    graph_module.recompile()

    assert ["x", "y", "mul_1", "part", "add_out", "add_1_out", "mul", "add_2", "output"] == [
        node.name for node in graph.nodes
    ]
    assert all(map(torch.equal, want, graph_module(*args)))


def test_inlining_keeps_in_place_writes_in_order() -> None:
    """A part that writes its input does so at the same place after inlining."""

    def forward(x: torch.Tensor):
        y = x + 1
        x.sin_()
        return y * x

    graph_module = symbolic_trace(forward)
    graph = graph_module.graph
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    text = str(graph)

    call = extract_submodule(graph_module, nodes[1:], "part")
    graph_module.recompile()
    x = torch.randn(3)
    assert torch.equal(forward(x.clone()), graph_module(x.clone()))
    inline_submodule(call)

    assert text == str(graph)


def test_inlining_refreshes_values_where_the_call_differs_from_the_trace() -> None:
    """A part traced without values gets them from the arguments of the call."""
    inner = symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(0)))
    graph_module = export(Net(), (torch.randn(2, 4),)).module()
    graph = graph_module.graph
    graph_module.extra = inner
    add = node_named(graph, "add")
    call = insert_after(add, "extra", (add,), op="call_module")
    graph.output_node().replace_input_with(add, call)

    made = inline_submodule(call)

    assert [(2, 4), (8,)] == [tuple(node.meta["val"].shape) for node in made]


def test_only_calls_of_graph_modules_can_be_inlined() -> None:
    """A call of an ordinary module is refused with a sentence."""
    graph_module = traced()
    one = node_named(graph_module.graph, "one")

    with pytest.raises(GraphError, match=re.escape("cannot inline 'one': it does not call a graph module")):
        inline_submodule(one)


def test_arguments_that_a_submodule_does_not_take_are_refused() -> None:
    """Too many, too few and unknown arguments of a call are named."""
    inner = symbolic_trace(torch.nn.ReLU())
    graph = Graph()
    x = graph.placeholder("x")
    calls = [
        graph.call_module("inner", (x, x)),
        graph.call_module("inner", ()),
        graph.call_module("inner", (x,), {"other": x}),
    ]
    graph.output(calls[0])
    GraphModule({"inner": inner}, graph)

    for call, message in zip(
        calls,
        (
            "arguments that the submodule does not take: 1 more than it takes",
            "nothing is given for the input 'input_1'",
            "arguments that the submodule does not take: ['other']",
        ),
        strict=True,
    ):
        with pytest.raises(GraphError, match=re.escape(message)):
            inline_submodule(call)


def test_a_submodule_that_is_called_twice_stays_for_the_other_call() -> None:
    """Inlining one of two calls leaves the submodule; its weights are reached under the submodule's path."""
    inner = symbolic_trace(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    graph = Graph()
    x = graph.placeholder("x")
    one = graph.call_module("inner", (x,))
    two = graph.call_module("inner", (one,))
    graph.output(two)
    graph_module = GraphModule({"inner": inner}, graph)
    args = torch.randn(2, 4)
    want = graph_module(args)

    inline_submodule(one)
    graph_module.recompile()
    assert torch.equal(want, graph_module(args))
    inline_submodule(two)
    graph_module.recompile()

    assert torch.equal(want, graph_module(args))
    assert ["inner.0.weight", "inner.0.bias"] == list(graph_module.state_dict())
    assert not isinstance(graph_module.inner, GraphModule)


def test_nothing_and_foreign_nodes_cannot_be_extracted() -> None:
    """Empty sets, placeholders and nodes of another graph are refused."""
    graph_module = traced()
    other = traced().graph

    with pytest.raises(GraphError, match="there are no nodes to extract"):
        extract_submodule(graph_module, [], "part")
    with pytest.raises(GraphError, match=re.escape("cannot extract 'x': it is the graph's own placeholder")):
        extract_submodule(graph_module, graph_module.graph.find_nodes(op="placeholder"), "part")
    with pytest.raises(GraphError, match=re.escape("cannot extract 'one': it belongs to another graph")):
        extract_submodule(graph_module, [node_named(other, "one")], "part")


def test_a_region_is_extracted_as_a_whole() -> None:
    """Opening autocast inside of a submodule and closing it outside is refused; the whole region may go."""
    graph = Graph()
    x = graph.placeholder("x")
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False))
    inside = graph.call_function(torch.mm, (x, x))
    leave = graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    graph.output(inside)
    graph_module = GraphModule({}, graph)
    args = torch.randn(3, 3)
    message = "cannot extract '_enter_autocast' without '_exit_autocast': they open and close one region"

    with pytest.raises(GraphError, match=re.escape(message)):
        extract_submodule(graph_module, [enter, inside], "part")
    extract_submodule(graph_module, [enter, inside, leave], "part")
    graph_module.recompile()

    assert torch.bfloat16 == graph_module(args).dtype
    assert torch.float32 == torch.mm(args, args).dtype


@settings(max_examples=examples(60), deadline=None)
@given(rng=st.randoms(use_true_random=False), picks=st.lists(st.integers(0, 99), min_size=1, max_size=6))
def test_random_sets_are_extracted_right_or_refused(rng: random.Random, picks: list[int]) -> None:
    """Any set of nodes of a program with views, writes, random numbers: the same meaning out and back, or a refusal."""
    made = random_program(rng)
    graph_module = made.graph_module
    graph = graph_module.graph
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    want = observe(graph_module, made.inputs)
    before = str(graph)
    chosen = {calls[pick % len(calls)] for pick in picks}
    first, last = min(chosen), max(chosen)
    if len(picks) % 2:  # half of the time a whole run, which is more often possible
        chosen = {node for node in calls if not node < first and not last < node}

    try:
        call = extract_submodule(graph_module, chosen, "part")
    except GraphError:
        assert before == str(graph)
        return
    graph_module.recompile()
    graph.lint()
    assert same(want, observe(graph_module, made.inputs))

    inline_submodule(call)
    graph_module.recompile()
    graph.lint()

    assert same(want, observe(graph_module, made.inputs))
