from __future__ import annotations

import copy
import dataclasses
import functools
import io
import re
import warnings

import psutil
import pytest
import torch
from fuzz import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxpasses.editing import add_constant as hang_constant
from fxpasses.editing import create_node, insert_after, insert_before, replace_node
from fxpasses.errors import GraphError
from fxpasses.metadata import MetaKey, running_pass
from fxpasses.programs import (
    add_buffer,
    add_constant,
    add_input,
    add_mutation,
    add_output,
    add_parameter,
    constant_of,
    convert_input,
    is_buffer,
    is_lifted_constant,
    is_parameter,
    is_user_input,
    load,
    remove_input,
    remove_output,
    rename_input,
    rename_output,
    replace_output,
    retype_input,
    retype_output,
    save,
    spec_of,
    tensor_of,
    with_graph_module,
)

aten = torch.ops.aten
COST = MetaKey[int]("tests.programs.cost", made_by="MeasureCost()")
SPAN = MetaKey[tuple[int, int]](
    "tests.programs.span", made_by="MeasureSpan()", to_json=list, from_json=lambda entry: tuple(entry)
)


class Model(torch.nn.Module):
    """Tied weights, both kinds of buffers, a lifted constant, nested inputs, a keyword, writes to buffer and input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("cache", torch.zeros(2, 4))
        self.register_buffer("scale", torch.ones(4), persistent=False)
        self.shift = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, d, *, factor, flag=None):
        x = d["a"] + d["b"][0]
        self.cache.add_(x)
        d["b"][1].mul_(2)
        y = x * self.scale + self.shift + self.cache
        return {"out": self.head(y) * factor, "y": y}


def quiet(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own copying of tree specs warns about itself
        warnings.filterwarnings("ignore", "Attempted to insert a get_attr Node")  # torch's unflatten does that
        return function(*args, **kwargs)


ARGS = ({"a": torch.arange(8.0).view(2, 4), "b": [torch.ones(2, 4), torch.ones(2)]},)
KWARGS = {"factor": torch.tensor(2.0)}


@functools.cache
def exported(decomposed: bool) -> ExportedProgram:
    torch.manual_seed(0)
    program = quiet(export, Model(), copy.deepcopy(ARGS), dict(KWARGS))
    return quiet(program.run_decompositions, {}) if decomposed else program


@pytest.fixture(params=["training", "decomposed"])
def program(request) -> ExportedProgram:
    made = quiet(copy.deepcopy, exported(request.param == "decomposed"))
    made.state_dict["embed.weight"] = made.state_dict["head.weight"]  # torch's deep copy unties them
    return made


def run(program: ExportedProgram, *extra, **more):
    """Run on fresh inputs and a fresh cache; gives outputs, and what was written."""
    args = copy.deepcopy(ARGS)
    for name, tensor in program.state_dict.items():
        if "cache" in name:
            tensor.zero_()
    out = quiet(program.module)(*args, *extra, **KWARGS, **more)
    caches = [tensor.clone() for name, tensor in program.state_dict.items() if "cache" in name]
    return out, args[0]["b"][1], caches


def same(left, right) -> bool:
    left, right = pytree.tree_leaves(left), pytree.tree_leaves(right)
    return len(left) == len(right) and all(map(torch.equal, left, right))


def check(program: ExportedProgram, want, *extra, **more) -> None:
    """The program is valid in every way we know, and computes ``want``."""
    program.validate()
    program.graph.lint()
    assert same(want, run(program, *extra, **more))
    signature = program.graph_signature
    placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    assert placeholders == [spec.arg.name for spec in signature.input_specs]
    kinds = [spec.kind is InputKind.USER_INPUT for spec in signature.input_specs]
    assert kinds == sorted(kinds), "arguments come last"
    lifted = {str(spec.target) for spec in signature.input_specs if spec.target is not None}
    assert lifted == {*program.state_dict, *program.constants}
    spec = program.module_call_graph[0].signature
    assert spec.in_spec.num_leaves == sum(kinds)
    assert spec.out_spec.num_leaves == len(signature.user_outputs)


def last_user_output(program: ExportedProgram) -> Node:
    return program.graph.output_node().args[0][-1]


def output_named(program: ExportedProgram, key: str) -> Node:
    names = program.module_call_graph[0].signature.out_spec.context
    return program.graph.output_node().args[0][-len(names) :][list(names).index(key)]


# --- inputs ---


def test_added_tensors_of_every_kind_leave_a_valid_program(program: ExportedProgram) -> None:
    """Parameters, buffers and constants go behind their like, with values, and can be used and removed again."""
    want = run(program)

    weight = add_parameter(program, "extra.weight", torch.nn.Parameter(torch.ones(3)))
    buffer = add_buffer(program, "extra.buffer", torch.ones(3))
    spare = add_buffer(program, "extra.spare", torch.ones(3), persistent=False)
    constant = add_constant(program, "three", torch.full((10,), 3.0))

    assert ("p_extra_weight", "b_extra_buffer", "b_extra_spare", "c_three") == tuple(
        node.name for node in (weight, buffer, spare, constant)
    )
    assert all((3,) == tuple(node.meta["val"].shape) for node in (weight, buffer, spare))
    assert "extra.spare" in program.constants
    assert {"extra.weight", "extra.buffer"} <= set(program.state_dict)
    check(program, want)

    out = output_named(program, "out")
    replace_output(program, out, insert_after(out, aten.add.Tensor, (out, constant)))
    check(program, ({"out": want[0]["out"] + 3, "y": want[0]["y"]}, *want[1:]))

    for node in (weight, buffer, spare):
        remove_input(program, node)
    check(program, ({"out": want[0]["out"] + 3, "y": want[0]["y"]}, *want[1:]))
    assert "extra.weight" not in program.state_dict


def test_added_arguments_are_passed_by_position_and_by_keyword(program: ExportedProgram) -> None:
    """Signature, trees, argument names and examples follow; the caller passes the new values where they belong."""
    want = run(program)
    one = add_input(program, "bonus", torch.ones(10))
    two = add_input(program, "gain", torch.ones(10), keyword=True)
    check(program, want, torch.ones(10), gain=torch.ones(10))

    out = output_named(program, "out")
    product = insert_after(out, aten.mul.Tensor, (out, two))
    replace_output(program, out, insert_after(product, aten.add.Tensor, (product, one)))

    expected = {"out": want[0]["out"] * 3 + 1, "y": want[0]["y"]}
    check(program, (expected, *want[1:]), torch.ones(10), gain=torch.full((10,), 3.0))
    assert ["d", "bonus", "factor", "gain"] == program.module_call_graph[0].signature.forward_arg_names[:2] + [
        name for name in program.module_call_graph[0].signature.forward_arg_names[2:] if name != "flag"
    ]
    args, kwargs = program.example_inputs
    assert len(args) == 2
    assert "gain" in kwargs


def test_arguments_that_nobody_uses_can_be_removed(program: ExportedProgram) -> None:
    """Top-level arguments, keywords, and entries of passed dicts and lists can go."""
    want = run(program)
    add_input(program, "bonus", torch.ones(10))
    add_input(program, "gain", torch.ones(10), keyword=True)

    remove_input(program, "bonus")
    check(program, want, gain=torch.ones(10))
    remove_input(program, "gain")
    check(program, want)


def test_an_entry_of_a_passed_list_can_be_removed() -> None:
    """The trees lose one leaf: callers pass a shorter list."""

    class Sum(torch.nn.Module):
        def forward(self, xs):
            return xs[0] + xs[2]

    made = export(Sum(), ([torch.ones(2), torch.ones(2), torch.ones(2)],))

    remove_input(made, "xs_1")

    made.validate()
    assert torch.equal(torch.full((2,), 3.0), quiet(made.module)([torch.ones(2), torch.full((2,), 2.0)]))


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


torch.export.register_dataclass(Pair, serialized_type_name="tests.programs.Pair")


def test_fields_of_a_dataclass_cannot_be_removed_but_edited() -> None:
    """A program that takes and gives a dataclass can be edited; a field of it cannot be removed, and we say so."""

    class Swap(torch.nn.Module):
        def forward(self, pair: Pair):
            return Pair(pair.left.sin(), pair.left + 1)

    made = export(Swap(), (Pair(torch.ones(2), torch.ones(2)),))

    with pytest.raises(GraphError, match=re.escape("cannot remove one field of a Pair: its fields are fixed")):
        remove_input(made, "pair_right")
    with pytest.raises(GraphError, match=re.escape("cannot add an output: the program returns a Pair")):
        add_output(made, made.graph.output_node().args[0][0])
    rename_input(made, "pair_left", "first")
    made.validate()
    given = quiet(made.module)(Pair(torch.zeros(2), torch.ones(2)))

    assert isinstance(given, Pair)
    assert torch.equal(torch.ones(2), given.right)


def test_inputs_in_use_and_written_inputs_stay(program: ExportedProgram) -> None:
    """A removal that would break the graph is refused, naming the user, or the output that is its new value."""
    with pytest.raises(GraphError, match=re.escape("cannot remove the input 'c_shift': 'add")):
        remove_input(program, "shift")
    with pytest.raises(GraphError, match=re.escape("the program has no input 'nothing'; it has p_")):
        remove_input(program, "nothing")


def test_a_renamed_input_is_renamed_everywhere(program: ExportedProgram) -> None:
    """Qualified names, placeholders, state_dict order, mutation targets, keywords and guards follow a new name."""
    want = run(program)
    keys = list(program.state_dict)

    rename_input(program, "cache", "kv.cache")
    rename_input(program, "head.weight", "lm.weight")
    rename_input(program, "d_b_1", "state")
    rename_input(program, "factor", "gain")

    assert [{"cache": "kv.cache", "head.weight": "lm.weight"}.get(key, key) for key in keys] == list(program.state_dict)
    assert "b_kv_cache" == spec_of(program, "b_kv_cache").arg.name
    program.validate()
    args = copy.deepcopy(ARGS)
    program.state_dict["kv.cache"].zero_()
    out = quiet(program.module)(*args, gain=KWARGS["factor"])
    assert same(want, (out, args[0]["b"][1], program.state_dict["kv.cache"]))


def test_names_that_are_taken_or_impossible_are_refused(program: ExportedProgram) -> None:
    """A clash of names is an error that names the other one, before anything is changed."""
    before = str(program.graph)

    with pytest.raises(GraphError, match=re.escape("the name 'cache' is taken by 'cache'; choose another one")):
        add_buffer(program, "cache", torch.ones(1))
    with pytest.raises(GraphError, match=re.escape("the name 'head.weight.x' is taken by 'head.weight'")):
        add_buffer(program, "head.weight.x", torch.ones(1))
    with pytest.raises(GraphError, match=re.escape("'a b' is not a qualified name, such as 'layer.weight'")):
        add_buffer(program, "a b", torch.ones(1))
    with pytest.raises(GraphError, match=re.escape("'1x' is not a name that Python code could use")):
        add_input(program, "1x", torch.ones(1))
    with pytest.raises(GraphError, match=re.escape("the name 'd_a' is taken by another node")):
        add_input(program, "d_a", torch.ones(1))
    with pytest.raises(GraphError, match=re.escape("'w' is a plain tensor, not a parameter; wrap it")):
        add_parameter(program, "w", torch.ones(1))

    assert before == str(program.graph)
    program.validate()


def test_retyped_weights_refresh_the_graph_and_stay_tied(program: ExportedProgram) -> None:
    """A weight in another dtype changes the values computed from it; its tied twin changes with it."""
    add_output(
        program,
        insert_before(program.graph.output_node(), aten.neg.default, (program.graph.find_nodes(op="placeholder")[1],)),
        name="w",
    )

    retype_input(program, "head.weight", torch.bfloat16)

    assert torch.bfloat16 == program.state_dict["embed.weight"].dtype
    assert program.state_dict["embed.weight"] is program.state_dict["head.weight"]
    assert torch.bfloat16 == output_named(program, "w").meta["val"].dtype
    program.validate()


def test_a_retyped_argument_and_output() -> None:
    """An argument takes another dtype and shape, the output is converted on its way out, examples follow."""

    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    made = export(Double(), (torch.ones(3),))
    retype_input(made, "x", torch.ones(5, dtype=torch.float64))
    retype_output(made, 0, torch.int32)

    made.validate()
    assert (5,) == tuple(made.example_inputs[0][0].shape)
    assert torch.equal(torch.full((5,), 2, dtype=torch.int32), quiet(made.module)(torch.ones(5, dtype=torch.float64)))


def test_kinds_can_be_exchanged_without_copying(program: ExportedProgram) -> None:
    """A parameter becomes a constant, a constant a buffer; memory is shared, and the program computes the same."""
    want = run(program)
    storage = program.state_dict["head.weight"].data_ptr()

    convert_input(program, "head.weight", InputKind.CONSTANT_TENSOR)
    convert_input(program, "shift", InputKind.BUFFER)
    check(program, want)

    assert storage == program.constants["head.weight"].data_ptr()
    assert "shift" in program.state_dict
    assert is_lifted_constant(program, next(node for node in program.graph.nodes if node.name == "p_head_weight"))
    with pytest.raises(GraphError, match=re.escape("cannot turn 'd_a' from a USER_INPUT into a BUFFER")):
        convert_input(program, "d_a", InputKind.BUFFER)


def test_symbolic_shapes_of_new_inputs_stay_symbols() -> None:
    """A new argument may share a symbol of the program; ranges and checks of the caller's inputs follow."""

    class Sin(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    made = export(Sin(), (torch.ones(3, 4),), dynamic_shapes=({0: Dim("n", min=2, max=64)},))
    x = made.graph.find_nodes(op="placeholder")[0]
    other = add_input(made, "other", x.meta["val"])
    out = last_user_output(made)
    replace_output(made, out, insert_after(out, aten.add.Tensor, (out, other)))

    made.validate()
    assert x.meta["val"].shape[0].node.expr == other.meta["val"].shape[0].node.expr
    assert (7, 4) == tuple(quiet(made.module)(torch.ones(7, 4), torch.ones(7, 4)).shape)

    replace_output(made, last_user_output(made), insert_after(other, aten.cos.default, (other,)))
    made.graph.eliminate_dead_code()
    remove_input(made, x)

    assert list(made.range_constraints)
    made.validate()
    assert (9, 4) == tuple(quiet(made.module)(torch.ones(9, 4)).shape)


# --- outputs ---


def test_outputs_can_be_added_renamed_and_removed(program: ExportedProgram) -> None:
    """A dict that is returned gets and loses keys; mutation outputs keep their place."""
    want = run(program)
    y = output_named(program, "y")
    mutations = [spec for spec in program.graph_signature.output_specs if spec.kind is not OutputKind.USER_OUTPUT]

    added = insert_after(y, aten.neg.default, (y,))
    add_output(program, added, name="minus")
    check(program, ({**want[0], "minus": -want[0]["y"]}, *want[1:]))
    rename_output(program, added, "negated")
    program.validate()
    assert ["out", "y", "negated"] == list(run(program)[0])
    remove_output(program, "negated")

    check(program, want)
    assert mutations == program.graph_signature.output_specs[: len(mutations)]


def test_a_single_output_becomes_a_pair_and_cannot_be_removed() -> None:
    """A program that returned one tensor returns a tuple once it has two; the only one cannot go."""

    class Sin(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    made = export(Sin(), (torch.ones(3),))
    with pytest.raises(GraphError, match=re.escape("cannot remove the only output")):
        remove_output(made, 0)
    add_output(made, made.graph.find_nodes(op="placeholder")[0])

    made.validate()
    given = quiet(made.module)(torch.ones(3))
    assert isinstance(given, tuple)
    assert 2 == len(given)


def test_wrong_outputs_are_named(program: ExportedProgram) -> None:
    """Unknown and ambiguous outputs are errors that list what there is."""
    with pytest.raises(GraphError, match=re.escape("the program has no output 'd_a'; it has ")):
        remove_output(program, "d_a")
    with pytest.raises(GraphError, match=re.escape("and no output 99")):
        remove_output(program, 99)
    y = output_named(program, "y")
    add_output(program, y, name="again")
    with pytest.raises(GraphError, match=re.escape("say which, by its position")):
        remove_output(program, y)
    program.validate()


class Cache(torch.nn.Module):
    """A decoder step with a key-value cache."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 3))
        self.proj = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, position, self.proj(x))
        return torch.softmax(x @ self.keys.T, -1) @ self.keys


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_key_value_cache_survives_edits(decomposed: bool) -> None:
    """Three steps of an edited decoder equal eager: the cache renamed, others added and written."""
    torch.manual_seed(0)
    model = Cache().requires_grad_(False)
    steps = [(torch.randn(1, 3), torch.tensor([index])) for index in range(3)]
    made = quiet(export, model, steps[0])
    made = quiet(made.run_decompositions, {}) if decomposed else made
    rename_input(made, "keys", "attention.keys")
    count = add_buffer(made, "attention.count", torch.zeros(()))
    output = made.graph.output_node()
    new = insert_before(output, aten.add.Tensor, (count, 1))
    add_mutation(made, count, new)
    add_mutation(made, add_buffer(made, "attention.twin", torch.zeros(())), new)
    made.validate()
    with pytest.raises(GraphError, match=re.escape("'b_attention_count' already gets its new value from")):
        add_mutation(made, count, new)
    with pytest.raises(GraphError, match=re.escape("is its new value; remove that output first")):
        remove_input(made, made.graph.find_nodes(op="placeholder")[-3])

    made.state_dict["attention.keys"].zero_()
    model.keys.zero_()
    module = quiet(made.module)
    for step in steps:
        assert torch.equal(model(*step), module(*step))

    assert 3 == module.get_buffer("attention.count").item()
    assert 3 == module.get_buffer("attention.twin").item()
    assert torch.equal(model.keys, module.get_buffer("attention.keys"))


# --- questions ---


def test_backends_can_ask_what_a_node_stands_for(program: ExportedProgram) -> None:
    """Kinds, specs and tensors of placeholders; other nodes are none of them."""
    nodes = {node.name: node for node in program.graph.nodes}

    assert is_parameter(program, nodes["p_head_weight"])
    assert is_buffer(program, nodes["b_cache"])
    assert is_buffer(program, nodes["b_scale"])
    assert is_lifted_constant(program, nodes["c_shift"])
    assert is_user_input(program, nodes["d_a"])
    assert not is_parameter(program, nodes["add"])
    assert tensor_of(program, nodes["b_cache"]) is program.state_dict["cache"]
    assert tensor_of(program, nodes["b_scale"]) is program.constants["scale"]
    assert constant_of(program, nodes["c_shift"]) is program.constants["shift"]
    assert tensor_of(program, nodes["d_a"]) is None
    assert tensor_of(program, nodes["add"]) is None
    assert spec_of(program, nodes["add"]) is None


# --- passes that only look at the graph ---


class ConvNorm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.conv(x)).relu().mean((2, 3))) * scale


@pytest.mark.parametrize("decomposed", [False, True])
def test_complaint_07_fusing_conv_and_norm_leaves_a_valid_program(decomposed: bool) -> None:
    """Complaint 7: drop the four inputs of the norm from the middle, add two; valid, and the same numbers."""
    torch.manual_seed(0)
    model = ConvNorm().eval()
    model.norm.running_mean.normal_()
    args = torch.randn(2, 3, 8, 8), torch.ones(2)
    made = quiet(export, model, args)
    made = quiet(made.run_decompositions, {}) if decomposed else made
    nodes = {str(spec_of(made, node).target): node for node in made.graph.find_nodes(op="placeholder")}
    conv = next(user for user in nodes["conv.weight"].users)
    norm = next(user for user in conv.users)
    tensors = {key: tensor_of(made, node) for key, node in nodes.items() if "norm" in key or "conv" in key}
    gain = tensors["norm.weight"] / torch.sqrt(tensors["norm.running_var"] + model.norm.eps)

    with running_pass("FuseConvNorm"):
        weight = add_parameter(
            made, "fused.weight", torch.nn.Parameter((tensors["conv.weight"] * gain[:, None, None, None]).detach())
        )
        bias = add_parameter(
            made,
            "fused.bias",
            torch.nn.Parameter((tensors["norm.bias"] - tensors["norm.running_mean"] * gain).detach()),
        )
        old = norm if not decomposed else next(user for user in norm.users if user.args[1] == 0)
        new = insert_after(
            old, conv.target, (conv.args[0], weight, bias, *conv.args[3:]), conv.kwargs, replaces=[conv, old]
        )
        replace_node(old, new)
        made.graph.eliminate_dead_code()
        for name in ("weight", "bias", "running_mean", "running_var"):
            remove_input(made, f"norm.{name}")
            made.validate()
        remove_input(made, "conv.weight")

    made.validate()
    assert torch.allclose(model(*args), quiet(made.module)(*args), atol=1e-5)
    assert {"fused.weight", "fused.bias", "last.weight", "last.bias", "norm.num_batches_tracked"} == set(
        made.state_dict
    )
    assert [conv.name, old.name] == [source.name for source in new.meta["from_node"]]


def test_complaint_07_the_signature_follows_what_passes_did(program: ExportedProgram) -> None:
    """Complaint 7: renamed placeholders and outputs, a dropped weight and a new constant are brought in step."""
    want = run(program)
    graph = program.graph
    placeholders = graph.find_nodes(op="placeholder")
    placeholders[-2]._rename("renamed_argument")
    y = output_named(program, "y")
    y._rename("renamed_output")
    unused = next(node for node in placeholders if node.name == "p_embed_weight")
    graph.erase_node(unused)
    name = hang_constant(program.graph_module, "one", torch.ones(4))
    with graph.inserting_after(y):
        one = create_node(graph, "get_attr", name)
    added = insert_after(one, aten.add.Tensor, (y, one))
    graph.output_node().replace_input_with(y, added)

    synced = with_graph_module(program, program.graph_module)

    assert synced is program
    assert "embed.weight" not in program.state_dict
    assert torch.ones(4).equal(program.constants["one"])
    check(program, ({**want[0], "y": want[0]["y"] + 1}, *want[1:]))
    assert not program.graph.find_nodes(op="get_attr")


def test_a_new_module_makes_a_new_program_that_shares_tensors(program: ExportedProgram) -> None:
    """A pass that returns another module leaves the given program alone; tensors are the same objects."""
    want = run(program)
    before = str(program.graph_signature)
    module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    module.graph.find_nodes(op="placeholder")[-1]._rename("other_name")

    synced = with_graph_module(program, module)

    assert synced is not program
    assert before == str(program.graph_signature)
    assert all(synced.state_dict[key] is entry for key, entry in program.state_dict.items())
    check(synced, want)
    check(program, want)


def test_an_unlifted_module_becomes_a_program_again() -> None:
    """What program.module() gives, edited by a pass, goes back into a program: weights are lifted again."""
    made = quiet(copy.deepcopy, exported(False))
    want = run(made)
    module = quiet(made.module)
    assert module.graph.find_nodes(op="call_module", target="_guards_fn")

    synced = with_graph_module(made, module)

    assert list(made.state_dict) == list(synced.state_dict)
    check(synced, want)


def test_retraced_placeholders_are_matched_by_position(program: ExportedProgram) -> None:
    """When a pass built the graph anew with names of its own, positions tell who is who."""
    want = run(program)
    module = GraphModule(program.graph_module, copy.deepcopy(program.graph))
    for index, node in enumerate(module.graph.find_nodes(op="placeholder")):
        node._rename(f"arg{index}_1")
        node.target = node.name

    check(with_graph_module(program, module), want)


def test_syncing_an_untouched_program_changes_nothing(program: ExportedProgram) -> None:
    """A no-op keeps text, signature and the specs themselves."""
    before = str(program.graph), str(program.graph_signature), program.module_call_graph[0]
    specs = list(map(id, program.graph_signature.input_specs))

    with_graph_module(program, program.graph_module)

    assert before == (str(program.graph), str(program.graph_signature), program.module_call_graph[0])
    assert specs == list(map(id, program.graph_signature.input_specs))


def test_shuffled_placeholders_are_put_back_in_the_callers_order(program: ExportedProgram) -> None:
    """Arguments keep the order in which callers pass them, whatever a pass did to the placeholders."""
    want = run(program)
    placeholders = program.graph.find_nodes(op="placeholder")
    placeholders[0].prepend(placeholders[-1])
    placeholders[0].prepend(placeholders[-3])

    with_graph_module(program, program.graph_module)

    check(program, want)


def drop_argument(program: ExportedProgram) -> None:
    add_input(program, "spare", torch.ones(2))
    program.graph.erase_node(program.graph.find_nodes(op="placeholder")[-1 - 1])


def unknown_placeholder(program: ExportedProgram) -> None:
    with program.graph.inserting_before(program.graph.find_nodes(op="placeholder")[-1]):
        program.graph.placeholder("surprise")


def another_output(program: ExportedProgram) -> None:
    output = program.graph.output_node()
    output.args = ((*output.args[0], output.args[0][0]),)


def no_output(program: ExportedProgram) -> None:
    program.graph.erase_node(program.graph.output_node())


def odd_attribute(program: ExportedProgram) -> None:
    program.graph_module.thing = object()
    with program.graph.inserting_before(program.graph.output_node()):
        program.graph.create_node("get_attr", "thing")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            drop_argument,
            "has no placeholder any more, which would change how the program is called; keep the placeholder",
        ),
        (unknown_placeholder, "the signature knows nothing of the placeholder 'surprise'; add inputs with"),
        (another_output, "values, the signature tells of"),
        (no_output, "the graph has 0 output nodes; a program needs exactly one"),
        (odd_attribute, "'thing' reads 'thing', a object, from the graph module; a program can only hold tensors"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_would_change_the_call_is_refused_with_the_edit_to_use(
    edit, message: str, program: ExportedProgram
) -> None:
    """An edit that no signature could follow is an error that says what to use instead."""
    edit(program)

    with pytest.raises(GraphError, match=re.escape(message)):
        with_graph_module(program, program.graph_module)


def test_a_dropped_cache_that_is_still_written_is_refused() -> None:
    """A buffer whose placeholder is gone but whose new value is returned cannot be."""
    made = quiet(copy.deepcopy, exported(True))
    node = next(node for node in made.graph.nodes if node.name == "b_cache")
    node.replace_all_uses_with(next(each for each in made.graph.nodes if each.name == "d_a"))
    made.graph.erase_node(node)

    with pytest.raises(
        GraphError, match=re.escape("'cache' has no placeholder any more, but an output is its new value")
    ):
        with_graph_module(made, made.graph_module)


def test_preserved_module_calls_follow_replaced_nodes() -> None:
    """The signature of a preserved submodule call names the nodes that stand for its arguments now."""

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x.relu()).sin()

    made = export(Outer(), (torch.ones(2, 4),), preserve_module_call_signature=("inner",))
    relu = next(node for node in made.graph.nodes if node.name == "relu")
    entry = next(entry for entry in made.module_call_graph if entry.fqn == "inner")
    assert ["relu"] == [each.name for each in entry.signature.inputs]

    replace_node(relu, insert_after(relu, aten.tanh.default, relu.args, replaces=[relu]))
    with_graph_module(made, made.graph_module)

    made.validate()
    assert ["tanh_default"] == [each.name for each in entry.signature.inputs]
    unflattened = quiet(torch.export.unflatten, made)
    assert torch.equal(quiet(made.module)(torch.ones(2, 4)), unflattened(torch.ones(2, 4)))


# --- saving ---


def test_typed_entries_survive_saving_and_loading(program: ExportedProgram) -> None:
    """Entries under typed keys come back to their nodes, placeholders included; the rest is as before."""
    for index, node in enumerate(program.graph.nodes):
        COST.write(node, index)
    SPAN.write(program.graph.output_node(), (1, 2))
    program.graph_module.meta["custom"] = {"mine": 1}
    file = io.BytesIO()

    quiet(save, program, file)
    file.seek(0)
    loaded = quiet(load, file)

    assert {"custom": {"mine": 1}} == {
        key: entry for key, entry in program.graph_module.meta.items() if key == "custom"
    }
    assert list(range(len(loaded.graph.nodes))) == [COST.read(node) for node in loaded.graph.nodes]
    assert (1, 2) == SPAN.read(loaded.graph.output_node())
    assert {"mine": 1} == loaded.graph_module.meta["custom"]
    assert same(run(program), run(loaded))


def test_entries_of_branches_are_saved_as_well() -> None:
    """Nodes inside of a cond keep their entries."""

    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    made = export(Branch(), (torch.ones(2),))
    inside = next(node for node in made.graph_module.true_graph_0.graph.nodes if node.op == "call_function")
    COST.write(inside, 7)
    file = io.BytesIO()
    quiet(save, made, file)
    file.seek(0)
    loaded = quiet(load, file)

    found = [node for node in loaded.graph_module.true_graph_0.graph.nodes if COST.has(node)]
    assert [7] == [COST.read(node) for node in found]
    assert "custom" not in loaded.graph_module.meta


def test_entries_that_json_cannot_hold_name_their_key(program: ExportedProgram) -> None:
    """An entry without a text form is an error before anything is written."""
    bad = MetaKey[object]("tests.programs.bad", made_by="Bad()")
    bad.write(program.graph.output_node(), object())

    with pytest.raises(
        GraphError, match=re.escape("the entry 'tests.programs.bad' of 'output' cannot be written as JSON")
    ):
        save(program, io.BytesIO())


# --- at large ---


def test_complaint_37_edits_copy_no_tensors() -> None:
    """Complaint 37: edits of a program with a 10 GB state dict grow memory by less than 100 MB."""

    class Sin(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    made = export(Sin(), (torch.ones(3),))
    with torch._subclasses.FakeTensorMode():
        big = [torch.nn.Parameter(torch.empty(2**28)) for _ in range(10)]
    assert sum(each.numel() * 4 for each in big) > 10e9
    before = psutil.Process().memory_info().rss
    for index, each in enumerate(big):
        add_parameter(made, f"big_{index}", each)
        rename_input(made, f"big_{index}", f"large_{index}")
        with_graph_module(made, made.graph_module)

    assert made.state_dict["large_3"] is big[3]
    assert psutil.Process().memory_info().rss - before < 100e6


@settings(max_examples=examples(15), deadline=None)
@given(
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "rename", "output", "sync", "convert"]), st.integers(0, 99)),
        max_size=10,
    ),
)
def test_random_edits_leave_a_valid_program(decomposed: bool, steps: list[tuple[str, int]]) -> None:
    """After any sequence of edits the program validates, and computes what it did."""
    program = quiet(copy.deepcopy, exported(decomposed))
    want = run(program)
    for number, (what, pick) in enumerate(steps):
        mine = [node for node in program.graph.find_nodes(op="placeholder") if "mine" in node.name]
        if what == "add":
            add = (add_buffer, add_constant, lambda p, n, t: add_parameter(p, n, torch.nn.Parameter(t)))[pick % 3]
            add(program, f"mine{number}.t", torch.ones(2))
        elif what == "output":
            y = output_named(program, "y")
            replace_output(program, y, insert_after(y, aten.clone.default, (y,)))
        elif what == "sync":
            program = with_graph_module(program, program.graph_module)
        elif mine:
            node = mine[pick % len(mine)]
            if what == "remove":
                remove_input(program, node)
            elif what == "rename":
                rename_input(program, node, f"mine{number}.other")
            else:
                convert_input(
                    program, node, (InputKind.BUFFER, InputKind.PARAMETER, InputKind.CONSTANT_TENSOR)[pick % 3]
                )
        program.validate()
    check(program, want)
