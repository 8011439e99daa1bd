"""Names for passes: decorators, entry points, text that round-trips, and errors that point at the character."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import attrs
import pytest
import torch

from fxpasses.errors import PipelineError, PipelineSyntaxError
from fxpasses.pass_base import PassBase, PassResult, as_pass
from fxpasses.pass_manager import FixedPoint, PassManager, Stage, When
from fxpasses.passes import EliminateDeadCode, FoldConstants, FuseConvBN, RemoveDetach
from fxpasses.registry import (
    Registry,
    default_registry,
    parse_pipeline,
    pipeline_text,
    register_condition,
    register_pass,
)
from fxpasses.units import MiB

NAME, MODULE = "fxpasses-example-plugin", "fxpasses_example_plugin"
PLUGIN = pathlib.Path(__file__).parents[1] / "plugin"
EXAMPLE = "remove-detach,fold-constants{max-bytes=4MiB},repeat(fuse-conv-bn,eliminate-dead-code){max-steps=4}"


@attrs.frozen
class Scale(PassBase):
    """Scale something.

    Not done here.
    """

    factor: float = 2.0
    max_bytes: int = attrs.field(default=MiB, kw_only=True)
    names: tuple[str, ...] = ()

    def call(self, graph_module):
        return PassResult(graph_module, False)


class Plain(PassBase):
    """Options in ``__init__``."""

    def __init__(self, depth: int, loud: bool = False):
        self.depth = depth
        self.loud = loud

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __hash__(self):
        return hash(self.depth)

    def call(self, graph_module):
        return PassResult(graph_module, False)


@as_pass
def do_nothing(graph_module):
    """Do nothing."""


def is_small(graph_module):
    return len(graph_module.graph.nodes) < 9


@pytest.fixture
def registry():
    from fxpasses.registry.names import _add_groups

    made = Registry([_add_groups])
    for each in (Scale, Plain, do_nothing):
        made.register(each)
    made.register_condition(is_small)
    return made


def test_a_pipeline_reads_as_the_same_pipeline_in_python():
    expected = PassManager(
        [RemoveDetach(), FoldConstants(max_bytes=4 * MiB), FixedPoint([FuseConvBN(), EliminateDeadCode()], max_steps=4)]
    )

    assert expected == parse_pipeline(EXAMPLE)
    assert pipeline_text(parse_pipeline(EXAMPLE)) == EXAMPLE


def test_a_pipeline_from_text_runs():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 2, 3)
            self.norm = torch.nn.BatchNorm2d(2)

        def forward(self, x):
            return self.norm(self.conv(x)).detach()

    model, x = Model().eval(), torch.randn(1, 1, 4, 4)
    program = torch.export.export(model, (x,))
    result = parse_pipeline(EXAMPLE)(program)

    assert result.modified
    torch.testing.assert_close(model(x), program.module()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "scale",
        "scale{factor=0.5,names=[a,b]},scale{max-bytes=3KiB}",
        "plain{depth=3,loud=true}",
        "do-nothing,do-nothing",
        "repeat(scale,stage(do-nothing){name=\"tidy up\"}){max-steps=2}",
        "when(scale){condition=is-small}",
        "pipeline(scale){steps=3}",
        "pipeline(scale){steps=2,on-failure=skip},scale",
        "repeat()",
    ],
)  # fmt: skip
def test_text_and_pipeline_round_trip(registry, text):
    manager = registry.parse(text)

    assert text == registry.text_of(manager)
    assert manager == registry.parse(registry.text_of(manager))


def test_options_whose_defaults_are_lists_are_written_too(registry):
    @attrs.frozen
    class Keep(PassBase):
        names: list[str] = attrs.field(factory=list)
        depth: int = 1

        def call(self, graph_module):
            return PassResult(graph_module, False)

    registry.register(Keep)

    assert "keep" == registry.text_of([Keep()])
    assert "keep{names=[a],depth=2}" == registry.text_of([Keep(["a"], 2)])
    assert Keep(["a"]) == registry.parse("keep{names=[a]}").passes[0]


def test_whitespace_and_defaults_do_not_matter(registry):
    loose = registry.parse(" scale { factor = 2.0 } ,\n  repeat ( do-nothing ) { max-steps = 10 } ")

    assert loose == PassManager([Scale(), FixedPoint([do_nothing])])
    assert registry.text_of(loose) == "scale,repeat(do-nothing)"


def test_conditions_have_names(registry):
    (made,) = registry.parse("when(scale){condition=is-small}").passes

    assert isinstance(made, When)
    assert made.condition is is_small


def test_stages_keep_their_names(registry):
    (made,) = registry.parse("stage(scale){name=tidy}").passes

    assert isinstance(made, Stage)
    assert (made.name, made.passes) == ("tidy", [Scale()])


THERE = "There are: do-nothing, pipeline, plain, repeat, scale, stage, when"


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("scal", 0, f"unknown pass 'scal'; did you mean 'scale'? {THERE}"),
        ("scale,repeat(xyz)", 13, f"unknown pass 'xyz'. {THERE}"),
        ("scale{fctor=1}", 6, "'scale' has no option 'fctor'; did you mean 'factor'? Its options: factor, max-bytes, "
         "names"),
        ("do-nothing{x=1}", 11, "'do-nothing' has no option 'x'. Its options: none"),
        ("scale{factor=big}", 13, "option 'factor': 'big' is not a number, such as 0.5 or 1e-3"),
        ("plain", 5, "'plain' needs the option 'depth'"),
        ("repeat", 6, "'repeat' needs passes in parentheses: repeat(pass,pass)"),
        ("scale(scale)", 5, "'scale' takes no passes in parentheses"),
        ("when(scale){condition=nope}", 22, "unknown condition 'nope'. There are: is-small"),
        ("repeat(scale){max-steps=0}", 0, "'repeat' refuses these options: FixedPoint(passes, max_steps): max_steps is "
         "0, but must be at least 1"),
    ],
)  # fmt: skip
def test_an_error_points_at_the_character_and_lists_what_there_is(registry, text, column, reason):
    with pytest.raises(PipelineSyntaxError) as caught:
        registry.parse(text)

    assert (column, reason) == (caught.value.column, caught.value.reason)
    assert str(caught.value) == f"{reason}\n  {text}\n  {' ' * column}^"


def test_a_class_is_registered_by_decorator_with_and_without_a_name():
    registry = Registry()

    @register_pass("other-name", registry=registry)
    class First(Scale): ...

    @register_pass(registry=registry)
    class SecondPass(Scale): ...

    assert ["other-name", "second"] == registry.names()
    assert registry["second"].maker is SecondPass
    assert "other-name" in registry


def test_the_shared_registry_is_the_default():
    @register_pass
    class OnlyHereInThisTest(Scale): ...

    assert isinstance(parse_pipeline("only-here-in-this-test").passes[0], OnlyHereInThisTest)


def test_a_name_can_be_taken_once():
    registry = Registry()
    registry.register(Scale)
    registry.register(Scale)  # the same again is no clash
    with pytest.raises(PipelineError, match=r"the name 'scale' is taken: Scale \(.*test_registry\) has it, and Plain"):
        registry.register(Plain, "scale")


def test_a_condition_name_can_be_taken_once(registry):
    with pytest.raises(PipelineError, match="the condition name 'is-small' is taken by"):
        register_condition("is-small", registry=registry)(lambda module: True)


@pytest.mark.parametrize("name", ["two words", "a,b", "", "7up"])
def test_a_name_must_be_writable(name):
    with pytest.raises(PipelineError, match="cannot be the name of a pass") if name else pytest.raises(PipelineError):
        Registry().register(lambda module: None, name)


def test_only_what_can_be_called_is_a_pass():
    with pytest.raises(PipelineError, match="3 is no pass: register a class, a function, or a pass object"):
        Registry().register(3)


def test_a_pass_without_a_name_cannot_be_written(registry):
    with pytest.raises(PipelineError, match=r"the pass RemoveDetach\(\) has no name to write it by"):
        registry.text_of([RemoveDetach()])


def test_an_option_that_the_pass_forgets_cannot_be_written():
    class Forgets(PassBase):
        def __init__(self, depth: int = 1):
            pass

        def call(self, graph_module):
            return PassResult(graph_module, False)

    registry = Registry()
    registry.register(Forgets)
    with pytest.raises(PipelineError, match="Forgets does not keep its option 'depth' as an attribute"):
        registry.text_of([Forgets(3)])


def test_entries_tell_what_there_is(registry):
    scale = registry["scale"]

    assert "Scale something." == scale.summary
    assert ["factor", "max-bytes", "names"] == [option.text_name for option in scale.options]
    assert [False, True, False] == [option.is_size for option in scale.options]
    assert registry["repeat"].takes_passes
    assert not scale.takes_passes


def test_the_registry_is_filled_when_it_is_asked_and_not_before():
    asked = []
    registry = Registry([lambda registry: asked.append(registry)])
    untouched = list(asked)
    registry.names()
    registry.names()

    assert ([], [registry]) == (untouched, asked)


def test_the_passes_of_this_package_have_names():
    names = default_registry().names()

    assert {"eliminate-dead-code", "fold-constants", "fuse-conv-bn", "remove-detach", "repeat", "stage", "when"} <= set(
        names
    )


# --- a package of somebody else's -------------------------------------------------------------------------------------

SCRIPT = """
import torch
from fxpasses.errors import PipelineError
from fxpasses.registry import default_registry, parse_pipeline, pipeline_text

