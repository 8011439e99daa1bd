"""Each ready-made check: a graph it is content with, one it is not, and what it says then."""

import copy
import multiprocessing
import re

import attrs
import check_passes
import pytest
import torch
from torch import fx

from fxpasses import (
    Assignment,
    CheckError,
    CycleError,
    GraphError,
    InputError,
    PassError,
    PassManager,
    PipelineError,
    as_pass,
    checks,
)
from fxpasses.checks import (
    at_most,
    fake_values_agree,
    is_deterministic,
    is_functional,
    is_idempotent,
    lint,
    metadata_is_complete,
    no_call_modules,
    one_device_per_part,
    only_ops,
    partitions_are_convex,
    repeating,
    same_outputs,
    same_signature,
    signature_is_valid,
    well_formed,
)
from fxpasses.checks.evaluation import TOLERANCES, compare_tensors
from fxpasses.journal.comparing import graph_text
from fxpasses.passes import FuseConvBN, RemoveNoOps
from fxpasses.values import has_size_of_data

aten = torch.ops.aten


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


class Buffered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return torch.dropout(self.norm(x), 0.5, True) + self.count


class Relu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: torch.relu(x), lambda x: torch.sin(x), (x,))


def traced(model=None):
    return fx.symbolic_trace(model or Model())


def exported(model=None, *inputs):
    return torch.export.export(model or Model(), inputs or (torch.ones(2, 4),))


def call(module, target):
    return module.graph.find_nodes(op="call_function", target=target)[0]


def test_every_ready_made_check_has_a_name_in_all():
    assert checks.__all__ == sorted(checks.__all__)
    assert all(hasattr(checks, name) for name in checks.__all__)


def test_all_of_them_are_content_with_an_exported_model():
    program = exported()

    for subject in (program, program.graph_module, program.module()):
        for check in (
            lint,
            well_formed,
            metadata_is_complete,
            fake_values_agree,
            is_functional,
            no_call_modules,
            one_device_per_part,
            signature_is_valid,
            only_ops(["aten.linear.default", aten.relu, aten.add.Tensor]),
            at_most(nodes=20, parts=0, copies=0, bytes=1000),
            partitions_are_convex({}),
        ):
            check(subject)


# --- lint ------------------------------------------------------------------------------------------------------------


def broken(how):
    module = traced()
    nodes = {node.name: node for node in module.graph.nodes}
    how(module, nodes)
    return module


def use_before_definition(module, nodes):
    nodes["relu"].append(nodes["linear"])


def erased_input(module, nodes):
    object.__setattr__(nodes["relu"], "_erased", True)
    nodes["relu"]._remove_from_list()


def foreign_input(module, nodes):
    nodes["relu"].args = (fx.Graph().placeholder("other"),)


def lost_user(module, nodes):
    nodes["linear"].users.clear()


def extra_user(module, nodes):
    nodes["x"].users[nodes["add"]] = None


def same_name(module, nodes):
    object.__setattr__(nodes["relu"], "name", "linear")


def no_such_module(module, nodes):
    nodes["linear"].target = "missing.layer"


def no_such_attribute(module, nodes):
    with module.graph.inserting_before(nodes["relu"]):
        module.graph.create_node("get_attr", "nowhere")


def not_callable(module, nodes):
    nodes["relu"].target = "relu"


def no_such_op(module, nodes):
    object.__setattr__(nodes["relu"], "op", "call_something")


def late_placeholder(module, nodes):
    with module.graph.inserting_before(nodes["add"]):
        module.graph.placeholder("late")


def no_output(module, nodes):
    module.graph.erase_node(nodes["output"])


def two_outputs(module, nodes):
    module.graph.output(nodes["relu"])


def after_output(module, nodes):
    nodes["output"].append(nodes["add"])


def odd_method(module, nodes):
    with module.graph.inserting_before(nodes["add"]):
        module.graph.call_method("torch.ops.relu", (nodes["relu"],))


