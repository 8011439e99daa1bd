"""Bodies of operators get the tensors that passes make inside of them as operands, so torch can train and save them."""

import copy
import io

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

from fxpasses import ExportPass, PassManager
from fxpasses.outlining.body_constants import hand_in_constants
from fxpasses.passes import FoldConstants, replace_pattern
from fxpasses.passes.rewriting import Rule, RuleSet

aten = torch.ops.aten
X = torch.tensor([1.0, -2.0, 3.0, 4.0])


class Weighted(torch.nn.Module):
    """A model whose bodies multiply by something that can be folded, and train one weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))


class Branches(Weighted):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * (torch.arange(4) * 2) + self.weight, lambda x: x * 1, (x,))


class InnerBranches(Weighted):
    def forward(self, x):
        def taken(x):
            return torch.cond(
                x.sum() > 1, lambda x: x * (torch.arange(4) + 1), lambda x: x * self.weight * torch.ones(4), (x * 1,)
            )

        return torch.cond(x.sum() > 0, taken, lambda x: x * torch.full((4,), 2.0), (x,))


class Loop(Weighted):
    def forward(self, x):
        def again(step, x):
            return step + 1, x * (torch.arange(4) * 2)

        return torch.while_loop(lambda step, x: step < 3, again, (torch.tensor(0), x))[1] * self.weight


class Rows(Weighted):
    def forward(self, x):
        return map_rows(lambda row, weight: row * 1 * (torch.arange(4) * 2) + weight, x.expand(3, 4), self.weight)


class Scan(Weighted):
    def forward(self, x):
        def add(sum_, row):
            return sum_ + row * torch.arange(4), sum_ * 1

        return scan(add, torch.zeros(4), x.expand(3, 4))[1] * self.weight


class Region(Weighted):
    def forward(self, x):
        with torch.no_grad():
            scaled = x * (torch.arange(4) * 2) + 1
        return scaled * self.weight


class Checkpointed(Weighted):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(
            lambda x: x * (torch.arange(4) * 2) * self.weight, x, use_reentrant=False
        )


class OneAsTensor(ExportPass):
    """What ExecuTorch's ScalarToTensorPass does."""

    def call_operator(self, op, args, kwargs, meta):
        if op == aten.mul.Tensor and args[1] == 1:
            args = (args[0], torch.tensor(1.0))
        return super().call_operator(op, args, kwargs, meta)


class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("two", torch.tensor(2.0))

    def forward(self, x):
        return x * self.two


def outcome(module):
    """What a module gives, and the gradients of its weights."""
    output = module(X.clone())
    gradients = torch.autograd.grad(output.sum(), list(module.parameters()), allow_unused=True)
    return [output.detach(), *(gradient for gradient in gradients if gradient is not None)]


def saved_and_loaded(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def tensors_in_bodies(module):
    graphs = [inner for inner in module.modules() if isinstance(inner, torch.fx.GraphModule) and inner is not module]
    return [(node.name, inner) for inner in graphs for node in inner.graph.find_nodes(op="get_attr")
            if isinstance(getattr(inner, node.target), torch.Tensor)]  # fmt: skip


MODELS = [Branches, InnerBranches, Loop, Rows, Scan, Region, Checkpointed]


@pytest.mark.parametrize("model", MODELS)
def test_a_program_that_is_folded_inside_trains_and_can_be_saved_and_decomposed(model):
    program = torch.export.export(model(), (X,))
    result = PassManager([FoldConstants()], run_checks_after_each_pass=True)(copy.deepcopy(program))
    folded = result.exported_program

    assert result.modified
    assert [] == tensors_in_bodies(folded.graph_module)
    torch.testing.assert_close(outcome(folded.module()), outcome(program.module()))
    torch.testing.assert_close(outcome(saved_and_loaded(folded).module()), outcome(program.module()))
    torch.testing.assert_close(outcome(folded.run_decompositions().module()), outcome(program.module()))
    assert not PassManager([FoldConstants()])(folded).modified


@pytest.mark.parametrize("model", MODELS)
def test_a_module_that_is_folded_inside_trains(model):
    program = torch.export.export(model(), (X,))
    folded = FoldConstants()(program.module()).graph_module

    torch.testing.assert_close(outcome(folded), outcome(program.module()))


def replace(module):
    replace_pattern(module, lambda x: aten.mul.Tensor(x, 1), torch.fx.symbolic_trace(Doubled()))


def apply_rules(module):
    RuleSet([Rule(lambda x: aten.mul.Tensor(x, 1), torch.fx.symbolic_trace(Doubled()))]).apply(module)


@pytest.mark.parametrize("edit", [OneAsTensor(), replace, apply_rules, PassManager([OneAsTensor(), replace])])
def test_other_edits_hand_in_what_they_add(edit):
    module = torch.export.export(Branches(), (X,)).module()
    before = module.false_graph_0.code
    edit(module)

    assert before != module.false_graph_0.code
    assert [] == tensors_in_bodies(module)
    assert module(-X).tolist() in [(-X).tolist(), (-2 * X).tolist()]


def test_a_program_keeps_one_constant_for_calls_that_need_the_same():
    class Shared(torch.nn.Module):
        def forward(self, x):
            one = torch.cond(x.sum() > 0, lambda x: x * 1, lambda x: x + 1, (x,))
            return torch.cond(one.sum() > 0, lambda x: x * 1, lambda x: x + 2, (one,))

    same = torch.tensor(1.0)

    class Same(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            args = (args[0], same) if op == aten.mul.Tensor else args
            return super().call_operator(op, args, kwargs, meta)

    program = PassManager([Same()])(torch.export.export(Shared(), (X,))).exported_program

    assert 1 == len(program.constants)
    assert Shared()(X).tolist() == program.module()(X).tolist()


def test_both_branches_take_what_one_of_them_needs():
    folded = FoldConstants()(torch.export.export(Branches(), (X,)).module()).graph_module

    assert 3 == len(inputs(folded.true_graph_0)) == len(inputs(folded.false_graph_0))
    assert all("val" in node.meta for node in inputs(folded.false_graph_0))


def inputs(module):
    return module.graph.find_nodes(op="placeholder")


def test_what_a_body_writes_or_an_unknown_operator_runs_stays():
    module = torch.export.export(Branches(), (X,)).module()
    body = module.true_graph_0
    body.register_buffer("count", torch.zeros(4))
    with body.graph.inserting_before(next(iter(body.graph.nodes)).next.next):
        count = body.graph.get_attr("count")
        body.graph.call_function(aten.add_.Tensor, (count, 1))

    assert [] == hand_in_constants(module)


def test_the_program_that_a_module_was_made_of_is_left_alone():
    program = torch.export.export(Branches(), (X,))
    before = program.graph_module.true_graph_0.code
    FoldConstants()(program.module())

    assert before == program.graph_module.true_graph_0.code
    torch.testing.assert_close(outcome(program.module()), outcome(Branches()))


def test_a_failed_run_takes_back_what_was_handed_in():
    def fails(graph_module):
        raise RuntimeError("no")

    program = torch.export.export(Branches(), (X,))
    before = str(program.graph), str(program.graph_module.true_graph_0.graph), str(program.graph_signature)
    with pytest.raises(RuntimeError):
        PassManager([FoldConstants(), fails])(program)

    assert before == (str(program.graph), str(program.graph_module.true_graph_0.graph), str(program.graph_signature))
    assert {} == program.constants