text = "use-relu,scale-by-constant{factor=3.0},repeat(use-tanh,eliminate-dead-code{attributes=false}){max-steps=2}"
print([name for name in default_registry().names() if name.startswith(("use-", "scale-"))])
print(default_registry()["use-relu"].origin, "|", default_registry()["use-tanh"].summary)
manager = parse_pipeline("use-relu,scale-by-constant{factor=3.0},use-tanh")
print(pipeline_text(manager))
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu_(x + 1).sigmoid()
program = torch.export.export(Model(), (torch.ones(2),))
result = manager(program)
print([record.modified for record in result.records])
torch.testing.assert_close(program.module()(torch.ones(2)), torch.tanh(torch.full((2,), 6.0)))
for broken in ("needs-what-is-not-installed", "use-relu,eliminate-dead-code"):
    try:
        parse_pipeline(broken)
    except PipelineError as error:
        print(error)
"""


def test_an_installed_package_adds_its_passes_by_entry_point(tmp_path):
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*install, "--disable-pip-version-check", "--target", str(tmp_path), str(PLUGIN)],
        check=True,
        capture_output=True,
    )
    path = {"PYTHONPATH": f"{tmp_path}:{PLUGIN.parent.parent}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "['scale-by-constant', 'use-relu', 'use-tanh']",
        f"entry point of {NAME} | Replace sigmoid by tanh.",
        "use-relu,scale-by-constant{factor=3.0},use-tanh",
        "[True, True, True]",
        f"the pass 'needs-what-is-not-installed' of {NAME} ({MODULE}.broken:Broken) cannot be used: "
        f"ModuleNotFoundError: No module named 'a_package_that_nobody_has'; repair or uninstall {NAME}",
        "  needs-what-is-not-installed",
        "  ^",
        f"the pass 'eliminate-dead-code' of {NAME} ({MODULE}:UseRelu) cannot be used: the name 'eliminate-dead-code' "
        f"is taken: EliminateDeadCode (fxpasses.passes.cleanup) has it, and UseRelu (entry point of {NAME}) wants it; "
        f"register one of them under another name; repair or uninstall {NAME}",
        "  use-relu,eliminate-dead-code",
        "           ^",
    ]
