"""A pass by itself: what it may return, the truth about change, rollback, declarations, identity."""

import pickle
from typing import Any

import attrs
import pytest
import torch
from torch import fx
from torch.fx.passes.infra.pass_base import PassResult as TorchPassResult
from torch.fx.passes.infra.pass_manager import PassManager as TorchPassManager

from fxpasses import PassBase, PassError, PassResult, as_pass, pass_result_wrapper
from fxpasses.errors import InputError
from fxpasses.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, FunctionPass
from fxpasses.programs import add_constant


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


def traced():
    return fx.symbolic_trace(Model())


def exported(model=None, *inputs):
    return torch.export.export(model or Model(), inputs or (torch.ones(2, 4),))


@attrs.frozen
class Swap(PassBase):
    """Replace one function by another."""

    old: Any = torch.relu
    new: Any = torch.sigmoid

    def call(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=self.old):
            node.target = self.new
        return PassResult(graph_module, True)


def functions(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


@as_pass
def decorated(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
        node.target = torch.tanh


# --- what it is called with, what it returns -------------------------------------------------------------------------


def test_a_pass_takes_a_graph_module_and_gives_a_pair():
    module = traced()

    after, modified = Swap()(module)

    assert after is module
    assert modified
    assert torch.sigmoid in functions(module)
    assert "sigmoid" in module.code


def test_a_pass_takes_what_another_returned():
    result = Swap(torch.sigmoid, torch.tanh)(Swap()(traced()))

    assert torch.tanh in functions(result.graph_module)


def test_a_pass_takes_an_exported_program_and_gives_it_back_valid():
    program = exported()
    swap = Swap(torch.ops.aten.relu.default, torch.ops.aten.tanh.default)

    result = swap(program)

    result.exported_program.validate()
    x = torch.randn(2, 4)
    weight, bias = program.state_dict["linear.weight"], program.state_dict["linear.bias"]
    want = torch.tanh(torch.nn.functional.linear(x, weight, bias)) + 1
    assert torch.equal(want, result.exported_program.module()(x))


def test_a_module_that_was_not_traced_is_an_error_that_says_so():
    with pytest.raises(InputError, match="not on Model; trace or export it first") as caught:
        Swap()(Model())
    assert isinstance(caught.value, TypeError)


def test_call_may_return_the_graph_module():
    class Returns(PassBase):
        def call(self, graph_module):
            return graph_module

    result = Returns()(traced())

    assert isinstance(result, PassResult)
    assert not result.modified


def test_call_may_return_torchs_own_result():
    class Returns(PassBase):
        def call(self, graph_module):
            return TorchPassResult(graph_module, True)

    assert not Returns()(traced()).modified


def test_a_passbase_that_returns_none_is_an_error_that_says_so():
    class Forgets(PassBase):
        def call(self, graph_module):
            pass

    with pytest.raises(PassError, match="call of pass 'Forgets' returned None; return PassResult") as caught:
        Forgets()(traced())
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("returned", [3, "graph", (1, True), torch.nn.Linear(1, 1)])
def test_a_wrong_return_type_is_an_error_that_names_it(returned):
    class Wrong(PassBase):
        def call(self, graph_module):
            return returned

    with pytest.raises(PassError, match="The result of the pass Wrong should be type PassResult, but it is "):
        Wrong()(traced())


def test_an_init_that_never_calls_super_works():
    class NoSuper(PassBase):
        def __init__(self, times):
            self.times = times

        def call(self, graph_module):
            return PassResult(graph_module, False)

    assert repr(NoSuper(3)) == "NoSuper(times=3)"
    assert not NoSuper(3)(traced()).modified


# --- the truth about change ------------------------------------------------------------------------------------------


def test_complaint_05_modified_is_looked_up_not_believed():
    """Complaint 5: `modified` lies, so callers rebuild everything and fixpoints never settle."""

    class Liar(PassBase):
        def call(self, graph_module):
            for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
                node.target = torch.sigmoid
            return PassResult(graph_module, False)

    module = traced()

    assert Swap()(traced()).modified
    assert Liar()(module).modified
    again = Liar()(module)
    assert not again.modified
    assert again.graph_module is module


def test_an_edit_that_is_undone_is_no_change():
    class BackAndForth(PassBase):
        def call(self, graph_module):
            for node in graph_module.graph.find_nodes(op="call_function", target=torch.relu):
                node.target = torch.sigmoid
                node.target = torch.relu
            return PassResult(graph_module, True)

    assert not BackAndForth()(traced()).modified


def test_an_equal_copy_is_no_change_and_another_module_is():
    class Copies(PassBase):
        def call(self, graph_module):
            graph = fx.Graph()
            graph.output(graph.graph_copy(graph_module.graph, {}))
            return PassResult(fx.GraphModule(graph_module, graph), True)

    class CopiesAndSwaps(Copies):
        def call(self, graph_module):
            return Swap()(super().call(graph_module))

    module = traced()

    assert not Copies()(module).modified
    result = CopiesAndSwaps()(module)
    assert result.modified
    assert torch.relu in functions(module)
    assert torch.sigmoid in functions(result.graph_module)


def test_a_new_constant_counts_as_a_change():
    class AddsBuffer(PassBase):
        def call(self, graph_module):
            graph_module.register_buffer("extra", torch.ones(1))
            return PassResult(graph_module, False)

    assert AddsBuffer()(traced()).modified


# --- requires, ensures, failure --------------------------------------------------------------------------------------


def test_ensures_sees_the_result():
    seen = []

    class Replaces(PassBase):
        def call(self, graph_module):
            self.made = fx.symbolic_trace(torch.nn.ReLU())
            return PassResult(self.made, True)

        def ensures(self, graph_module):
            seen.append(graph_module)

    pass_ = Replaces()
    pass_(traced())

    assert seen == [pass_.made]


def test_requires_raises_its_own_type():
    class Needs(Swap):
        def requires(self, graph_module):
            raise ValueError("nothing to swap")

    module = traced()
    with pytest.raises(
        ValueError, match="An error occurred when running the 'Needs' pass: ValueError: nothing to swap"
    ):
        Needs()(module)


def test_a_failing_pass_names_the_node_and_the_users_line_and_leaves_no_trace():
    program = exported()
    module = program.graph_module
    text, code = str(module.graph), module.code
    metas = [dict(node.meta) for node in module.graph.nodes]
    nodes = list(module.graph.nodes)

    class Fails(PassBase):
        def call(self, graph_module):
            for node in list(graph_module.graph.nodes):
                node.meta["touched"] = True
                if node.op == "call_function":
                    node.replace_all_uses_with(node.args[0])
                    graph_module.graph.erase_node(node)
                    graph_module.register_buffer("left", torch.ones(1))
                    graph_module.recompile()
                    raise KeyError("broken")

    with pytest.raises(KeyError) as caught:
        Fails()(program)

    error = caught.value
    assert isinstance(error, PassError)
    assert error.pass_name == "Fails"
    assert error.node.name == "linear"
    assert "KeyError: 'broken'" in str(error)
    assert "test_pass_base.py" in str(error)
    assert "self.linear(x)" in str(error)
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.__cause__ is None
    assert [text, code] == [str(module.graph), module.code]
    assert metas == [dict(node.meta) for node in module.graph.nodes]
    assert nodes == list(module.graph.nodes)
    assert not hasattr(module, "left")


def test_a_pass_that_breaks_code_generation_leaves_no_trace():
    class Breaks(PassBase):
        def call(self, graph_module):
            node = next(node for node in graph_module.graph.nodes if node.op == "call_function")
            node.name = "not a name"
            object.__setattr__(node, "op", "no_such_op")
            return PassResult(graph_module, True)

    module = traced()
    code = module.code
    with pytest.raises(PassError):
        Breaks()(module)

    assert code == module.code
    assert torch.equal(module(torch.ones(2, 4)), module(torch.ones(2, 4)))


# --- functions -------------------------------------------------------------------------------------------------------


def test_a_decorated_function_is_a_pass():
    assert isinstance(decorated, FunctionPass)
    assert repr(decorated) == "decorated"
    assert decorated(traced()).modified
    assert decorated.pass_name == "decorated"


def test_a_decorated_function_is_picked_up_by_its_place():
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_the_decorator_takes_what_a_class_declares():
    @as_pass(target_ops=[torch.sin], visit_nested=False)
    def picky(graph_module):
        raise AssertionError("must not run")

    assert picky.target_ops == (torch.sin,)
    assert not picky(traced()).modified


def test_as_pass_refuses_what_cannot_be_called():
    with pytest.raises(TypeError, match="a pass must be callable, not int: 3"):
        as_pass(3)


def test_pass_result_wrapper_turns_none_and_modules_into_results():
    def returns_nothing(graph_module):
        pass

    def returns_module(graph_module):
        return graph_module

    class Forgets(PassBase):
        def call(self, graph_module):
            pass

    module = traced()

    for wrapped in map(pass_result_wrapper, (returns_nothing, returns_module, Forgets())):
        assert wrapped(module) == (module, True)
        assert isinstance(wrapped(module), TorchPassResult)
    assert pass_result_wrapper(returns_nothing).__name__ == "returns_nothing"
    assert pass_result_wrapper(Forgets()).__name__ == "Forgets"
    assert pass_result_wrapper(None) is None


# --- target ops, nested graphs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", [torch.relu, "linear", torch.nn.Linear], ids=["function", "module name", "module class"]
)
def test_a_pass_runs_where_one_of_its_target_ops_is(target):
    ran = []

    @as_pass(target_ops=[target])
    def look(graph_module):
        ran.append(graph_module)

    look(traced())
    look(fx.symbolic_trace(torch.nn.Tanh()))

    assert len(ran) == 1


@pytest.mark.parametrize("target", [torch.ops.aten.relu, torch.ops.aten.relu.default, "aten.relu.default"])
def test_target_ops_name_overloads_packets_or_names(target):
    ran = []

    @as_pass(target_ops=[target])
    def look(graph_module):
        ran.append(1)

    look(exported())
    look(exported(torch.nn.Tanh(), torch.ones(2)))

    assert ran == [1]


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: torch.relu(x), lambda x: torch.relu(x) - 1, (x,))