LINT_MESSAGES = {
    use_before_definition: "node 'relu' uses 'linear' before it has been defined; insert it after, or sort",
    erased_input: "node 'add' uses 'relu', which was erased; replace its uses before erasing it",
    foreign_input: "node 'relu' uses 'other', which belongs to another graph; replace",
    lost_user: "node 'relu' uses 'linear', which does not list it among its users; edit node.args, never node.users",
    extra_user: "node 'x' lists 'add' among its users, which does not use it",
    same_name: "node 'linear' has the name of an earlier node, 'linear'; names must differ",
    no_such_module: "node 'linear' refers to 'missing.layer', but the module has no such attribute; add",
    no_such_attribute: "node 'nowhere' refers to 'nowhere', but the module has no such attribute",
    not_callable: "node 'relu' calls 'relu', which is not callable",
    no_such_op: "node 'relu' has the unknown op 'call_something'; use one of call_function",
    late_placeholder: "node 'late' is a placeholder that stands after calls; placeholders come first",
    no_output: "the graph is not well formed: it has no output node; add graph.output",
    two_outputs: "is output number 2; keep one",
    after_output: "node 'output' uses 'add' before it has been defined",
    odd_method: "node 'torch_ops_relu' is a call_method of 'torch.ops.relu', which is not supported",
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("how", LINT_MESSAGES, ids=lambda how: how.__name__)
def test_lint_says_which_node_is_wrong_and_what_to_do(how):
    with pytest.raises(GraphError) as caught:
        lint(broken(how))

    assert LINT_MESSAGES[how] in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("how", [late_placeholder, no_output, two_outputs])
def test_well_formed_asks_for_less_than_lint(how):
    well_formed(broken(how))


def test_lint_looks_into_nested_graphs():
    module = exported(Branches(), torch.ones(3)).graph_module
    inner = module.true_graph_0
    inner.graph.find_nodes(op="call_function", target=aten.relu.default)[0].args = (fx.Graph().placeholder("other"),)

    with pytest.raises(GraphError, match="node 'relu' of the nested graph 'true_graph_0' uses 'other'"):
        lint(module)


def test_complaint_38_lint_walks_long_chains_without_recursion():
    """Complaint 38: RecursionError on big graphs."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for _ in range(20_000):
        value = graph.call_function(torch.relu, (value,))
    graph.output(value)

    lint(fx.GraphModule(torch.nn.Module(), graph))


# --- metadata --------------------------------------------------------------------------------------------------------


def test_complaint_03_a_call_without_a_value_is_named():
    """Complaint 3: nodes that carry no metadata are found by a check."""
    program = exported()
    del call(program.graph_module, aten.relu.default).meta["val"]

    with pytest.raises(GraphError, match=r"metadata is not complete: node 'relu' \(from .*\) has no 'val'") as caught:
        metadata_is_complete(program)
    assert "relu" == caught.value.node.name
    metadata_is_complete(exported(Branches(), torch.ones(3)))
    with pytest.raises(GraphError, match="has no 'mine'"):
        metadata_is_complete(program, keys=["mine"])


def test_a_recorded_value_that_is_wrong_is_named():
    program = exported()
    node = call(program.graph_module, aten.relu.default)
    node.meta["val"] = node.meta["val"].to(torch.float64)

    with pytest.raises(GraphError) as caught:
        fake_values_agree(program)
    assert "node 'relu'" in str(caught.value)
    assert "records float64[2, 4] on cpu, but gives float32[2, 4] on cpu" in str(caught.value)


def test_fake_values_agree_with_symbolic_shapes_and_nested_graphs():
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Model(), (torch.ones(3, 4),), dynamic_shapes=({0: batch},))

    fake_values_agree(program)
    fake_values_agree(exported(Branches(), torch.ones(3)))


class PickedTwice(torch.nn.Module):
    """One mask says how many rows there are, in four places; torch knows that they are as many."""

    def forward(self, x, mask):
        return x[mask] + 2 * x[mask], mask.nonzero(), torch.where(mask)[0]


def test_fake_values_agree_where_one_size_that_data_say_is_found_twice():
    program = exported(PickedTwice(), torch.ones(12, 8), torch.arange(12) > 5)
    found = [node for node in program.graph.nodes if "unbacked_bindings" in node.meta]
    assert len(found) == 1

    fake_values_agree(program)
    of_data = [node.name for node in program.graph.nodes if has_size_of_data(node)]
    assert ["index", "index_1", "nonzero", "where"] == of_data

    add = call(program.graph_module, aten.add.Tensor)
    right, add.meta["val"] = add.meta["val"], add.meta["val"].to(torch.float64)
    with pytest.raises(GraphError, match="node 'add'"):
        fake_values_agree(program)

    add.meta["val"] = right
    again = program.graph_module.graph.find_nodes(op="call_function", target=aten.nonzero.default)[0]
    again.meta["val"] = again.meta["val"].to(torch.int32)
    with pytest.raises(GraphError, match="node 'nonzero'"):
        fake_values_agree(program)


def test_fake_values_do_not_agree_where_a_size_that_data_say_comes_from_nowhere():
    """A sum of two values is as large as these; a symbol that neither of them has is wrong."""
    program = exported(PickedTwice(), torch.ones(12, 8), torch.arange(12) > 5)
    add = call(program.graph_module, aten.add.Tensor)
    shape_env = add.meta["val"].fake_mode.shape_env
    with add.meta["val"].fake_mode:
        add.meta["val"] = torch.empty(shape_env.create_unbacked_symint(), 8)

    with pytest.raises(GraphError, match="node 'add'"):
        fake_values_agree(program)


def test_an_op_that_does_not_fit_its_arguments_is_named():
    program = exported()
    node = call(program.graph_module, aten.relu.default)
    node.target = aten.mm.default
    node.args = (node.args[0], node.args[0])

    with pytest.raises(GraphError, match="fake values do not agree"):
        fake_values_agree(program)


# --- ops -------------------------------------------------------------------------------------------------------------


def test_only_ops_names_what_is_not_legal():
    program = exported()

    only_ops(["aten.*"])(program)
    only_ops(denied=[aten.sin])(program)
    with pytest.raises(GraphError) as caught:
        only_ops(["aten.linear.default", aten.add])(program)
    message = str(caught.value)
    assert (
        "calls aten.relu.default, which is not among the allowed ops; replace or decompose them, or allow them"
        in message
    )
    assert "aten.add, aten.linear.default" in message
    with pytest.raises(GraphError, match=r"calls aten.relu.default, which is denied; replace or decompose them"):
        only_ops(denied=["aten.relu*"])(program)


def test_only_ops_knows_functions_methods_and_modules():
    module = traced()

    only_ops([torch.relu, "add", torch.nn.Linear])(module)
    only_ops(["torch.relu", "_operator.add", "Linear"])(module)
    only_ops(["relu"])(fx.symbolic_trace(lambda x: x.relu()))
    with pytest.raises(GraphError, match="calls linear, which is not among"):
        only_ops([torch.relu, "add"])(module)


def test_only_ops_looks_into_nested_graphs():
    with pytest.raises(GraphError, match="node 'true_graph_0/relu'"):
        only_ops(denied=[aten.relu.default])(exported(Branches(), torch.ones(3)))


@pytest.mark.parametrize("wrong", ["aten.add", aten.add, 3])
def test_only_ops_takes_lists(wrong):
    with pytest.raises(TypeError, match=r"only_ops\(allowed=...\) takes a list"):
        only_ops(wrong)


def test_no_call_modules_names_them():
    with pytest.raises(
        GraphError, match=r"node 'linear' calls module 'linear'; inline them with fxpasses.inline_submodule"
    ):
        no_call_modules(traced())


def test_is_functional_names_what_is_written():
    is_functional(exported(Buffered().eval(), torch.ones(2, 4)).run_decompositions())
    with pytest.raises(GraphError, match="the graph is not functional: node 'add_'"):
        is_functional(exported(Buffered().eval(), torch.ones(2, 4)))


# --- signatures ------------------------------------------------------------------------------------------------------


def test_a_signature_that_does_not_fit_is_refused():
    renamed = exported()
    renamed.graph_signature.input_specs[0].arg.name = "other"
    with pytest.raises(GraphError, match="input 'p_linear_weight' is called 'other' in the signature; use the edits"):
        signature_is_valid(renamed)

    short = exported()
    short.graph_signature.input_specs.pop()
    with pytest.raises(GraphError, match="the graph has 3 inputs, its signature 2"):
        signature_is_valid(short)

    gone = exported()
    gone.state_dict.pop("linear.bias")
    with pytest.raises(GraphError, match=r"input 'p_linear_bias' stands for 'linear.bias', which the program has not"):
        signature_is_valid(gone)

    out = exported()
    out.graph_signature.output_specs[0].arg.name = "other"
    with pytest.raises(GraphError, match="output add is called 'other' in the signature"):
        signature_is_valid(out)


def test_the_signature_must_stay_that_of_the_input():
    class Other(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x), x

    same_signature(exported(), exported())
    with pytest.raises(GraphError, match="the signature changed: the outputs were 1 outputs and are 2 outputs"):
        same_signature(exported(), exported(Other(), torch.ones(2, 4)))
    with pytest.raises(GraphError, match=r"the shapes and dtypes of the inputs were float32\['2', '4'\] and are"):
        same_signature(exported(), exported(Model(), torch.ones(3, 4)))

    def adds_input(graph_module):
        with graph_module.graph.inserting_before(next(iter(graph_module.graph.nodes))):
            graph_module.graph.placeholder("extra")

    with pytest.raises(CheckError, match="the signature changed: inputs were x and are extra, x"):
        PassManager([adds_input], checks=[same_signature])(traced())


# --- partitions ------------------------------------------------------------------------------------------------------


def test_partitions_that_wait_for_each_other_are_shown_with_their_path():
    def f(x):
        a = x + 1
        b = torch.relu(a)
        return b + a

    module = fx.symbolic_trace(f)
    a, b, c = (node for node in module.graph.nodes if node.op == "call_function")

    partitions_are_convex({a: "one", b: "one", c: "one"})(module)
    partitions_are_convex(Assignment.of(module, {a: "one", b: "one"}))(module)
    with pytest.raises(CycleError, match=r"partitions are not convex: .*relu.*drop a node") as caught:
        partitions_are_convex({a: "one", c: "one"})(module)
    assert b in caught.value.path

    a.meta["delegation_tag"] = c.meta["delegation_tag"] = "tag0"
    with pytest.raises(CycleError, match="tag0"):
        partitions_are_convex("delegation_tag")(module)
    with pytest.raises(CheckError, match="not convex"):
        PassManager([lambda graph_module: None], checks=[partitions_are_convex("delegation_tag")])(module)


def test_a_part_on_two_devices_is_named():
    inner = exported().graph_module
    call(inner, aten.relu.default).meta["val"] = torch.empty(2, 4, device="meta")
    root = torch.nn.Module()
    root.part = inner
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("part", (x, x, x)))
    module = fx.GraphModule(root, graph)

    with pytest.raises(GraphError, match="part 'part' works on 2 devices: node 'p_linear_weight' is on cpu"):
        one_device_per_part(module)


# --- outputs ---------------------------------------------------------------------------------------------------------


def to(old, new):
    def call(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=old):
            node.target = new

    call.__name__ = f"{old.__name__}_to_{new.__name__}"
    return call


def nothing(graph_module):
    pass


def test_complaint_15_the_first_wrong_pass_and_node_are_named():
    """Complaint 15: find the pass that broke it: a numeric check per pass against the input graph."""
    x = torch.randn(2, 4)
    wrong = to(torch.relu, torch.sigmoid)
    passes = [nothing, to(torch.add, torch.add), wrong, nothing, to(torch.sigmoid, torch.tanh)]

    with pytest.raises(CheckError, match="after pass 'relu_to_sigmoid'") as caught:
        PassManager(passes, checks=[same_outputs((x,))])(traced())

    assert 2 == caught.value.index
    assert "relu" == caught.value.node.name
    assert "the first node that differs is 'relu'" in str(caught.value)
    assert "more than 2e-05" in str(caught.value)


class Renormalizing(torch.nn.Module):
    """Writes to the rows of its table that are too long, and to a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 8, max_norm=0.5)
        self.runs = torch.zeros(8)

    def forward(self, ids):
        self.runs.add_(1)
        return self.table(ids) + self.runs


