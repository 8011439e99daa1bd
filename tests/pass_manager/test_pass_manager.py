"""A pipeline: order, truth, checks, rollback, records, one recompile, programs, and what bad input gives."""

import gc
import logging
import pickle
import sys
import tracemalloc

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx
from torch.fx.passes.infra.pass_base import PassBase as TorchPassBase
from torch.fx.passes.infra.pass_base import PassResult as TorchPassResult
from torch.fx.passes.infra.pass_manager import PassManager as TorchPassManager

from fxpasses import (
    CheckError,
    ExportedProgramPassBase,
    ExportedProgramPassManager,
    ExportedProgramPassResult,
    FixedPoint,
    PassBase,
    PassError,
    PassManager,
    PassResult,
    PipelineError,
    Stage,
    When,
    as_pass,
)
from fxpasses.checks import lint, obeys_its_stage, only_ops, same_signature, signature_is_valid
from fxpasses.errors import GraphError, InputError
from fxpasses.instruments import remark, statistic
from fxpasses.programs import remove_input


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


def traced():
    return fx.symbolic_trace(Model())


def exported(model=None, *inputs):
    return torch.export.export(model or Model(), inputs or (torch.ones(2, 4),))


def swap(old, new):
    def call(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=old):
            node.target = new

    call.__name__ = f"{old.__name__}_to_{new.__name__}"
    return call


def nothing(graph_module):
    pass


def fails(graph_module):
    for node in list(graph_module.graph.nodes):
        node.meta["touched"] = [1]
        if node.op == "call_function":
            node.target = torch.sin
            raise RuntimeError("bad")


