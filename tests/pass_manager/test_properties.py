"""What passes need, provide and destroy: refused before anything runs, established where it can be checked."""

import pytest
import torch
from torch import fx

from fxpasses import FixedPoint, PassError, PassManager, PipelineError, Stage, When, as_pass
from fxpasses.pass_manager import FUNCTIONAL, NORMALIZED_ARGS, ON_DEVICES, SHAPES_KNOWN, Property, decomposed_to

RAN = []


def make(name, function=None, **declared):
    def pass_(graph_module):
        RAN.append(name)
        if function is not None:
            function(graph_module)

    pass_.__name__ = name
    return as_pass(pass_, **declared)


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


def traced():
    return fx.symbolic_trace(lambda x: torch.relu(x) + 1)


NORMALIZE = make("normalize", provides=[NORMALIZED_ARGS])
MATCH = make("match", needs=[NORMALIZED_ARGS])
SHUFFLE = make("shuffle", destroys=[NORMALIZED_ARGS])


def test_what_an_earlier_pass_provides_is_there():
    PassManager([NORMALIZE, MATCH])(traced())

    assert ["normalize", "match"] == RAN


def test_what_an_earlier_pass_destroys_is_refused_naming_both():
    with pytest.raises(
        PipelineError,
        match=r"'match' \(position 2\) needs the property 'normalized_args', which pass 'shuffle' before it destroys",
    ):
        PassManager([NORMALIZE, SHUFFLE, MATCH])(traced())
    assert [] == RAN

    PassManager([NORMALIZE, SHUFFLE, NORMALIZE, MATCH])(traced())


def test_what_comes_too_late_is_refused_naming_both():
    with pytest.raises(PipelineError, match=r"pass 'normalize' provides it, but runs later; move it before 'match'"):
        PassManager([MATCH, NORMALIZE])(traced())
    assert [] == RAN


def test_complaint_06_a_pipeline_that_lacks_a_required_pass_is_refused():
    """Complaint 6: a pipeline lacking a required pass is an error before any run."""
    with pytest.raises(PipelineError, match="put a pass that provides it before") as caught:
        PassManager([MATCH])(traced())

    assert "match" == caught.value.pass_name
    assert [] == RAN


def test_groups_are_followed_in_the_order_they_run():
    PassManager([Stage("front", [NORMALIZE]), Stage("back", [FixedPoint([MATCH])])])(traced())

    with pytest.raises(
        PipelineError, match=r"'match' \(position 1.0\) needs .* which pass 'shuffle' before it destroys"
    ):
        PassManager([NORMALIZE, FixedPoint([MATCH, SHUFFLE])])(traced())
    with pytest.raises(PipelineError, match="no pass before it provides"):
        PassManager([When(lambda graph_module: True, [NORMALIZE]), MATCH])(traced())


def test_a_property_with_a_check_is_established_on_the_input():
    shapes = make("shapes", needs=[SHAPES_KNOWN])

    with pytest.raises(PipelineError, match=r"needs the property 'shapes_known', .*metadata is not complete: node 'x'"):
        PassManager([shapes])(traced())
    PassManager([shapes])(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)))


def test_a_promise_that_can_be_checked_is_checked_on_the_result():
    module = fx.symbolic_trace(lambda x: x.relu_())
    false = make("false", provides=[FUNCTIONAL])

    with pytest.raises(
        PassError, match="pass 'false' provides the property 'functional', but its result does not have it"
    ):
        PassManager([false])(module)

    def functionalize(graph_module):
        for node in graph_module.graph.find_nodes(op="call_method", target="relu_"):
            node.target = "relu"

    result = PassManager([make("real", functionalize, provides=[FUNCTIONAL]), make("user", needs=[FUNCTIONAL])])(module)
    assert ("functional",) == result.report.properties


def test_decomposed_to_is_a_property_with_an_op_set():
    core = decomposed_to([torch.ops.aten.relu.default, torch.ops.aten.add.Tensor])
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))

    assert core == decomposed_to(iter([torch.ops.aten.add.Tensor, torch.ops.aten.relu.default]))
    assert core != decomposed_to([])
    PassManager([make("lower", needs=[core])])(program)
    with pytest.raises(PipelineError, match="not among the allowed ops"):
        PassManager([make("lower", needs=[decomposed_to(["aten.add.Tensor"])])])(program)


def test_a_pass_whose_provider_failed_is_not_run_on_a_lie():
    def fail(graph_module):
        raise ValueError("no")

    result = PassManager(
        [make("broken", fail, provides=[ON_DEVICES]), make("user", needs=[ON_DEVICES])], on_failure="skip"
    )(traced())

    assert ["broken"] == RAN
    assert "which was lost to pass 'broken (which failed)'" in result.warnings[1]


def test_a_later_pipeline_remembers_what_an_earlier_one_established():
    module = PassManager([NORMALIZE])(traced()).graph_module

    PassManager([MATCH])(module)
    PassManager([SHUFFLE])(module)
    with pytest.raises(PipelineError, match="normalized_args"):
        PassManager([MATCH])(module)


def test_properties_are_values():
    assert Property("quantized") == Property("quantized", check=print)
    assert "Property('functional')" == repr(FUNCTIONAL)
    assert "shapes_known" == str(SHAPES_KNOWN)