@pytest.mark.parametrize("of", [lambda program: program, lambda program: program.module()])
def test_parameters_and_constants_that_a_run_writes_to_are_put_back(of):
    """The second run had what the first one left, and was told to differ."""
    model = Renormalizing()
    subject = of(torch.export.export(model, (torch.arange(3),)))
    table, runs = model.table.weight.detach().clone(), model.runs.clone()

    PassManager([], checks=[same_outputs((torch.arange(3),))])(subject)

    assert torch.equal(table, model.table.weight)
    assert torch.equal(runs, model.runs)


def test_same_outputs_reaches_programs_and_puts_state_and_randomness_back():
    model, x = Buffered(), torch.randn(3, 4)
    program = exported(model, x)
    module = fx.symbolic_trace(model)
    state = copy.deepcopy(program.state_dict), copy.deepcopy(dict(module.named_buffers()))
    seed = torch.get_rng_state()

    check = same_outputs((x,))
    PassManager([nothing, to(torch.sin, torch.cos)], checks=[check])(program)
    PassManager([nothing], checks=[check])(module)

    torch.testing.assert_close(state[0], dict(program.state_dict), rtol=0, atol=0)
    torch.testing.assert_close(state[1], dict(module.named_buffers()), rtol=0, atol=0)
    assert torch.equal(seed, torch.get_rng_state())
    assert not PassManager([nothing], checks=[check])(module).modified