def functions(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def state(module):
    """All that a failed run must leave alone."""
    return (
        str(module.graph),
        module.code,
        [dict(node.meta) for node in module.graph.nodes],
        [id(node) for node in module.graph.nodes],
        {name: (id(tensor), tensor._version) for name, tensor in module.state_dict(keep_vars=True).items()},
        sorted(module.__dict__),
    )


# --- running ---------------------------------------------------------------------------------------------------------


def test_passes_run_in_order_in_place():
    module = traced()

    result = PassManager([swap(torch.relu, torch.tanh), swap(torch.tanh, torch.sin)])(module)

    assert result.graph_module is module
    assert result.modified
    assert torch.sin in functions(module)
    assert [("relu_to_tanh", True), ("tanh_to_sin", True)] == [(r.name, r.modified) for r in result.records]


def test_a_manager_that_does_nothing_says_so():
    module = traced()

    for result in (PassManager([])(module), PassManager([nothing, nothing])(module)):
        assert not result.modified
        assert result.graph_module is module


def test_lists_of_passes_are_flattened():
    manager = PassManager([[nothing, [fails]], (nothing,)])

    assert [nothing, fails, nothing] == manager.passes


def test_executorchs_positional_arguments_work():
    manager = PassManager([nothing], True, True, 3)

    assert (True, True, 3) == (manager.run_checks_after_each_pass, manager.suppress_check_failures, manager.steps)


def test_steps_stop_when_nothing_changes():
    calls = []

    def once(graph_module):
        calls.append(1)
        swap(torch.relu, torch.tanh)(graph_module)

    result = PassManager([once], steps=10)(traced())

    assert len(calls) == 2
    assert [0, 1] == [record.step for record in result.records]
    assert result.report.settled


def test_a_loop_that_does_not_settle_is_reported(caplog):
    def grow(graph_module):
        output = graph_module.graph.output_node()
        with graph_module.graph.inserting_before(output):
            output.args = (graph_module.graph.call_function(torch.relu, (output.args[0],)),)

    with caplog.at_level(logging.WARNING):
        result = PassManager([grow, nothing], steps=3)(traced())

    assert not result.report.settled
    assert ("PassManager did not settle in 3 steps; in the last one, grow still changed the graph",) == result.warnings


def test_passes_that_undo_each_other_settle():
    there, back = swap(torch.relu, torch.tanh), swap(torch.tanh, torch.relu)

    result = PassManager([there, back], steps=5)(traced())

    assert len(result.records) == 2
    assert not result.modified


def test_the_same_pass_may_stand_twice():
    relu_to_tanh = swap(torch.relu, torch.tanh)

    result = PassManager([relu_to_tanh, swap(torch.tanh, torch.relu), relu_to_tanh])(traced())

    assert torch.tanh in functions(result.graph_module)
    assert len(result.records) == 3


def test_managers_run_inside_managers_and_under_torchs():
    inner = PassManager([swap(torch.relu, torch.tanh)], name="inner")

    result = PassManager([nothing, inner, nothing])(traced())

    assert [(0,), (1, 0), (2,)] == [record.position for record in result.records]
    module = traced()
    assert TorchPassManager([inner, PassManager([swap(torch.tanh, torch.sin)])])(module).modified
    assert torch.sin in functions(module)


def test_torchs_passes_and_managers_run_in_ours():
    class Theirs(TorchPassBase):
        def call(self, graph_module):
            swap(torch.relu, torch.tanh)(graph_module)
            return TorchPassResult(graph_module, True)

    class ReturnsNone(TorchPassBase):
        def call(self, graph_module):
            pass

    result = PassManager([Theirs(), TorchPassManager([swap_result])])(traced())

    assert torch.sin in functions(result.graph_module)
    with pytest.raises(PassError, match="call of pass 'ReturnsNone' returned None"):
        PassManager([ReturnsNone()])(traced())


def swap_result(graph_module):
    swap(torch.tanh, torch.sin)(graph_module)
    return TorchPassResult(graph_module, True)


def test_a_pass_may_return_another_module():
    def rebuild(graph_module):
        graph = fx.Graph()
        graph.output(graph.graph_copy(graph_module.graph, {}))
        made = fx.GraphModule(graph_module, graph)
        swap(torch.relu, torch.tanh)(made)
        return made

    module = traced()
    result = PassManager([rebuild, swap(torch.tanh, torch.sin)])(module)

    assert torch.relu in functions(module)
    assert torch.sin in functions(result.graph_module)
    assert "torch.sin" in result.graph_module.code
    assert ("relu",) == result.records[0].edits.altered


def test_what_is_no_graph_is_an_error_that_says_what_to_do():
    with pytest.raises(InputError, match="not on Model; trace or export it first"):
        PassManager([nothing])(Model())


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_fixed_point_repeats_until_nothing_changes():
    def drop_one_relu(graph_module):
        nodes = graph_module.graph.find_nodes(op="call_function", target=torch.relu)
        if nodes:
            nodes[0].replace_all_uses_with(nodes[0].args[0])
            graph_module.graph.erase_node(nodes[0])

    module = fx.symbolic_trace(lambda x: torch.relu(torch.relu(torch.relu(x))))
    result = PassManager([FixedPoint([drop_one_relu], max_steps=10)])(module)

    assert [] == functions(module)
    assert [0, 1, 2, 3] == [record.step for record in result.records]
    assert not FixedPoint([drop_one_relu])(module).modified


def test_when_runs_its_passes_only_if_the_condition_holds():
    def has_relu(graph_module):
        return torch.relu in functions(graph_module)

    module = traced()
    conditional = When(has_relu, [swap(torch.relu, torch.tanh)])
    result = PassManager([conditional, conditional])(module)

    assert torch.tanh in functions(module)
    assert [None, "its condition is false"] == [record.skipped for record in result.records]


@pytest.mark.parametrize("wrong", [0, -1, True, "3"])
def test_a_fixed_point_needs_a_number_of_steps(wrong):
    with pytest.raises(PipelineError, match="max_steps"):
        FixedPoint([nothing], max_steps=wrong)


def test_a_group_that_holds_itself_is_refused():
    inner = Stage("inner", [nothing])
    inner.add_pass(PassManager([inner]))

    with pytest.raises(PipelineError, match=r"'inner' \(position 0.1.0\) holds itself; take it out"):
        PassManager([inner])(traced())


def test_an_exception_with_a_constructor_of_its_own_stays_what_it_is():
    class Picky(Exception):
        def __init__(self, node, reason):
            super().__init__(f"{node}: {reason}")
            self.where = node

    def picky(graph_module):
        raise Picky("linear", "no")

    for manager in (PassManager([picky]), PassManager([nothing], checks=[picky])):
        with pytest.raises(Picky, match="linear: no") as caught:
            manager(traced())
        assert isinstance(caught.value, (PassError, CheckError))
    with pytest.raises(Picky) as caught:
        PassManager([picky])(traced())
    assert "linear" == caught.value.where


def test_wrong_arguments_of_groups_are_errors():
    with pytest.raises(
        TypeError, match=r"a check must be a function of the graph module, not 'lint'; see fxpasses\.checks"
    ):
        PassManager([nothing], checks=["lint"])
    with pytest.raises(TypeError, match="must be a function of the GraphModule"):
        When(True, [nothing])
    with pytest.raises(TypeError, match=r"Stage\(name, passes\): the name is a list"):
        Stage([nothing])
    with pytest.raises(PipelineError, match="on_failure is 'explode'; use 'rollback' or 'skip'"):
        PassManager([nothing], on_failure="explode")
    with pytest.raises(TypeError, match="the list holds 3"):
        PassManager([nothing, 3])
    with pytest.raises(TypeError, match=r"Option is a class of passes; make one: Option\(\)"):
        PassManager([Option])


def test_complaint_39_pass_lists_are_composed_by_name():
    """Complaint 39: composing pass lists: by name, an unknown one is an error that lists them; equal means equal."""

    def fold(graph_module): ...
    def fuse(graph_module): ...
    def split(graph_module): ...

    manager = PassManager([fold, Stage("backend", [fuse, nothing]), fold])
    manager.insert_after("backend/fuse", split)
    manager.insert_before("fuse", nothing)
    manager.replace(0, fuse)
    assert "PassManager([fuse, Stage('backend', [nothing, fuse, split, nothing]), fold])" == repr(manager)

    with pytest.raises(
        PipelineError, match="there is no pass 'folds' in the pipeline; there are: fuse, backend, "
    ) as caught:
        manager.insert_after("folds", split)
    assert isinstance(caught.value, KeyError)
    with pytest.raises(PipelineError, match=r"2 passes are called 'nothing' \(at 1.0, 1.3\); give the position"):
        manager.remove("nothing")
    with pytest.raises(IndexError, match="there is no pass at position 7; the pipeline has 3"):
        manager.remove(7)
    assert manager.remove("split") is split
    assert manager.remove(-1) is fold


def test_skip_keeps_the_pass_and_says_why():
    manager = PassManager([swap(torch.relu, torch.tanh), fails])
    manager.skip("fails")
    manager.skip("relu-to-tanh")

    result = manager(traced())

    assert not result.modified
    assert ["by request", "by request"] == [record.skipped for record in result.records]
    assert "fails (skipped)" in str(manager)


def test_equal_pipelines_have_equal_digests_in_every_process():
    def build(steps=1):
        return PassManager([Option(3), Stage("end", [swap_result])], steps=steps)

    assert build().uuid == build().uuid
    assert build().digest != build(steps=2).digest
    assert build() == build()
    assert build().uuid == pickle.loads(pickle.dumps(build())).uuid


@attrs.frozen
class Option(PassBase):
    """Do nothing, with an option."""

    size: int = 0

    def call(self, graph_module):
        return PassResult(graph_module, False)


def test_a_pipeline_prints_as_a_table():
    manager = PassManager([Option(3), FixedPoint([nothing], max_steps=4)])

    assert (
        "position  pass        options  needs  provides  destroys\n"
        "--------  ----------  -------  -----  --------  --------\n"
        "0         Option      size=3\n"
        "1         FixedPoint  steps=4\n"
        "1.0         nothing"
    ) == str(manager)


# --- constraints -----------------------------------------------------------------------------------------------------


def test_a_wrong_order_is_put_right_before_the_run():
    from fxpasses import this_before_that_pass_constraint

    first, second = swap(torch.relu, torch.tanh), swap(torch.tanh, torch.sin)
    manager = PassManager([second, first], [this_before_that_pass_constraint(first, second)])

    assert torch.sin in functions(manager(traced()).graph_module)
    assert [first, second] == manager.passes


def test_complaint_06_a_missing_pass_is_an_error_before_anything_runs():
    """Complaint 6: checks run on the wrong object, or not at all; an absent pass is accepted."""
    from fxpasses import this_before_that_pass_constraint

    ran = []
    manager = PassManager([ran.append])
    manager.add_constraint(this_before_that_pass_constraint("FoldConstants", ran.append))

    with pytest.raises(PipelineError, match="about 'FoldConstants', which is not in the pipeline"):
        manager(traced())
    assert [] == ran


# --- checks ----------------------------------------------------------------------------------------------------------


def reverse_two(graph_module):
    """Break the order of the nodes."""
    relu = graph_module.graph.find_nodes(op="call_function", target=torch.relu)[0]
    relu.append(next(iter(graph_module.graph.find_nodes(op="call_module"))))


def test_complaint_06_a_broken_graph_is_found_and_its_pass_named():
    """Complaint 6: run_checks_after_each_pass does not lint: a non-topological graph passes."""
    module = traced()
    before = state(module)

    for each in (True, False):
        manager = PassManager([nothing, reverse_two, nothing], run_checks_after_each_pass=each)
        with pytest.raises(GraphError, match="uses 'linear' before it has been defined") as caught:
            manager(module)
        assert isinstance(caught.value, CheckError)
        assert ("reverse_two", 1, "relu") == (caught.value.pass_name, caught.value.index, caught.value.node.name)
        assert before == state(module)


def test_complaint_06_checks_see_the_result():
    """Complaint 6: checks look at the module that was given, although call returned another."""

    def replace(graph_module):
        return fx.symbolic_trace(lambda x: torch.tanh(x))

    seen = []
    PassManager([replace], checks=[seen.append])(traced())

    assert [torch.tanh] == functions(seen[-1])


def test_all_checks_run_and_all_failures_come_together():
    def no_relu(graph_module):
        raise ValueError("there is a relu")

    def no_linear(graph_module):
        raise KeyError("linear")

    def fine(graph_module):
        pass

    manager = PassManager([nothing], checks=[no_relu, fine, no_linear])
    with pytest.raises(CheckError, match="2 checks failed at the end of PassManager") as caught:
        manager(traced())

    assert ["no_relu", "no_linear"] == [name for name, _ in caught.value.failures]
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, KeyError)
    assert "no_relu: ValueError: there is a relu" in str(caught.value)


