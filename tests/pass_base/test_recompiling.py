"""Code is generated late and once, and whoever looks sees the code of the moment."""

import copy
import inspect
import pickle

import pytest
import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from fxpasses.journal.comparing import clone_sharing_tensors, graph_diff, graph_text, same_structure
from fxpasses.pass_base.recompiling import deferred_recompile


class Relu(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


X = torch.tensor([-1.0, 1.0])


def swap(module):
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.target = torch.tanh if node.target is torch.relu else torch.relu


LOOKS = {
    "code": lambda module: module.code,
    "call": lambda module: module(X),
    "forward": lambda module: module.forward(X),
    "signature": lambda module: str(inspect.signature(module.forward)),
    "text": str,
    "readable": lambda module: module.print_readable(print_output=False),
    "pickle": lambda module: pickle.loads(pickle.dumps(module)).code,
    "deepcopy": lambda module: copy.deepcopy(module).code,
    "copy": lambda module: copy.copy(module).code,
    "globals": lambda module: module.recompile().src,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_looks_sees_fresh_code(look):
    held, plain = fx.symbolic_trace(Relu()), fx.symbolic_trace(Relu())
    swap(plain)
    plain.recompile()

    with deferred_recompile() as queue:
        queue.hold(held)
        swap(held)
        held.recompile()
        assert str(look(plain)) == str(look(held))
        swap(held)
        swap(held)
        held.recompile()
        assert str(look(plain)) == str(look(held))


def test_leaving_compiles_once_and_takes_everything_back(monkeypatch):
    counted = []
    real = fx.GraphModule.recompile
    module = fx.symbolic_trace(Relu())
    monkeypatch.setattr(fx.GraphModule, "recompile", lambda self: (counted.append(1), real(self))[1])
    names, state = set(vars(type(module))), set(module.__dict__)

    with deferred_recompile() as queue:
        queue.hold(module)
        for _ in range(5):
            swap(module)
            module.recompile()
        assert not counted

    assert [1] == counted
    assert names == set(vars(type(module)))
    assert state == set(module.__dict__)
    assert "tanh" in module.code


def test_a_block_that_raises_compiles_nothing():
    module = fx.symbolic_trace(Relu())
    names, code = set(vars(type(module))), module.code

    def fail():
        with deferred_recompile() as queue:
            queue.hold(module)
            swap(module)
            module.recompile()
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert names - {"forward"} == set(vars(type(module))) - {"forward"}
    assert code == module.__dict__["_code"]


def test_blocks_may_be_nested():
    module = fx.symbolic_trace(Relu())
    with deferred_recompile() as outer:
        outer.hold(module)
        with deferred_recompile() as inner:
            inner.hold(module)
            swap(module)
            inner.mark(module)
        assert "tanh" in module.code

    assert "tanh" in module.code


def test_torchs_lazy_modules_keep_their_own_ways():
    module = _LazyGraphModule.from_graphmodule(fx.symbolic_trace(Relu()))
    with deferred_recompile() as queue:
        queue.hold(module)
        swap(module)
        queue.mark(module)

    assert "tanh" in module.code


# --- comparing -------------------------------------------------------------------------------------------------------


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: torch.relu(x), lambda x: torch.sin(x), (x + self.shift,))


def test_a_clone_has_graphs_of_its_own_and_the_same_tensors():
    module = torch.export.export(Branches(), (torch.ones(3),)).module()
    clone = clone_sharing_tensors(module)

    assert same_structure(module, clone)
    assert graph_text(module) == graph_text(clone)
    assert [id(buffer) for buffer in module.buffers()] == [id(buffer) for buffer in clone.buffers()]
    clone.true_graph_0.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[
        0
    ].target = torch.ops.aten.tanh.default
    assert not same_structure(module, clone)
    assert "-    %relu" in graph_diff(graph_text(module), graph_text(clone))


def test_structure_is_told_apart_by_arguments_names_and_attributes():
    def first(x, y):
        return torch.add(x, y)

    one, other = fx.symbolic_trace(first), fx.symbolic_trace(first)
    assert same_structure(one, other)
    (add,) = other.graph.find_nodes(op="call_function", target=torch.add)
    add.args = tuple(reversed(add.args))
    assert not same_structure(one, other)
    add.args = (*reversed(add.args),)
    assert same_structure(one, other)
    add.kwargs = {"alpha": 2}
    assert not same_structure(one, other)
    assert not same_structure(one, fx.symbolic_trace(lambda x: x))
    assert not same_structure(fx.symbolic_trace(torch.nn.Linear(2, 2)), fx.symbolic_trace(torch.nn.Linear(2, 2)))