def test_tolerances_are_per_dtype():
    def shift(amount):
        def call(graph_module):
            node = graph_module.graph.find_nodes(op="call_function", target=torch.add)[0]
            node.args = (node.args[0], 1 + amount)

        return call

    for dtype, fine, coarse in ((torch.float64, 1e-12, 1e-6), (torch.float32, 1e-6, 1e-3), (torch.bfloat16, 1e-3, 0.3)):
        x = (torch.ones(3, dtype=dtype),)
        module = fx.symbolic_trace(lambda x: torch.add(x, 1))
        PassManager([shift(fine)], checks=[same_outputs(x)])(module)
        with pytest.raises(CheckError):
            PassManager([shift(coarse)], checks=[same_outputs(x)])(module)
        PassManager([shift(coarse)], checks=[same_outputs(x, tolerances={dtype: 0.5})])(module)
        PassManager([shift(0)], checks=[same_outputs(x, tolerances=0.5)])(module)


def test_gradients_are_compared_on_request():
    def stop_gradient(graph_module):
        node = graph_module.graph.find_nodes(op="call_function", target=torch.relu)[0]
        with graph_module.graph.inserting_before(node):
            node.args = (graph_module.graph.call_method("detach", node.args),)

    x = torch.randn(2, 4)

    PassManager([stop_gradient], checks=[same_outputs((x,))])(traced())
    with pytest.raises(CheckError, match="the gradient of input x is gone"):
        PassManager([stop_gradient], checks=[same_outputs((x,), gradients=True)])(traced())