def test_an_added_check_runs_on_the_input_after_each_pass_and_takes_one_parameter():
    seen = []

    def check(graph_module):
        seen.append([str(target) for target in functions(graph_module)])

    manager = PassManager([swap(torch.relu, torch.tanh)], run_checks_after_each_pass=True)
    manager.add_checks(check, lint)
    manager(traced())

    assert 2 == len(seen)
    assert seen[0] != seen[1]

    def two(graph_module, other): ...

    with pytest.raises(TypeError, match="should only take in one variable, a module; 'two' takes 2"):
        manager.add_checks(two)


def test_an_added_check_that_refuses_the_input_raises_its_own_type_before_any_pass():
    class MyError(Exception):
        pass

    def refuse(graph_module):
        raise MyError("no")

    ran = []
    manager = PassManager([ran.append])
    manager.add_checks(refuse)
    with pytest.raises(MyError, match="no"):
        manager(traced())

    assert [] == ran


def test_a_subclass_may_check_in_its_own_way():
    class Strict(PassManager):
        def check(self, module):
            for node in module.graph.nodes:
                if node.target is torch.tanh:
                    raise ValueError("tanh")

    with pytest.raises(ValueError, match="tanh"):
        Strict([swap(torch.relu, torch.tanh)], run_checks_after_each_pass=True)(traced())


