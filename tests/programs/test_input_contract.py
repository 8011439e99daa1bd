"""What a lowered model says of inputs that its graph is not good for, also compiled, captured again and loaded."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from fxpasses import Device, LoweredModule, load, lower, save
from fxpasses.errors import CaptureError, InputError
from fxpasses.programs import InputContract

FREE = {0: Dim.AUTO}
FIXED = "The input 'x' has shape (8, 4), but the model was captured for (4, 4): dimension 0 is fixed at 4."


class Divided(nn.Module):
    """Its graph has the number of rows in it as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor, is_doubled: bool = False) -> Tensor:
        return self.first(x).sum(0) / x.shape[0] * (2 if is_doubled else 1)


class Branching(nn.Module):
    def __init__(self, decides: Callable[..., bool]) -> None:
        super().__init__()
        self.decides = decides

    def forward(self, *given: Tensor) -> Tensor:
        return given[0] + 1 if self.decides(*given) else given[0] - 1


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def lowered(model: nn.Module, *args: Any, shapes: Any = None) -> LoweredModule:
    return lower(model, args, devices=[Device("only")], dynamic_shapes=shapes)


CONDITIONS = {
    "a multiple": (
        lambda x: x.shape[0] % 4 == 0,
        [(8, 3)],
        ({0: 4 * Dim("quarter", min=1, max=9)},),
        [(12, 3)],
        [(9, 3)],
        "(given_0.shape[0] % 4) == 0; the input 'given_0' has shape (9, 3)",
    ),
    "a product": (
        lambda x: x.shape[0] * x.shape[1] % 2 == 0,
        [(8, 3)],
        ({0: Dim.AUTO, 1: Dim.AUTO},),
        [(6, 5)],
        [(5, 3)],
        "== 0; the input 'given_0' has shape (5, 3)",
    ),
    "a sum": (
        lambda x, y: x.shape[0] + y.shape[0] > 10,
        [(8,), (8,)],
        ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),
        [(3,), (9,)],
        [(3,), (3,)],
        "> 10; the input 'given_0' has shape (3,), the input 'given_1' has shape (3,)",
    ),
}


@pytest.mark.parametrize("strict", [False, True], ids=["by running", "by bytecode"])
@pytest.mark.parametrize("name", list(CONDITIONS))
def test_sizes_for_which_the_model_takes_another_branch_are_refused(name: str, strict: bool) -> None:
    decides, captured, shapes, fitting, unfitting, words = CONDITIONS[name]
    model = Branching(decides)
    program = torch.export.export(model, tuple(map(torch.zeros, captured)), dynamic_shapes=(shapes,), strict=strict)
    ours = lower(program, devices=[Device("only")])

    assert torch.equal(model(*map(torch.zeros, fitting)), ours(*map(torch.zeros, fitting)))
    with pytest.raises(InputError, match=rf"^The model was captured for sizes with .*{re.escape(words)}\. Capture it"):
        ours(*map(torch.zeros, unfitting))