def test_same_outputs_sees_that_a_parameter_gets_no_gradient_any_more():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.weight

    def cut(graph_module):
        (weight,) = graph_module.graph.find_nodes(op="get_attr")
        with graph_module.graph.inserting_after(weight):
            cut = graph_module.graph.call_method("detach", (weight,))
        weight.replace_all_uses_with(cut, delete_user_cb=lambda user: user is not cut)

    def fold(graph_module):
        graph_module.register_buffer("folded", graph_module.weight.detach().clone())
        (weight,) = graph_module.graph.find_nodes(op="get_attr")
        weight.target = "folded"

    check = same_outputs((torch.ones(2),), gradients=True)
    PassManager([fold], checks=[check])(fx.symbolic_trace(Scaled()))
    with pytest.raises(CheckError, match="the gradient of parameter weight is gone"):
        PassManager([cut], checks=[check])(fx.symbolic_trace(Scaled()))


def test_same_outputs_knows_parameters_of_programs_as_such():
    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)

        def forward(self, x):
            return self.norm(self.conv(x))

    def cut(graph_module):
        weight = next(node for node in graph_module.graph.nodes if node.name == "p_conv_weight")
        with graph_module.graph.inserting_before(next(iter(weight.users))):
            cut = graph_module.graph.call_function(aten.detach.default, (weight,))
        cut.meta["val"] = weight.meta["val"].detach()
        weight.replace_all_uses_with(cut, delete_user_cb=lambda user: user is not cut)

    x = torch.linspace(-1, 1, 25).reshape(1, 1, 5, 5)
    check = same_outputs((x,), tolerances=1e-4, gradients=True)

    assert PassManager([FuseConvBN()], checks=[check])(torch.export.export(Normed().eval(), (x,))).modified
    with pytest.raises(CheckError, match=r"the gradient of parameter conv\.weight is gone"):
        PassManager([cut], checks=[check])(torch.export.export(Normed().eval(), (x,)))