def test_suppressed_failures_are_warnings_in_the_report():
    def refuse(graph_module):
        raise ValueError("no")

    manager = PassManager([nothing], run_checks_after_each_pass=True, suppress_check_failures=True, checks=[refuse])
    manager.add_checks(refuse)
    result = manager(traced())

    assert "check 'refuse' failed on the input, before the first pass: no" in result.warnings
    assert "check 'refuse' failed after pass 'nothing': no" in result.records[0].warnings
    assert ["lint", "refuse", "refuse"] == [outcome.name for outcome in result.records[0].checks]
    assert [True, False, False] == [outcome.passed for outcome in result.records[0].checks]


class Odd(BaseException):
    """No Exception."""


@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("ascii", b"", 0, 1, "odd"), OSError(2, "odd"), StopIteration("odd")]
)
def test_a_check_may_raise_something_odd(error):
    def odd(graph_module):
        raise error

    module = traced()
    before = state(module)
    with pytest.raises(CheckError, match="odd"):
        PassManager([swap(torch.relu, torch.tanh)], checks=[odd])(module)

    assert before == state(module)


def test_an_interruption_passes_through_and_leaves_no_trace():
    def odd(graph_module):
        raise Odd

    module = traced()
    before = state(module)
    with pytest.raises(Odd):
        PassManager([swap(torch.relu, torch.tanh), odd])(module)

    assert before == state(module)


def test_complaint_40_legality_is_declared_for_each_stage():
    """Complaint 40: a verifier fixed to one dialect; here each stage says what is legal, and the pass is named."""
    aten = torch.ops.aten

    def to_tanh(graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=aten.relu.default):
            node.target = aten.tanh.default

    legal = ["aten.linear.default", "aten.add.Tensor"]
    stage_b = Stage("B", [nothing], allowed=[*legal, aten.tanh])
    PassManager([to_tanh, stage_b], checks=[lint])(exported())

    with pytest.raises(CheckError, match="at the end of stage 'A'") as caught:
        PassManager([Stage("A", [to_tanh], allowed=legal), stage_b])(exported())
    assert caught.value.node.name == "relu"
    assert "calls aten.tanh.default, which is not among the allowed ops" in str(caught.value)
    assert "node 'relu' was made or altered by pass 'to_tanh'" in str(caught.value)
    legal_b = PassManager([stage_b])(exported(torch.nn.Tanh())).graph_module
    obeys_its_stage(legal_b)
    with pytest.raises(CheckError, match="in stage 'B', the graph has ops that are not legal here: node 'tanh'"):
        PassManager([swap(aten.tanh.default, aten.sin.default)], checks=[obeys_its_stage])(legal_b)
    with pytest.raises(CheckError, match="which is denied"):
        PassManager([Stage("C", [to_tanh], denied=["aten.tanh*"])])(exported())


