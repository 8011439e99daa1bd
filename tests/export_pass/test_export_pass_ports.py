"""Passes in the shapes that backends write for ``executorch.exir.pass_base``: only the import line is another one.

Each class has the structure of a kind of pass found in ExecuTorch's backends; wording and details are our own. The
check against ExecuTorch itself, with its own pass classes, is ``benchmarks/export_pass_ports.py``.
"""

from __future__ import annotations

import copy
import operator
import traceback
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from fxpasses.checks import fake_values_agree, lint, metadata_is_complete
from fxpasses.errors import FxPassesError, PassError
from fxpasses.export_pass import (
    Argument,
    ExportedProgramPassBase,
    ExportPass,
    ExportPassBaseError,
    NodeMetadata,
    PassResult,
    ProxyValue,
    map_args,
)
from fxpasses.pass_manager import PassManager
from fxpasses.testing import assert_same_values

aten = torch.ops.aten
X = torch.randn(2, 4, 6)


class Model(torch.nn.Module):
    """What the ported passes look for, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6).requires_grad_(False)  # torch warns about cond with gradients

    def forward(self, x):
        y = self.linear(x).softmax(-1).clone()
        first, second = torch.split(y, [1, 3], dim=1)
        z = first * second + 2
        return z.mean(-1, keepdim=True).squeeze(0), torch.cond(z.sum() > 0, lambda z: z / 2, lambda z: z - 1, (z,))


def check(pass_, *, modified=True):
    """Run on a decomposed program: same numbers, complete metadata, settles."""
    program = torch.export.export(Model(), (X,)).run_decompositions()
    expected = program.module()(X)
    result = PassManager([pass_])(program)

    assert result.modified == modified
    assert_same_values(program.module()(X), expected)
    lint(program)
    metadata_is_complete(program)
    fake_values_agree(program)
    program.validate()
    return program


def targets(program):
    return [
        str(node.target)
        for module in program.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]


# 1. one op into several, each made by super().call_operator, updating the stack trace on the way


class BackendPass(ExportPass):
    """A base class between the framework and the passes, as backends have: an extra parameter, a depth count."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.submodule_depth = 0

    def call_operator(self, op, args, kwargs, meta, updated: bool = False):
        if not updated:
            return super().call_operator(op, args, kwargs, meta)
        entries = {key: meta[key] for key in meta.data}
        entries["stack_trace"] = f"{entries.get('stack_trace', '')}\n{traceback.format_stack()[-2]}"
        return super().call_operator(op, args, kwargs, NodeMetadata(entries))

    def call_submodule(self, graph_module: GraphModule, inputs: tuple[Argument, ...]) -> PassResult:
        self.submodule_depth += 1
        result = super().call_submodule(graph_module, inputs)
        self.submodule_depth -= 1
        return result


class DecomposeSoftmax(BackendPass):
    """exp(x - max) / sum."""

    def call_operator(self, op, args, kwargs, meta):
        if op != aten._softmax.default:
            return super().call_operator(op, args, kwargs, meta)
        x, dim = args[0], args[1]
        largest = super().call_operator(aten.amax.default, (x, [dim], True), {}, meta, updated=True)
        shifted = super().call_operator(aten.sub.Tensor, (x, largest), {}, meta, updated=True)
        powers = super().call_operator(aten.exp.default, (shifted,), {}, meta, updated=True)
        total = super().call_operator(aten.sum.dim_IntList, (powers, [dim], True), {}, meta, updated=True)
        return super().call_operator(aten.div.Tensor, (powers, total), {}, meta, updated=True)


def test_port_one_operator_becomes_several():
    pass_ = DecomposeSoftmax()
    program = check(pass_)
    exp = program.graph.find_nodes(op="call_function", target=aten.exp.default)[0]

    assert "aten._softmax.default" not in targets(program)
    assert "super().call_operator(aten.exp.default" in exp.meta["stack_trace"]
    assert pass_.submodule_depth == 0


# 2. scalars become nodes of their own, made inside a schema map


class ScalarsToFullNodes(ExportPass):
    """Python numbers become ``full`` nodes where the schema says Tensor."""

    def call_operator(self, op, args, kwargs, meta):
        def try_coerce(value, arg):
            if isinstance(value, int | float) and isinstance(arg.type, torch.TensorType):
                like = meta["val"]
                options = {"dtype": like.dtype, "device": like.device}
                return super(ScalarsToFullNodes, self).call_operator(aten.full.default, ((1,), value), options, meta)
            return value

        args, kwargs = map_args(op, try_coerce, args, kwargs)
        return super().call_operator(op, args, kwargs, meta)


def test_port_scalars_become_nodes_even_inside_bodies():
    program = check(ScalarsToFullNodes())

    assert targets(program).count("aten.full.default") == 3


# 3. drop an op by returning its input, looking at metadata and at the producer of the input


class RemoveClones(ExportPass):
    """A clone that changes no layout is its input."""

    def call_operator(self, op, args, kwargs, meta):
        if op != aten.clone.default or args[0].to_tensor().stride() != meta["val"].stride():
            return super().call_operator(op, args, kwargs, meta)
        assert isinstance(args[0], ProxyValue)
        assert args[0].node.op == "call_function"
        return args[0]


def test_port_clones_are_removed():
    assert "aten.clone.default" not in targets(check(RemoveClones()))


# 4. hand-written call: edit the graph, then super().call to bring values up to date, always True