def test_same_outputs_compares_two_modules_by_itself():
    x = torch.randn(2, 4)
    module = traced()

    same_outputs((x,))(module, module)
    same_outputs((), {"x": x})(module, module)
    with pytest.raises(InputError, match="the module takes 1 values, but the given inputs hold 2"):
        same_outputs((x, x))(module, module)
    with pytest.raises(GraphError, match="there are 2 outputs instead of 1"):
        same_outputs((x,))(fx.symbolic_trace(lambda x: x), fx.symbolic_trace(lambda x: (x, x)))
    with pytest.raises(TypeError, match=r"args is a tuple of inputs, not a Tensor; write same_outputs\(\(x,\)\)"):
        same_outputs(x)


def test_same_outputs_sees_that_the_caller_gets_them_in_other_places():
    x = torch.linspace(-1, 1, 3)
    single, wrapped = (fx.symbolic_trace(function) for function in (lambda x: x + 1, lambda x: (x + 1,)))
    named = fx.symbolic_trace(lambda x: {"a": x, "b": x + 1})
    turned = fx.symbolic_trace(lambda x: {"b": x + 1, "a": x})
    renamed = fx.symbolic_trace(lambda x: {"a": x, "c": x + 1})
    swapped = fx.symbolic_trace(lambda x: {"b": x, "a": x + 1})

    same_outputs((x,))(wrapped, fx.symbolic_trace(lambda x: [x + 1]))
    same_outputs((x,))(named, turned)
    with pytest.raises(GraphError, match=r"the caller gets 'result' instead of 'result\[0\]'"):
        same_outputs((x,))(wrapped, single)
    with pytest.raises(GraphError, match=r"""the caller gets "result\['c'\]" instead of "result\['b'\]\""""):
        same_outputs((x,))(named, renamed)
    with pytest.raises(GraphError, match="output 0 differs"):
        same_outputs((x,))(named, swapped)


def test_same_outputs_sees_that_the_structure_of_an_exported_module_changed():
    class Named(torch.nn.Module):
        def __init__(self, *names):
            super().__init__()
            self.names = names

        def forward(self, x):
            return {name: x + number for number, name in enumerate(self.names)}

    x = torch.linspace(-1, 1, 3)
    one, other, third = (torch.export.export(Named(*names), (x,)).module() for names in ("ab", "ab", "ac"))

    same_outputs((x,))(one, other)
    with pytest.raises(GraphError, match="the caller gets"):
        same_outputs((x,))(one, third)


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged),
        lambda x: torch.nested.nested_tensor([x[0], x[1, :2]]),
    ],
    ids=["sparse", "csr", "quantised", "float8", "jagged", "nested"],
)
@pytest.mark.filterwarnings("ignore")
def test_same_outputs_compares_tensors_of_every_form(made):
    one, other = (fx.symbolic_trace(function) for function in (lambda x: (x, x), lambda x: (x, x)))
    changed = fx.symbolic_trace(lambda x: (x, x.clone()))
    x = torch.eye(3)

    same_outputs((made(x),))(one, other)
    same_outputs((made(x),))(one, changed)
    assert compare_tensors(made(x), made(x), TOLERANCES) is None
    assert "apart" in compare_tensors(made(x), made(x + 1), TOLERANCES)
    assert "instead of" in compare_tensors(made(x), x, TOLERANCES)