def test_an_unusual_input_is_linted_less_strictly():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.relu, (x,))
    module = fx.GraphModule(torch.nn.Module(), graph)

    result = PassManager([nothing], run_checks_after_each_pass=True)(module)

    assert "the input is unusual" in result.warnings[0]
    assert "no output node" in result.warnings[0]


# --- failure ---------------------------------------------------------------------------------------------------------


def test_complaint_37_a_failing_pass_in_the_middle_of_ten_leaves_everything_as_it_was():
    """Complaint 37: copies of whole models; a failed pass leaves text, meta, tensors as they were, without a copy."""
    for module in (traced(), exported().graph_module, exported().module()):
        module.meta["mine"] = {"a": [1]}
        before = state(module)
        passes = [swap(torch.relu, torch.tanh), swap(torch.ops.aten.relu.default, torch.ops.aten.tanh.default)]
        passes += [nothing, nothing, nothing, fails, nothing, nothing, nothing, nothing]

        with pytest.raises(PassError, match="An error occurred when running the 'fails' pass") as caught:
            PassManager(passes, run_checks_after_each_pass=True)(module)

        assert (5, "fails") == (caught.value.index, caught.value.pass_name)
        assert before == state(module)
        assert {"a": [1]} == module.meta["mine"]


def test_an_error_tells_pass_position_node_line_and_cause_once():
    with pytest.raises(PassError) as caught:
        PassManager([nothing, PassManager([nothing, fails], name="inner")])(exported())

    error = caught.value
    assert isinstance(error.__cause__, RuntimeError)
    assert not isinstance(error.__cause__, PassError)
    assert error.__cause__.__cause__ is None
    message = str(error)
    assert (
        "An error occurred when running the 'fails' pass (position 1.1) after the following passes: "
        "['nothing', 'nothing']: RuntimeError: bad" in message
    )
    assert "at node: %linear" in message
    assert "test_pass_manager.py" in message
    assert "return torch.relu(self.linear(x)) + 1" in message
    assert 1 == message.count("bad")


def test_a_failed_program_keeps_its_signature():
    class DropsInput(ExportedProgramPassBase):
        def call(self, exported_program):
            remove_input(exported_program, "y")
            return ExportedProgramPassResult(exported_program, True)

    class TwoInputs(torch.nn.Module):
        def forward(self, x, y):
            return torch.relu(x) + 1

    program = exported(TwoInputs(), torch.ones(2), torch.ones(2))
    before = state(program.graph_module), str(program.graph_signature)

    with pytest.raises(PassError):
        PassManager([DropsInput(), fails])(program)
    assert before == (state(program.graph_module), str(program.graph_signature))
    program.validate()

    result = PassManager([DropsInput(), nothing], checks=[signature_is_valid])(program)
    assert 1 == len(result.exported_program.graph_signature.user_inputs)
    assert torch.equal(torch.full((2,), 2.0), result.exported_program.module()(torch.ones(2)))


def test_skip_takes_back_the_failed_pass_alone_and_goes_on():
    module = exported().graph_module
    relu, tanh, sin = (getattr(torch.ops.aten, name).default for name in ("relu", "tanh", "sin"))

    def to(old, new):
        def call(graph_module):
            for node in graph_module.graph.find_nodes(op="call_function", target=old):
                node.target = new
                node.meta["made"] = str(new)

        return call

    def half_way(graph_module):
        to(tanh, relu)(graph_module)
        graph_module.recompile()
        assert "relu" in graph_module.code
        raise ValueError("no")

    result = PassManager([to(relu, tanh), half_way, to(tanh, sin)], on_failure="skip")(module)

    assert sin in functions(module)
    assert "aten.sin" in module.code
    node = module.graph.find_nodes(op="call_function", target=sin)[0]
    assert str(sin) == node.meta["made"]
    assert ("pass 'half_way' (position 1) failed and was skipped: ValueError: no",) == result.warnings
    assert [None, "failed: ValueError: no", None] == [record.skipped for record in result.records]


