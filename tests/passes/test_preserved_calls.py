"""Calls whose signature was preserved: another module in the place of the original is called as the original was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fxpasses import SplitError
from fxpasses.passes.interpreter_modules import InterpreterModule
from fxpasses.passes.preserved_calls import written_in_place
from fxpasses.passes.unflattening import swap_modules, unflatten

Call = Callable[..., Any]

NESTED: Call = lambda m, x, y: (lambda r: r["b"][1] + r["a"])(m(x, y))  # a table of one-liners

FITTING: dict[str, tuple[Call, Call]] = {  # what the module computes, and how the model calls it
    "twice, arguments swapped": (lambda s, x, y: 2 * x - y, lambda m, x, y: m(x, y) * m(y, x)),
    "a constant argument": (lambda s, x, y, k: x * y * k, lambda m, x, y: m(x, y, 3)),
    "a constant keyword": (lambda s, x, y, k=1: x * y * k, lambda m, x, y: m(x, y, k=3)),
    "three constants": (lambda s, x, y, k=1: x * y * k, lambda m, x, y: m(x, y, 2) + m(y, x, 3) + m(x, x, 2)),
    "an output that is an input": (lambda s, x, y: (x * 2, y), lambda m, x, y: m(x, y)[0]),
    "nested outputs": (lambda s, x, y: {"a": x * s.weight, "b": [y + 1, x - 1]}, NESTED),
    "outputs nobody uses": (lambda s, x, y: (x * 2, y * 2, x * y), lambda m, x, y: m(x, y)[1]),
    "None and a constant": (lambda s, x, y: (None, 3, x * y), lambda m, x, y: m(x, y)[2] * m(x, y)[1]),
    "chained": (lambda s, x, y: (x + y, x - y), lambda m, x, y: m(*m(*m(x, y)))[0]),
    "the same argument twice": (lambda s, x, y: x * y, lambda m, x, y: m(x, x) + m(x, y)),
    "state and submodules": (lambda s, x, y: s.linear(x) + s.weight * y, lambda m, x, y: m(x, y) * m(y, x)),
    "a parameter as argument": (lambda s, x, y: x * y, lambda m, x, y: m(m.weight, y) + m(x, m.weight)),
    "written in place": (lambda s, x, y: x.mul_(y) + 1, lambda m, x, y: (lambda z: m(z, y) + m(z, y))(x * 1)),
    "written in place, None": (
        lambda s, x, y: (x.mul_(y), None)[1],
        lambda m, x, y: (lambda z: (m(z, y), z)[1])(x * 1),
    ),
    "a buffer that is written": (
        lambda s, x, y: (s.steps.add_(1), x * s.steps + y)[1],
        lambda m, x, y: m(x, y) * m(y, x),
    ),
    "sizes": (lambda s, x, y: x.reshape(x.shape[0] * 3) * y.shape[0], lambda m, x, y: m(x, y) * x.shape[0] + m(y, x)),
}


class Part(nn.Module):
    function: Call

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.full((3,), 1.5))
        self.linear = nn.Linear(3, 3)
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def part(function: Call) -> Part:
    """A module that computes a function of itself and its arguments."""
    return type("Made", (Part,), {"forward": function})()


def changed(function: Call) -> Part:
    """One that is called alike but computes something else."""

    def forward(self: Part, *args: Any, **kwargs: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda leaf: leaf * 3 + 1, function(self, *args, **kwargs))

    return part(forward)


class Model(nn.Module):
    def __init__(self, inner: nn.Module, use: Call) -> None:
        super().__init__()
        self.s = inner
        self.use = use

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.use(self.s, x, y)


def inputs() -> tuple[Tensor, Tensor]:
    return torch.arange(6.0).view(2, 3) + 1, torch.arange(6.0).view(2, 3) * 0.5


def exported(function: Call, use: Call, **options: Any) -> ExportedProgram:
    return torch.export.export(Model(part(function), use), inputs(), preserve_module_call_signature=("s",), **options)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FITTING)
def test_a_new_module_is_called_as_the_original_was(name: str, dynamic: bool) -> None:
    """By ``swap_modules`` and by plain assignment, it computes what a model with the new module does."""
    function, use = FITTING[name]
    options = {"dynamic_shapes": ({0: torch.export.Dim("batch", min=2)},) * 2} if dynamic else {}
    program = exported(function, use, **options)
    old, new = Model(part(function), use)(*inputs()), Model(changed(function), use)(*inputs())

    unflattened = unflatten(copy.deepcopy(program))
    assert torch.allclose(old, unflattened(*inputs()))
    assert ["", "s", "s.linear"] == [path for path, _ in unflattened.named_modules()]

    unflattened.s = changed(function)
    assert torch.allclose(new, unflattened(*inputs()))
    assert torch.allclose(new, swap_modules(copy.deepcopy(program), {"s": changed(function)})(*inputs()))


def test_the_original_may_come_back() -> None:
    """Which of its graphs is meant is said to the original alone, and to a copy of it."""
    function, use = FITTING["three constants"]
    unflattened = unflatten(exported(function, use))
    original = unflattened.s
    assert isinstance(original, InterpreterModule)
    assert 3 == len(original.graphs)

    unflattened.s = changed(function)
    unflattened.s = copy.deepcopy(original)

    assert torch.equal(Model(part(function), use)(*inputs()), unflattened(*inputs()))


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_called_in_several_ways_exports_again(strict: bool) -> None:
    program = exported(*FITTING["three constants"])
    unflattened = unflatten(program)
    unflattened(*inputs())

    again = torch.export.export(unflattened, inputs(), strict=strict)

    assert torch.equal(unflattened(*inputs()), again.module()(*inputs()))


def test_a_buffer_of_a_decomposed_program_is_written_in_the_call_that_owns_it() -> None:
    """A buffer that only the preserved call touches is not written by the model around it."""
    function: Call = lambda s, x, y: (s.steps.add_(1), x * s.steps + y)[1]
    use: Call = lambda m, x, y: m(x, y) * 2
    program = exported(function, use).run_decompositions()
    unflattened, swapped = unflatten(copy.deepcopy(program)), swap_modules(program, {"s": changed(function)})

    assert torch.equal(Model(part(function), use)(*inputs()), unflattened(*inputs()))
    assert torch.equal(Model(changed(function), use)(*inputs()), swapped(*inputs()))
    assert [1.0] * 3 == unflattened.s.steps.tolist() == swapped.s.steps.tolist()


NO_OPERATOR = "a call of it leaves no operator in the program, so the new one would"
LEAVES = r"\w+ leaves the call without being returned, as what run_decompositions makes of a write to an input or a "

REFUSED: dict[str, tuple[Call, Call, bool, str]] = {  # with decompositions or not, and why
    "identity": (lambda s, x, y: x, lambda m, x, y: m(x, y) + 1, False, NO_OPERATOR),
    "a write that is functional": (*FITTING["written in place, None"], True, LEAVES),
    "two writes that are functional": (*FITTING["written in place"], True, LEAVES),
    "a buffer written twice": (*FITTING["a buffer that is written"], True, LEAVES),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_called_as_it_was_is_not_replaced(name: str) -> None:
    """It runs unflattened; a swap is refused, also by assignment, and says why."""
    function, use, decomposed, why = REFUSED[name]
    program = exported(function, use)
    program = program.run_decompositions() if decomposed else program
    unflattened = unflatten(copy.deepcopy(program))

    with pytest.raises(SplitError, match=rf"^No other module can take the place of 's': {why}"):
        swap_modules(copy.deepcopy(program), {"s": part(function)})
    with pytest.raises(SplitError, match=r"^No other module can take the place of 's': "):
        unflattened.s = part(function)
    assert torch.allclose(Model(part(function), use)(*inputs()), unflattened(*inputs()))


def test_an_operator_of_another_module_in_the_middle_of_a_call_is_told() -> None:
    program = exported(lambda s, x, y: x * 2 + y, lambda m, x, y: m(x, y) + 1)
    outer = next(node for node in program.graph.nodes if node.name == "add_1")
    inner = next(node for node in program.graph.nodes if node.name == "mul")
    with program.graph.inserting_after(inner):
        between = program.graph.call_function(torch.ops.aten.neg.default, (inner,))
    between.meta.update(outer.meta)

    with pytest.raises(SplitError, match=r"'s': operators of other modules stand between those of one call, so the "):
        swap_modules(program, {"s": nn.Identity()})


def test_outputs_that_the_program_cannot_tell_apart_have_to_be_the_same() -> None:
    """An output that is an input, used later, and a tensor returned twice: another value there would get lost."""
    message = (
        r"^The original of 's' returned one tensor twice, or an input of the call, and the program uses both as one;"
    )
    passed, use = (lambda s, x, y: (x * 2, y)), (lambda m, x, y: sum(m(x, y)))
    twice = lambda s, x, y: (x * y,) * 2  # a module, not a function
    for function in (passed, twice):
        program = exported(function, use)
        swapped = swap_modules(program, {"s": part(function)})

        assert torch.equal(Model(part(function), use)(*inputs()), swapped(*inputs()))
        with pytest.raises(SplitError, match=message):
            swap_modules(program, {"s": changed(function)})(*inputs())


def test_a_constant_that_the_program_has_baked_in_has_to_be_returned() -> None:
    program = exported(lambda s, x, y: (x * y, 3), lambda m, x, y: m(x, y)[0] * m(x, y)[1])
    swapped = swap_modules(program, {"s": part(lambda s, x, y: (x * y, 4))})

    with pytest.raises(
        SplitError, match=r"^The module in the place of 's' returned 4 where the original returned 3, for "
    ):
        swapped(*inputs())


def test_what_is_no_program_no_mapping_and_no_module_is_refused() -> None:
    program = exported(*FITTING["a constant argument"])

    with pytest.raises(
        SplitError, match=r"^swap_modules takes a torch\.export\.ExportedProgram, not UnflattenedModule;"
    ):
        swap_modules(unflatten(program), {"s": nn.Identity()})  # type: ignore[arg-type]
    with pytest.raises(SplitError, match=r"^swap_modules takes a mapping from paths to new modules, not None\.$"):
        swap_modules(program, None)  # type: ignore[arg-type]
    with pytest.raises(SplitError, match=r"^The new module for 's' is int; give a torch\.nn\.Module\.$"):
        swap_modules(program, {"s": 3})  # type: ignore[dict-item]
    with pytest.raises(SplitError, match=r"^swap_modules replaces modules inside the program, not the whole of it"):
        swap_modules(program, {"": nn.Identity()})


def test_only_operators_that_write_their_first_argument_and_return_it_give_it_back() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    added = graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
    others = [
        graph.call_function(torch.ops.aten.add.Tensor, (x, 1)),
        graph.call_function(torch.ops.aten.view.default, (x, [-1])),
        graph.call_function(torch.add, (x, 1)),
    ]

    assert x is written_in_place(added)
    assert [None] * 3 == list(map(written_in_place, others))