def relu_to_tanh(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        node.target = torch.ops.aten.tanh.default


def test_complaint_22_passes_reach_into_control_flow():
    """Complaint 22: passes stop at control-flow subgraphs."""
    program = exported(Branches(), torch.ones(3))

    result = as_pass(relu_to_tanh)(program)

    assert result.modified
    x = torch.ones(3)
    assert torch.equal(torch.tanh(x), result.exported_program.module()(x))
    assert torch.equal(torch.tanh(-x) - 1, result.exported_program.module()(-x))


def test_a_pass_may_opt_out_of_nested_graphs():
    program = exported(Branches(), torch.ones(3))

    assert not as_pass(relu_to_tanh, visit_nested=False)(program).modified


def test_a_new_module_for_a_nested_graph_takes_its_place():
    def rebuilt(graph_module):
        if not graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
            return graph_module
        graph = fx.Graph()
        graph.output(graph.graph_copy(graph_module.graph, {}))
        made = fx.GraphModule(graph_module, graph)
        relu_to_tanh(made)
        made.recompile()
        return made

    program = exported(Branches(), torch.ones(3))
    result = as_pass(rebuilt)(program)

    assert result.modified
    assert torch.equal(torch.tanh(torch.ones(3)), result.exported_program.module()(torch.ones(3)))


# --- identity --------------------------------------------------------------------------------------------------------


def test_equal_options_make_equal_passes_and_repr_makes_the_pass():
    assert Swap(torch.relu) == Swap(torch.relu)
    assert Swap(torch.relu) != Swap(torch.tanh)

    @attrs.frozen
    class Fold(PassBase):
        max_bytes: int = attrs.field(default=3, kw_only=True)

        def call(self, graph_module):
            return graph_module

    assert repr(Fold(max_bytes=7)).endswith("Fold(max_bytes=7)")
    assert Fold(max_bytes=7) == eval("Fold(max_bytes=7)")
    assert hash(Fold(max_bytes=7)) == hash(Fold(max_bytes=7))


def test_digests_follow_class_and_options():
    assert Swap(torch.relu).digest == Swap(torch.relu).digest
    assert Swap(torch.relu).digest != Swap(torch.tanh).digest
    assert Swap().uuid == Swap().uuid()
    assert len(Swap().digest) == 64


def test_passes_are_pickled():
    assert pickle.loads(pickle.dumps(Swap(torch.tanh, torch.sin))) == Swap(torch.tanh, torch.sin)
    result = pickle.loads(pickle.dumps(PassResult(3, True)))
    assert (result, type(result)) == ((3, True), PassResult)


# --- the other world -------------------------------------------------------------------------------------------------


def test_our_passes_run_under_torchs_manager():
    module = traced()

    result = TorchPassManager([Swap(), Swap(torch.sigmoid, torch.tanh), decorated], steps=3)(module)

    assert result.modified
    assert torch.tanh in functions(result.graph_module)
    assert isinstance(Swap()(traced()), TorchPassResult)


# --- exported programs -----------------------------------------------------------------------------------------------


class WithConstant(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.ones(3)

    def forward(self, x):
        return x + self.weight


class DoubleConstants(ExportedProgramPassBase):
    def call(self, exported_program):
        for key, constant in exported_program.constants.items():
            exported_program.constants[key] = constant * 2
        return ExportedProgramPassResult(exported_program, bool(exported_program.constants))


def test_a_program_pass_changes_constants():
    program = exported(WithConstant(), torch.zeros(3))

    result = DoubleConstants()(program)

    assert result.modified
    assert torch.equal(torch.full((3,), 2.0), result.exported_program.module()(torch.zeros(3)))
    assert result.graph_module is result.exported_program.graph_module


def test_a_program_pass_that_fails_leaves_signature_and_constants():
    class Fails(DoubleConstants):
        def call(self, exported_program):
            super().call(exported_program)
            add_constant(exported_program, "extra", torch.ones(1))
            raise RuntimeError("late")

    program = exported(WithConstant(), torch.zeros(3))
    names, specs = list(program.constants), list(program.graph_signature.input_specs)
    with pytest.raises(PassError, match="late"):
        Fails()(program)

    assert names == list(program.constants)
    assert specs == list(program.graph_signature.input_specs)
    program.validate()
    assert torch.equal(torch.ones(3), program.module()(torch.zeros(3)))


def test_a_program_pass_needs_a_program():
    with pytest.raises(TypeError, match="works on an ExportedProgram"):
        DoubleConstants()(traced())


def test_a_program_pass_must_return_a_program():
    class Wrong(ExportedProgramPassBase):
        def call(self, exported_program):
            return True

    with pytest.raises(PassError, match="returned bool; return ExportedProgramPassResult"):
        Wrong()(exported())


def test_ensures_of_a_program_pass_sees_the_result():
    class Empties(DoubleConstants):
        def ensures(self, exported_program):
            assert all(bool((constant == 2).all()) for constant in exported_program.constants.values())

    assert Empties()(exported(WithConstant(), torch.zeros(3))).modified


def test_a_pass_by_itself_compiles_only_the_graphs_it_changed(monkeypatch):
    module = exported(Branches(), torch.ones(3)).graph_module
    compiled = []
    real = fx.GraphModule.recompile
    monkeypatch.setattr(fx.GraphModule, "recompile", lambda self: (compiled.append(self), real(self))[1])

    def only_first_branch(graph_module):
        if graph_module is module.true_graph_0:
            relu_to_tanh(graph_module)

    as_pass(only_first_branch)(module)

    assert [module] == compiled  # bodies are copies, which compile when somebody looks
    assert "tanh" in module.true_graph_0.code
    assert [module, module.true_graph_0] == compiled