def test_skip_takes_back_metadata_too():
    def marks(graph_module):
        for node in graph_module.graph.nodes:
            node.meta["kept"] = True

    def spoils(graph_module):
        for node in graph_module.graph.nodes:
            node.meta["kept"] = False
        raise ValueError

    module = traced()
    PassManager([marks, spoils], on_failure="skip")(module)

    assert all(node.meta["kept"] for node in module.graph.nodes)


def test_skip_of_a_manager_inside_takes_the_whole_of_it_back():
    module = traced()
    inner = PassManager([swap(torch.relu, torch.tanh), fails], name="inner")

    result = PassManager([inner, swap(torch.relu, torch.sin)], on_failure="skip")(module)

    assert torch.sin in functions(module)
    assert "torch.sin" in module.code
    assert "pass 'inner' (position 0) failed and was skipped" in result.warnings[0]


def test_skip_covers_failed_checks_and_broken_graphs():
    module = traced()

    result = PassManager([reverse_two, swap(torch.relu, torch.tanh)], on_failure="skip", checks=[lint])(module)

    assert torch.tanh in functions(module)
    assert "reverse_two" in result.warnings[0]


# --- the truth -------------------------------------------------------------------------------------------------------


@as_pass
def liar(graph_module):
    swap(torch.relu, torch.tanh)(graph_module)
    return PassResult(graph_module, False)


def test_a_pass_that_edits_and_denies_it_is_reported(caplog):
    with caplog.at_level(logging.WARNING):
        result = PassManager([liar])(traced())

    assert result.modified
    assert ("pass 'liar' says it did not change the graph, but it did: 1 altered",) == result.records[0].warnings
    assert (False, True) == (result.records[0].claimed, result.records[0].modified)


def test_a_pass_that_denies_its_edits_is_an_error_where_that_is_asked_for():
    module = traced()
    with pytest.raises(PassError, match="pass 'liar' says it did not change the graph, but it did"):
        PassManager([liar], strict=True)(module)

    assert torch.relu in functions(module)


def test_a_pass_that_writes_into_tensors_is_reported():
    def scale(graph_module):
        with torch.no_grad():
            graph_module.linear.weight.mul_(2)

    result = PassManager([scale])(traced())

    assert result.modified
    assert "wrote into tensors, which cannot be taken back: linear.weight" in result.records[0].warnings[0]


# --- records ---------------------------------------------------------------------------------------------------------


def test_a_record_tells_what_a_pass_was_cost_and_changed():
    def drop_relu(graph_module):
        (relu,) = graph_module.graph.find_nodes(op="call_function", target=torch.relu)
        linear = relu.args[0]
        relu.replace_all_uses_with(linear)
        graph_module.graph.erase_node(relu)
        remark(linear, "lost its relu")
        statistic("dropped")

    result = PassManager([Option(5), drop_relu], run_checks_after_each_pass=True)(traced())
    option, drop = result.records

    assert ({"size": 5}, (0,), False) == (option.options, option.position, option.modified)
    assert (5, 4, -1) == (drop.nodes_before, drop.nodes_after, drop.op_changes()["relu"])
    assert (("relu",), ("add",)) == (drop.edits.removed, drop.edits.altered)
    assert "1 removed, 1 altered" == str(drop.edits)
    assert ["lint"] == [outcome.name for outcome in drop.checks]
    assert "linear: lost its relu" == str(drop.remarks[0])
    assert {"dropped": 1} == drop.statistics
    assert drop.seconds > 0
    assert drop.as_dict()["name"] == "drop_relu"
    assert "drop_relu" in str(result.report)


def test_a_pass_without_targets_is_skipped_at_no_cost():
    @as_pass(target_ops=[torch.sin])
    def picky(graph_module):
        raise AssertionError

    assert "none of its target ops is there" == PassManager([picky])(traced()).records[0].skipped


# --- one recompile, no copies ----------------------------------------------------------------------------------------


def count_recompiles(monkeypatch):
    counted = []
    real = fx.GraphModule.recompile

    def recompile(self):
        counted.append(self)
        return real(self)

    monkeypatch.setattr(fx.GraphModule, "recompile", recompile)
    return counted