def test_a_loaded_model_refuses_them_too(tmp_path: Path) -> None:
    model = Branching(lambda x, y: x.shape[0] + y.shape[0] > 10)
    ours = lowered(model, torch.zeros(8), torch.zeros(8), shapes=(({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),))
    save(ours, tmp_path / "model")
    again = load(tmp_path / "model")

    assert torch.equal(torch.ones(9), again(torch.zeros(9), torch.zeros(2)))
    with pytest.raises(InputError, match="The model was captured for sizes with"):
        again(torch.zeros(3), torch.zeros(3))


def test_conditions_speak_of_what_is_in_a_structure() -> None:
    class Nested(nn.Module):
        def forward(self, given: dict[str, list[Tensor]]) -> Tensor:
            (x,) = given["xs"]
            return x + 1 if x.shape[0] % 3 else x - 1

    ours = lowered(Nested(), {"xs": [torch.zeros(8)]}, shapes=({"xs": [{0: Dim.DYNAMIC}]},))

    assert torch.equal(torch.ones(4), ours({"xs": [torch.zeros(4)]}))
    with pytest.raises(InputError, match=r"given\['xs'\]\[0\].shape\[0\] % 3"):
        ours({"xs": [torch.zeros(9)]})


@pytest.mark.filterwarnings("ignore")  # of torch, while it compiles
@pytest.mark.parametrize("is_inside", [False, True], ids=["itself", "in another module"])
def test_a_compiled_model_refuses_other_sizes(is_inside: bool) -> None:
    torch.compiler.reset()
    model = Divided()
    ours = lowered(model, torch.randn(4, 4))
    compiled = torch.compile(Outer(ours) if is_inside else ours, backend="eager")
    x = torch.randn(4, 4)

    assert torch.allclose(model(x), compiled(x))
    with pytest.raises(InputError, match=f"^{re.escape(FIXED)}"):
        compiled(torch.randn(8, 4))
    assert torch.allclose(model(x), compiled(x))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_refuses_other_constants() -> None:
    torch.compiler.reset()
    ours = lowered(Divided(), torch.randn(4, 4), True)

    with pytest.raises(InputError, match="The input 'is_doubled' is False, but the model was captured for True alone"):
        torch.compile(ours, backend="eager")(torch.randn(4, 4), False)


def test_a_model_that_is_captured_again_keeps_its_conditions() -> None:
    ours = lowered(Divided(), torch.randn(4, 4))

    with pytest.raises(InputError, match=f"^{re.escape(FIXED)}"):
        lowered(ours, torch.randn(8, 4))
    with pytest.raises(CaptureError, match=f"cannot capture Outer: {re.escape(FIXED)}"):
        lowered(Outer(ours), torch.randn(8, 4))
    with pytest.raises(InputError, match=f"^{re.escape(FIXED)}"):
        torch.export.export(Outer(ours), (torch.randn(8, 4),))


def test_sizes_stay_free_where_it_is_captured_again() -> None:
    model = nn.Linear(4, 4)
    ours = lowered(model, torch.randn(4, 4), shapes=({0: Dim("batch", max=64)},))
    program = torch.export.export(Outer(ours), (torch.randn(8, 4),), dynamic_shapes=({0: Dim("rows", max=64)},))
    x = torch.randn(3, 4)

    assert torch.allclose(model(x), program.module()(x))


def test_a_size_that_follows_from_another_is_checked() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.repeat(2) + y

    half = Dim("half", min=2, max=64)
    ours = lowered(Doubled(), torch.zeros(4), torch.zeros(8), shapes=({0: half}, {0: 2 * half}))

    assert torch.equal(torch.zeros(6), ours(torch.zeros(3), torch.zeros(6)))
    with pytest.raises(InputError, match="The input 'y' has size 7 in dimension 0, but the captured shape asks for 6"):
        ours(torch.zeros(3), torch.zeros(7))


def test_a_shape_may_be_an_input() -> None:
    """Torch captures it as a tuple; the very examples were refused."""

    class Reshaped(nn.Module):
        def forward(self, x: Tensor, shapes: dict[str, Any]) -> Tensor:
            return x.reshape(shapes["wide"])

    x, shape = torch.randn(4, 3), torch.Size([2, 6])
    model = lowered(Reshaped(), x, {"wide": shape})

    for given in (shape, (2, 6)):
        assert torch.equal(x.reshape(2, 6), model(x, {"wide": given}))
    with pytest.raises(InputError, match=r"^Leaf 0 of the input 'shapes' is 12, but the model was captured for 2"):
        model(x, {"wide": torch.Size([12, 1])})


def test_dicts_may_have_their_keys_in_another_order() -> None:
    class Two(nn.Module):
        def forward(self, given: dict[str, Any]) -> Tensor:
            return given["a"] - given["rest"][0]["b"]

    ours = lowered(Two(), {"a": torch.ones(2), "rest": [{"b": torch.zeros(2), "c": None}]})
    turned = {"rest": [{"c": None, "b": torch.full((2,), 3.0)}], "a": torch.full((2,), 5.0)}

    assert torch.equal(torch.full((2,), 2.0), ours(turned))


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        ({"a": torch.ones(2), "l": [torch.ones(2)]}, "\"d['l']\"", "a list of 1 instead of a list of 2."),
        ({"a": torch.ones(2), "l": (torch.ones(2),) * 2}, "\"d['l']\"", "a tuple of 2 instead of a list of 2."),
        ({"a": torch.ones(2), "m": 3}, "'d'", "a dict with a, m instead of a dict with a, l."),
    ],
)
def test_an_error_names_the_part_that_differs(given: Any, name: str, words: str) -> None:
    class Listed(nn.Module):
        def forward(self, d: dict[str, Any]) -> Tensor:
            return d["a"] + d["l"][0] + d["l"][1]

    ours = lowered(Listed(), {"a": torch.ones(2), "l": [torch.ones(2), torch.ones(2)]})

    said = f"The input {name} has another structure than the captured one: {words}"
    with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
        ours(given)
    with pytest.raises(TypeError):
        ours(given)