def test_same_outputs_sees_that_an_input_or_a_buffer_is_not_written_any_more():
    class Counts(torch.nn.Module):
        def __init__(self, by):
            super().__init__()
            self.by = by
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            self.count.add_(self.by)
            return x + 1

    x = torch.ones(2)
    writes, reads = fx.symbolic_trace(lambda x: x.add_(1).sum()), fx.symbolic_trace(lambda x: (x + 1).sum())
    programs = [torch.export.export(Counts(by), (x,)) for by in (1, 2)]

    same_outputs((x,))(writes, writes)
    same_outputs((x,))(programs[0], programs[0])
    with pytest.raises(GraphError, match="input 0 is left in another state: they are 1 apart, more than 2e-05"):
        same_outputs((x,))(writes, reads)
    with pytest.raises(GraphError, match="buffer count is left in another state: they are 1 apart"):
        same_outputs((x,))(*programs)
    with pytest.raises(GraphError, match="buffer count is left in another state: they are 1 apart"):
        same_outputs((x,))(*(program.module() for program in programs))
    assert torch.equal(torch.ones(2), x)


def test_checks_say_what_they_look_at():
    none = "lint looks at graphs, and a Linear holds none; trace or export the model first"
    program = "looks at an ExportedProgram, not at NoneType; export the model first"
    either = "a check looks at a GraphModule or an ExportedProgram, not at NoneType; trace or export the model first"
    with pytest.raises(TypeError, match=f"^{none}$"):
        lint(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=f"^signature_is_valid {program}$"):
        signature_is_valid(None)
    with pytest.raises(TypeError, match=f"^{either}$"):
        metadata_is_complete(None)
    with pytest.raises(TypeError, match="a number, or a mapping from dtypes to numbers, not 'x'"):
        same_outputs((), tolerances="x")


def test_values_that_are_no_numbers_are_compared_too():
    x = torch.tensor([float("nan"), float("inf")])

    same_outputs((x,))(fx.symbolic_trace(lambda x: x + 1), fx.symbolic_trace(lambda x: 1 + x))
    with pytest.raises(GraphError, match="1 of 2 elements differ"):
        same_outputs((torch.tensor([1, 2]),))(fx.symbolic_trace(lambda x: x), fx.symbolic_trace(lambda x: x * x))


# --- passes ----------------------------------------------------------------------------------------------------------


def test_a_pass_that_undoes_itself_is_not_idempotent():
    module = traced()
    text = str(module.graph)

    is_idempotent(check_passes.relu_to_tanh, module)
    is_idempotent(check_passes.relu_to_tanh)(module)
    with pytest.raises(
        PassError, match="pass 'toggle' is not idempotent: a second run changes its own result, first at"
    ):
        is_idempotent(check_passes.toggle, module)
    with pytest.raises(CheckError, match="pass 'toggle' is not idempotent"):
        PassManager([check_passes.relu_to_tanh, check_passes.toggle], checks=[is_idempotent])(module)
    assert text == str(module.graph)


@pytest.mark.slow
def test_a_pass_that_walks_in_hash_order_is_not_deterministic():
    module = fx.symbolic_trace(torch.nn.Sequential(*[Relu()] * 40))

    with pytest.raises(
        CheckError, match=r"is not deterministic: with another PYTHONHASHSEED it gives .*walk lists, not sets"
    ):
        PassManager([check_passes.first_in_hash_order], checks=[is_deterministic])(module)


