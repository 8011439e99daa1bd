"""The helpers for people who write passes, and the pytest plug-in with golden files."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch

from fxpasses.export_pass import ExportPass
from fxpasses.pass_base import PassBase, PassResult
from fxpasses.testing import Golden, assert_pass, assert_same_values, graph_text

aten = torch.ops.aten
ROOT = pathlib.Path(__file__).parent.parent


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) + 1


class Swap(ExportPass):
    """Replace one operator by another."""

    def __init__(self, old, new):
        self.old, self.new = old, new

    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(self.new if op == self.old else op, args, kwargs, meta)


class Grow(PassBase):
    """Never settles."""

    def call(self, graph_module):
        output = graph_module.graph.output_node()
        value = output.args[0][0]
        with graph_module.graph.inserting_before(output):
            node = graph_module.graph.call_function(aten.clone.default, (value,))
        node.meta["val"] = value.meta["val"]
        output.args = ((node,),)
        return PassResult(graph_module, True)


class Forgets(PassBase):
    """Leaves a node without its value."""

    def call(self, graph_module):
        for node in graph_module.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.meta.pop("val", None)
            node.target = aten.sin.default
            node.args = (*node.args,)
            node.name = "other"
        return PassResult(graph_module, True)


X = (torch.linspace(-1, 1, 4),)


def test_a_pass_that_keeps_its_promises_gives_its_result():
    result = assert_pass(Swap(aten.add.Tensor, aten.add.Tensor), Model(), X, modified=False)

    assert not result.modified


@pytest.mark.parametrize(
    ("pass_", "options", "message"),
    [
        (Swap(aten.sin.default, aten.cos.default), {}, "Swap: values differ at"),
        (
            Swap(aten.cos.default, aten.sin.default),
            {},
            "Swap: expected modified=True, but the pass says modified=False",
        ),
        (Grow(), {}, "Grow: a second run changed the graph again"),
    ],
)
def test_a_broken_promise_is_named(pass_, options, message):
    with pytest.raises(AssertionError, match=message):
        assert_pass(pass_, Model(), X, **options)


def test_a_promise_can_be_waived():
    assert_pass(Swap(aten.sin.default, aten.cos.default), Model(), X, same_values=False)
    assert_pass(Grow(), Model(), X, settles=False)


def test_missing_metadata_is_a_broken_promise():
    with pytest.raises(Exception, match="val"):
        assert_pass(Forgets(), Model(), X, settles=False)


def test_gradients_are_compared_when_asked():
    class Detach(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            value = super().call_operator(op, args, kwargs, meta)
            return super().call_operator(aten.detach.default, (value,), {}, meta) if op == aten.sin.default else value

    assert_pass(Detach(), Model(), X, settles=False)
    with pytest.raises(AssertionError, match=r"the structure of the outputs changed|values differ"):
        assert_pass(Detach(), Model(), X, settles=False, gradients=True)


def test_what_happens_to_inputs_is_compared_too():
    class Writes(torch.nn.Module):
        def forward(self, x):
            return x.add_(1)

    with pytest.raises(AssertionError, match="values differ"):
        assert_pass(Swap(aten.add_.Tensor, aten.add.Tensor), torch.export.export(Writes(), X).module(), X)


def test_what_happens_to_buffers_is_compared_too():
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            self.seen.add_(1)
            return x.sin()

    class StopCounting(PassBase):
        def call(self, graph_module):
            writes = graph_module.graph.find_nodes(op="call_function", target=aten.add_.Tensor)
            for node in writes:
                graph_module.graph.erase_node(node)
            return PassResult(graph_module, bool(writes))

    assert_pass(Swap(aten.sin.default, aten.cos.default), Counts(), X, same_values=False)
    with pytest.raises(AssertionError, match=r"StopCounting, buffers after a run: values differ at \['seen'\]"):
        assert_pass(StopCounting(), torch.export.export(Counts(), X).module(), X)


def test_values_are_compared_with_their_place():
    with pytest.raises(AssertionError, match=r"mine: values differ at \['a'\]\[1\]"):
        assert_same_values({"a": [torch.ones(1), torch.ones(1)]}, {"a": [torch.ones(1), torch.zeros(1)]}, what="mine")
    with pytest.raises(AssertionError, match="mine: the structure of the outputs changed"):
        assert_same_values([1], (1,), what="mine")


def test_the_text_of_a_graph_has_types_and_the_graphs_inside():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    text = graph_text(torch.export.export(Branch(), X))

    assert text.splitlines()[:2] == ["graph:", "  x: f32[4] = placeholder"]
    assert (
        "graph true_graph_0:\n  x: f32[4] = placeholder\n  sin: f32[4] = aten.sin.default(x)\n  return (sin,)" in text
    )


def test_a_golden_file_is_written_compared_and_shown_as_a_diff(tmp_path):
    program = torch.export.export(Model(), X)
    Golden(tmp_path / "g", "name", update=True).check(program)
    Golden(tmp_path / "g", "name").check(program)
    with pytest.raises(AssertionError, match=r"(?s)-  sin: f32\[4\] = aten.sin.default\(x\)\n.*\+other"):
        Golden(tmp_path / "g", "name").check("\n".join(["graph:", "  x: f32[4] = placeholder", "other"]))
    with pytest.raises(AssertionError, match=r"there is no golden file .*; write it with: pytest --update-golden"):
        Golden(tmp_path, "absent").check(program)

    assert (tmp_path / "g" / "name.txt").read_text().startswith("graph:\n")


CONFTEST = 'pytest_plugins = ["fxpasses.testing"]\n'
TEST = """
    import torch
    from fxpasses.passes import RemoveDetach
    from fxpasses.testing import assert_pass

    class Model(torch.nn.Module):
        def forward(self, x):
            return x.detach() + 1

    def test_detach_goes(golden):
        assert_pass(RemoveDetach(), Model(), (torch.ones(2),), golden=golden)
"""


CLASSES = """
    class TestOne:
        def test_text(self, golden):
            golden.check("one")

    class TestTwo:
        def test_text(self, golden):
            golden.check("two")
"""


def test_tests_of_the_same_name_in_two_classes_have_golden_files_of_their_own(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(textwrap.dedent(CLASSES))

    assert "[0, 0]" == run_in(tmp_path, runs=[["--update-golden"], []]).splitlines()[-1]
    assert "one\n" == (tmp_path / "golden" / "test_it" / "TestOne.test_text.txt").read_text()
    assert "two\n" == (tmp_path / "golden" / "test_it" / "TestTwo.test_text.txt").read_text()


def run_in(folder, runs):
    script = f"""
import pytest, sys
common = ["-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_it.py"]
print([int(pytest.main([*common, *options])) for options in {runs}])
"""
    environment = {"PYTHONPATH": f"{ROOT}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_the_plug_in_works_in_a_folder_of_its_own(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(textwrap.dedent(TEST))

    output = run_in(tmp_path, runs=[[], ["--update-golden"], []])

    assert output.splitlines()[-1] == "[1, 0, 0]"
    assert "there is no golden file" in output
    assert "aten.add.Tensor(x, 1)" in (tmp_path / "golden" / "test_it" / "test_detach_goes.txt").read_text()