@pytest.mark.parametrize(
    "code",
    [
        "L['input'].size()[0] > __import__('os').getpid()",
        "L['input'].__class__.__name__ == ''",
        "torch.load('file') > L['input'].size()[0]",
        "(lambda: 1)() > L['input'].size()[0]",
    ],
)
def test_conditions_of_a_file_run_no_code(code: str) -> None:
    program = torch.export.export(nn.Linear(4, 4), (torch.ones(3, 4),))
    program._guards_code = [code, "max(L['input'].size()[0], math.floor(2.5)) > torch.sym_max(1, 2)"]

    assert 1 == len(InputContract.of(program).relations)


def test_conditions_on_strides_and_on_what_is_no_input_are_left_to_torch() -> None:
    program = torch.export.export(nn.Linear(4, 4), (torch.ones(3, 4),))
    program._guards_code = ["L['elsewhere'].size()[0] > 3", "L['input'].stride()[0] != 4"]

    assert () == InputContract.of(program).relations


class Masked(nn.Module):
    """May be given a mask, and a factor."""

    def forward(self, x: Tensor, mask: Tensor | None = None, factor: float = 2.0) -> Tensor:
        return (x if mask is None else x * mask) * factor


@pytest.mark.parametrize("strict", [False, True])
def test_a_value_where_none_was_captured_is_refused(strict: bool) -> None:
    """The captured graph has no place for it."""
    x = torch.randn(4, 4)
    ours = lower(Masked(), (x, None, 2.0), devices=[Device("cpu")], strict=strict)

    assert torch.equal(x * 2, ours(x, None, 2.0))
    with pytest.raises(InputError, match=r"^The input 'mask' is a Tensor, but the model was captured for None alone"):
        ours(x, torch.zeros(4, 4), 2.0)
    with pytest.raises(InputError, match=r"^The input 'mask' is 1, but the model was captured for None alone\.$"):
        ours(x, 1, 2.0)
    with pytest.raises(InputError, match=r"^The input 'factor' is a Tensor, but the model was captured for 2\.0 alone"):
        ours(x, None, torch.full((4,), 2.0))


def test_an_input_may_be_no_number() -> None:
    class Filled(nn.Module):
        def forward(self, x: Tensor, fill: float) -> Tensor:
            return x.masked_fill(x > 0, fill)

    ours, x = lowered(Filled(), torch.randn(4, 4), math.nan), torch.randn(4, 4)

    torch.testing.assert_close(ours(x, float("nan")), Filled()(x, math.nan), equal_nan=True)
    with pytest.raises(InputError, match=r"^The input 'fill' is 1\.0, but the model was captured for nan alone\.$"):
        ours(x, 1.0)
    with pytest.raises(InputError, match=r"is nan, but the model was captured for 1\.0 alone"):
        lowered(Filled(), x, 1.0)(x, math.nan)


class Rows:
    """A class of tensors that torch flattens, whose key paths are no Python."""

    def __init__(self, *rows: Tensor) -> None:
        self.rows = rows


Pair = namedtuple("Pair", "one others")

pytree.register_pytree_node(
    Rows,
    lambda own: (list(own.rows), None),
    lambda rows, _: Rows(*rows),
    serialized_type_name="fxpasses_tests.Rows",
    flatten_with_keys_fn=lambda own: (
        [(pytree.MappingKey(f"row {at}"), each) for at, each in enumerate(own.rows)],
        None,
    ),
)