def test_an_exported_graph_arrives_whole_in_the_other_process():
    module = exported().graph_module

    def child_gives(pass_):
        mine, theirs = multiprocessing.Pipe(duplex=False)
        repeating._child(is_deterministic.before_pass(pass_, module), theirs)
        return mine.recv()

    assert (True, graph_text(module)) == child_gives(check_passes.relu_to_tanh)
    assert (True, graph_text(module)) == child_gives(metadata_is_complete_inside)


def metadata_is_complete_inside(graph_module):
    """A pass that needs the fake values there."""
    fake_values_agree(graph_module)
    metadata_is_complete(graph_module)


def test_a_pass_that_fails_in_the_other_process_says_why():
    mine, theirs = multiprocessing.Pipe(duplex=False)
    repeating._child(is_deterministic.before_pass(check_passes.fails_anywhere, traced()), theirs)

    worked, told = mine.recv()
    assert not worked
    assert "never works" in told


def test_a_pass_that_cannot_be_sent_says_what_to_do():
    with pytest.raises(PassError, match=r"cannot be sent to another process: .*define the pass at the top of a module"):
        is_deterministic(lambda graph_module: None, traced())


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_budgets_say_by_how_much_they_are_exceeded():
    program = exported()

    with pytest.raises(GraphError, match="over budget: 7 nodes, 2 more than the budget of 5; 80 bytes, 30 more"):
        at_most(nodes=5, bytes=50)(program)
    with pytest.raises(CheckError, match="4 more than the budget of 1"):
        PassManager([nothing], checks=[at_most(nodes=1)])(traced())
    at_most(bytes=80)(traced())


def test_a_slow_pass_is_over_its_time():
    with pytest.raises(CheckError, match=r"pass 'nothing' took .* s more than the budget of 0 s"):
        PassManager([nothing], checks=[at_most(seconds=0)])(traced())
    PassManager([nothing], checks=[at_most(seconds=60, nodes=100)])(traced())


def test_shared_tensors_count_once():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight

    at_most(bytes=64)(traced(model))


@pytest.mark.parametrize("wrong", [{}, {"nodes": -1}])
def test_a_budget_needs_a_number(wrong):
    with pytest.raises(PipelineError, match="at_most"):
        at_most(**wrong)


def test_a_check_of_ones_own_is_any_function():
    @attrs.frozen
    class AtLeast:
        nodes: int

        def __call__(self, graph_module):
            if len(graph_module.graph.nodes) < self.nodes:
                raise LookupError(f"fewer than {self.nodes}")

    with pytest.raises(LookupError, match="fewer than 100"):
        PassManager([as_pass(nothing)], checks=[AtLeast(100)])(traced())


class Matrix(torch.nn.Module):
    def forward(self, a, b):
        return torch.mv(a.view(3, 2), b)


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("by_name", ["", "b", "ab"])
def test_keyword_inputs_are_bound_by_their_names(names: str, by_name: str) -> None:
    given = {"a": torch.ones(3, 2), "b": torch.zeros(2)}
    args = tuple(given[name] for name in "ab" if name not in by_name)
    program = torch.export.export(Matrix(), args, {name: given[name] for name in by_name})

    check = same_outputs((), {name: given[name] for name in names})

    assert PassManager([RemoveNoOps()], checks=[check])(program) is not None


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((1,), {"beta": 1}, "the program takes no input 'beta'; it takes a, b"),
        ((1, 1, 1), {}, "the program takes 2 values, but the given inputs hold 3"),
    ],
    ids=["misspelt", "too many"],
)
def test_inputs_that_a_program_does_not_take_are_refused(args: tuple, kwargs: dict, message: str) -> None:
    program = torch.export.export(Matrix(), (torch.ones(3, 2), torch.zeros(2)))
    values = [torch.ones(3, 2) for _ in args], {name: torch.zeros(2) for name in kwargs}

    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        PassManager([RemoveNoOps()], checks=[same_outputs(*values)])(program)