class SplitToSlices(ExportPass):
    """Elements of a split become slices, by hand."""

    def call(self, graph_module: GraphModule) -> PassResult:
        graph = graph_module.graph
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target != aten.split_with_sizes.default:
                continue
            start = 0
            for index, size in enumerate(node.args[1]):
                for getitem in [u for u in node.users if u.target == operator.getitem and u.args[1] == index]:
                    with graph.inserting_before(getitem):
                        piece = graph.create_node(
                            "call_function", aten.slice.Tensor, (node.args[0], node.args[2], start, start + size)
                        )
                        piece.meta = copy.copy(getitem.meta)
                    getitem.replace_all_uses_with(piece)
                start += size
        graph.eliminate_dead_code()
        graph_module.recompile()
        graph_module = super().call(graph_module).graph_module
        return PassResult(graph_module, True)


def test_port_edits_by_hand_end_with_super_call_and_modified_is_the_truth():
    program = check(SplitToSlices())

    assert targets(program).count("aten.slice.Tensor") == 2
    assert not PassManager([SplitToSlices()])(program).modified


# 5. an op with several results, looked through at call_getitem; nodes made with the tracer


class MeanThroughTracer(ExportPass):
    """Makes nodes with ``self.tracer`` and values by hand, where no fake kernel exists."""

    def call_operator(self, op, args, kwargs, meta):
        if op != aten.mean.dim:
            return super().call_operator(op, args, kwargs, meta)
        total = super().call_operator(aten.sum.dim_IntList, (args[0], args[1], True), {}, meta)
        size = args[0].data.shape[args[1][0]]
        args_proxy, kwargs_proxy = pytree.tree_map_only(ProxyValue, lambda x: x.proxy, ((total, size), {}))
        proxy = self.tracer.create_proxy("call_function", aten.div.Scalar, args_proxy, kwargs_proxy)
        proxy.node.meta.update(meta.data)
        self.tracer.set_metadata(proxy.node, torch.empty_like(total.data))
        return ProxyValue(total.data, proxy)

    def call_getitem(self, value, key, meta):
        assert isinstance(value.data, list | tuple)
        return super().call_getitem(value, key, meta or NodeMetadata({}))


def test_port_nodes_made_with_the_tracer_take_part():
    assert "aten.div.Scalar" in targets(check(MeanThroughTracer()))


# 6. control flow: a pass that looks at cond itself and at its bodies through call_submodule


class CountConds(ExportPass):
    """Overrides ``call_cond`` and walks the branches itself."""

    def __init__(self) -> None:
        super().__init__()
        self.branches: list[int] = []

    def call_cond(self, pred, true_fn, false_fn, inputs, meta):
        assert isinstance(true_fn, GraphModule)
        for branch in (true_fn, false_fn):
            result = self.call_submodule(branch, tuple(inputs))
            assert isinstance(result, PassResult)
            self.branches.append(len(result.graph_module.graph.nodes))
        return super().call_cond(pred, true_fn, false_fn, inputs, meta)


def test_port_branches_are_walked_by_hand():
    counts = CountConds()
    check(counts, modified=False)

    assert counts.branches == [3, 3]


# 7. targets by class attribute, with a cheap test before anything runs


class OnlyIfThere(BackendPass):
    """Asks the graph first, in ``__call__``."""

    target = aten.squeeze.dims

    def should_run(self, graph_module: GraphModule) -> bool:
        return bool(graph_module.graph.find_nodes(op="call_function", target=self.target, sort=False))

    def __call__(self, graph_module: GraphModule) -> PassResult:
        self.requires(graph_module)
        if not self.should_run(graph_module):
            return PassResult(graph_module, False)
        result = self.call(graph_module)
        self.ensures(graph_module)
        return result

    def call_operator(self, op, args, kwargs, meta):
        if op == self.target:
            shape = list(meta["val"].shape)
            return super().call_operator(aten.view.default, (args[0], shape), {}, meta, updated=True)
        return super().call_operator(op, args, kwargs, meta)


def test_port_a_pass_with_a_call_of_its_own_runs():
    program = torch.export.export(Model(), (X[:1],)).run_decompositions()
    expected = program.module()(X[:1])
    result = PassManager([OnlyIfThere(), OnlyIfThere()])(program)

    assert [True, False] == [record.modified for record in result.records]
    assert_same_values(program.module()(X[:1]), expected)


# 8. whole programs


class CountInputs(ExportedProgramPassBase):
    """A pass over a program, in the shape of upstream's."""

    def requires(self, exported_program):
        if not exported_program.graph_signature.parameters:
            raise ValueError("nothing to count")

    def call(self, exported_program):
        from fxpasses.export_pass import ExportedProgramPassResult

        return ExportedProgramPassResult(exported_program, False)


def test_port_program_passes_and_their_requirements():
    program = torch.export.export(Model(), (X,))

    assert not CountInputs()(program).modified
    with pytest.raises(ValueError, match="nothing to count"):
        CountInputs()(torch.export.export(torch.nn.ReLU(), (X,)))


def test_errors_of_ports_are_still_caught_as_what_they_were():
    class Fails(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            raise ExportPassBaseError("not today")

    with pytest.raises(RuntimeError, match="not today") as caught:
        Fails()(torch.export.export(Model(), (X,)))

    assert isinstance(caught.value, ExportPassBaseError | PassError | FxPassesError)


def test_graph_module_metadata_survives_a_pass():
    program = torch.export.export(Model(), (X,)).run_decompositions()
    program.graph_module.meta["mine"] = 1
    PassManager([RemoveClones()])(program)

    assert program.graph_module.meta["mine"] == 1