class Even(nn.Module):
    """Its graph is for an even number of rows in all that it is given."""

    def forward(self, x: Tensor, flat_args: Any) -> Tensor:
        tensors = flat_args.rows if isinstance(flat_args, Rows) else pytree.tree_leaves(flat_args)
        return x + 1 if (x.shape[0] + sum(each.shape[0] for each in tensors)) % 2 == 0 else x - 1


def rows(count: int) -> Tensor:
    return torch.zeros(count, 3)


NESTED: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "a registered class": (Rows, [FREE] * 2, "x.shape[0] + flat_args['row 0'].shape[0] + flat_args['row 1'].shape[0]"),
    "a named tuple": (
        lambda one, other: Pair(one, [other]),
        Pair(FREE, [FREE]),
        "x.shape[0] + flat_args.one.shape[0] + flat_args.others[0].shape[0]",
    ),
    "a dict": (
        lambda one, other: {"b": one, "a": (other,)},
        {"b": FREE, "a": (FREE,)},
        "x.shape[0] + flat_args['b'].shape[0] + flat_args['a'][0].shape[0]",
    ),
}


@pytest.mark.parametrize("name", list(NESTED))
def test_conditions_on_what_is_inside_of_structures_hold(name: str, tmp_path: Path) -> None:
    """Key paths were run as Python: "'DynamicCache' object is not subscriptable"."""
    make, free, said = NESTED[name]
    ours = lower(
        Even(),
        (rows(4), make(rows(2), rows(6))),
        devices=[Device("only")],
        dynamic_shapes={"x": FREE, "flat_args": free},
    )
    save(ours, tmp_path / "model")

    for model in (ours, load(tmp_path / "model")):
        assert torch.equal(torch.ones(3, 3), model(rows(3), make(rows(5), rows(4))))
        with pytest.raises(
            InputError, match=r"^The model was captured for sizes with .*; the input 'x' has shape \(3, 3"
        ):
            model(rows(3), make(rows(4), rows(4)))
    with pytest.raises(InputError) as error:
        ours(rows(3), make(rows(4), rows(4)))
    assert all(size in str(error.value) for size in said.split(" + "))


@pytest.mark.parametrize("strict", [False, True])
def test_a_parameter_may_be_called_as_torch_calls_all_of_them(strict: bool) -> None:
    program = torch.export.export(Even(), (rows(4), rows(2)), dynamic_shapes=(FREE, FREE), strict=strict)
    ours = lower(program, devices=[Device("only")])

    assert torch.equal(torch.ones(3, 3), ours(rows(3), rows(5)))
    with pytest.raises(InputError, match=r"flat_args\.shape\[0\]"):
        ours(rows(3), rows(4))


@dataclasses.dataclass
class Checked:
    """A dataclass that takes tensors only."""

    one: Tensor
    others: list[Tensor]

    def __post_init__(self) -> None:
        assert isinstance(self.one, Tensor)


pytree.register_dataclass(Checked, serialized_type_name="fxpasses_tests.Checked")


@pytest.mark.parametrize(
    ("make", "free", "count"),
    [
        (lambda one, other: [one, (other,)], [FREE, (FREE,)], 1),
        (lambda one, other: {"a": one, "b": Pair(other, [])}, {"a": FREE, "b": Pair(FREE, [])}, 1),
        (lambda one, other: Checked(one, [other]), [FREE, [FREE]], 1),
        (Rows, [FREE, FREE], 0),
    ],
    ids=["a list", "a dict", "a dataclass", "a registered class"],
)
def test_conditions_need_no_examples_but_for_registered_classes(
    make: Callable[..., Any], free: Any, count: int
) -> None:
    """As torch does without them, it is left to the caller what is in a class."""
    shapes = {"x": FREE, "flat_args": free}
    program = torch.export.export(Even(), (rows(4), make(rows(2), rows(6))), dynamic_shapes=shapes)
    (told,) = InputContract.of(program).relations

    program._example_inputs = None

    assert [told.words] * count == [each.words for each in InputContract.of(program).relations]