def test_complaint_20_one_recompile_and_code_that_is_never_stale(monkeypatch):
    """Complaint 20: one recompile at the end of a pipeline, and `.code` is never stale."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for index in range(5000):
        value = graph.call_function(torch.relu if index % 2 else torch.tanh, (value,))
    graph.output(value)
    module = fx.GraphModule(torch.nn.Module(), graph)
    counted = count_recompiles(monkeypatch)

    def flip(graph_module):
        relu, tanh = (graph_module.graph.find_nodes(op="call_function", target=f) for f in (torch.relu, torch.tanh))
        for node in [*relu, *tanh]:
            node.target = torch.tanh if node.target is torch.relu else torch.relu
        graph_module.recompile()

    PassManager([flip] * 10)(module)
    assert 1 == len(counted)

    counted.clear()
    PassManager([nothing] * 10)(module)
    assert [] == counted


def test_whoever_looks_in_between_sees_the_code_of_the_moment():
    looked = []

    def look(graph_module):
        looked.append((graph_module.code.count("torch.relu"), float(graph_module(torch.full((1, 4), -1e9)).min())))
        pickle.dumps(graph_module)

    class Relu(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x)

    module = fx.symbolic_trace(Relu())
    kind = type(module)
    attributes = set(vars(kind))
    PassManager([look, swap(torch.relu, torch.tanh), look, swap(torch.tanh, torch.relu), look])(module)

    assert [(1, 0.0), (0, -1.0), (1, 0.0)] == looked
    assert attributes == set(vars(kind))


def test_nested_graphs_are_compiled_only_where_they_changed(monkeypatch):
    class Branches(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: torch.relu(x), lambda x: torch.sin(x), (x,))

    module = exported(Branches(), torch.ones(3)).graph_module
    counted = count_recompiles(monkeypatch)
    PassManager([swap(torch.ops.aten.relu.default, torch.ops.aten.tanh.default)])(module)

    assert [] == counted  # bodies are copies, which compile when somebody looks
    assert "aten.tanh" in module.true_graph_0.code
    assert [module.true_graph_0] == counted
    assert torch.equal(torch.tanh(torch.ones(3)), module(torch.ones(3))[0])


def test_complaint_37_no_tensor_is_copied():
    """Complaint 37: the pipeline runs on a model of 10 GB in meta tensors, and memory does not grow with the passes."""
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(16384, 16384, bias=False) for _ in range(10)))
    module = fx.symbolic_trace(model)
    parameters = [id(parameter) for parameter in module.parameters()]
    flip, flop = swap(torch.relu, torch.tanh), swap(torch.tanh, torch.relu)

    def peak(passes):
        gc.collect()
        tracemalloc.start()
        PassManager([flip, flop] * passes)(module)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(5), peak(50)

    assert parameters == [id(parameter) for parameter in module.parameters()]
    assert many - few < 1e6


def test_real_memory_does_not_grow_with_a_big_model():
    weight = torch.zeros(25_000_000)
    module = fx.symbolic_trace(Model())
    module.register_buffer("big", weight)
    before = weight.untyped_storage().data_ptr()
    PassManager([swap(torch.relu, torch.tanh), nothing], on_failure="skip")(module)

    assert before == module.big.untyped_storage().data_ptr()


def test_a_deep_chain_needs_no_recursion():
    graph = fx.Graph()
    value = graph.placeholder("x")
    for _ in range(20_000):
        value = graph.call_function(torch.relu, (value,))
    graph.output(value)
    module = fx.GraphModule(torch.nn.Module(), graph)
    last = module.graph.find_nodes(op="call_function", target=torch.relu)[-1]

    def change_last(graph_module):
        last.target = torch.tanh

    limit = sys.getrecursionlimit()
    depth = len(__import__("inspect").stack())
    sys.setrecursionlimit(depth + 200)
    try:
        result = PassManager([nothing, change_last], checks=[lint])(module)
    finally:
        sys.setrecursionlimit(limit)

    assert result.modified


# --- exported programs -----------------------------------------------------------------------------------------------


def test_a_program_comes_out_as_a_program_with_a_valid_signature():
    program = exported()
    aten = torch.ops.aten

    result = PassManager([swap(aten.relu.default, aten.tanh.default)], checks=[signature_is_valid, same_signature])(
        program
    )

    result.exported_program.validate()
    assert aten.tanh.default in functions(result.exported_program.graph_module)
    assert result.exported_program.module()(torch.ones(2, 4)).shape == (2, 4)


def test_the_output_may_be_renamed_and_the_signature_follows():
    def rename(graph_module):
        node = graph_module.graph.output_node().args[0][0]
        node.name = "answer"

    result = PassManager([rename])(exported())

    assert ("answer",) == tuple(result.exported_program.graph_signature.user_outputs)
    result.exported_program.validate()


def test_a_graph_that_no_longer_fits_its_signature_is_an_error_that_names_the_pass():
    def adds_input(graph_module):
        first = next(iter(graph_module.graph.nodes))
        with graph_module.graph.inserting_before(first):
            graph_module.graph.placeholder("extra")

    program = exported()
    before = state(program.graph_module)
    with pytest.raises(PassError, match="An error occurred when running the 'adds_input' pass"):
        PassManager([nothing, adds_input])(program)

    assert before == state(program.graph_module)
    program.validate()


def test_executorchs_program_manager_works_on_a_shallow_copy():
    program = exported()
    aten = torch.ops.aten
    manager = ExportedProgramPassManager([[swap(aten.relu.default, aten.tanh.default)]], steps=2)

    result = manager(program)

    assert isinstance(result, ExportedProgramPassResult)
    assert result.modified
    assert result.exported_program is not program
    assert aten.tanh.default in functions(result.exported_program.graph_module)
    assert not manager(result.exported_program).modified
    with pytest.raises(TypeError, match="use PassManager for a GraphModule"):
        manager(traced())


def test_a_call_method_that_names_no_method_is_refused():
    def introduce_call_method(graph_module):
        node = list(graph_module.graph.nodes)[-2]
        with graph_module.graph.inserting_after(node):
            new = graph_module.graph.call_method("torch.ops.relu", (torch.randn(2),))
            node.replace_all_uses_with(new)

    for manager in (PassManager, ExportedProgramPassManager):
        with pytest.raises(Exception, match=r"is a call_method of 'torch\.ops\.relu', which is not supported"):
            manager(passes=[introduce_call_method], run_checks_after_each_pass=True)(exported())


def test_ordinary_call_methods_are_legal():
    module = fx.symbolic_trace(lambda x: x.relu().add(1))

    assert not PassManager([nothing], run_checks_after_each_pass=True)(module).modified


def test_only_ops_in_a_manager_names_the_pass():
    with pytest.raises(CheckError, match="after pass 'relu_to_tanh'"):
        PassManager(
            [swap(torch.relu, torch.tanh)], checks=[only_ops(denied=[torch.tanh])], run_checks_after_each_pass=True
        )(traced())


# --- random edits ----------------------------------------------------------------------------------------------------


@st.composite
def edits(draw):
    """A pass that makes a few random edits, and may fail at the end."""
    choices = draw(
        st.lists(st.tuples(st.sampled_from(["swap", "bypass", "insert", "meta", "buffer"]), st.integers(0, 9)))
    )
    fails_at_end = draw(st.booleans())

    def random_edits(graph_module):
        for what, number in choices:
            calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
            node = calls[number % len(calls)] if calls else None
            if node is None or what == "buffer":
                graph_module.register_buffer(f"extra_{number}", torch.ones(1))
            elif what == "swap":
                node.target = torch.tanh if len(node.args) == 1 else torch.sub
            elif what == "bypass":
                node.replace_all_uses_with(node.args[0])
                graph_module.graph.erase_node(node)
            elif what == "insert":
                with graph_module.graph.inserting_after(node):
                    new = graph_module.graph.call_function(torch.relu, (node,))
                node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
            else:
                node.meta["mark"] = [number]
        if fails_at_end:
            raise RuntimeError("at the end")

    return random_edits


def arithmetic():
    return fx.symbolic_trace(lambda x: torch.add(torch.relu(x), torch.add(torch.relu(x), 1)))


@given(st.lists(edits(), min_size=1, max_size=4))
def test_random_edits_are_kept_whole_or_taken_back_whole(passes):
    module = arithmetic()
    module.recompile()
    before = state(module)
    try:
        result = PassManager(passes)(module)
    except PassError:
        assert before == state(module)
    else:
        after = state(module)
        text_nodes_tensors = [(found[0], found[3], found[4]) for found in (before, after)]
        assert result.modified == (text_nodes_tensors[0] != text_nodes_tensors[1])
        lint(module)
        assert module.code == fx.GraphModule(module, module.graph).code
        module(torch.ones(2))


@given(st.lists(edits(), min_size=1, max_size=4))
def test_skipping_gives_what_the_good_passes_alone_give(passes):
    module, other = arithmetic(), arithmetic()
    result = PassManager(passes, on_failure="skip")(module)
    good = [pass_ for pass_, record in zip(passes, result.records, strict=True) if record.skipped is None]
    PassManager(good)(other)

    assert str(other.graph) == str(module.graph)
    assert other.code == module.code
    assert [node.meta for node in other.graph.nodes] == [node.meta for node in module.graph.nodes]
