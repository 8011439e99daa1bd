"""Inputs that share memory: where the model writes to one of them, nobody reads the other at the wrong time."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable

import pytest
import torch
from lowering_models import cpu_pair
from torch import Tensor, nn

from fxpasses import InputError, LoweredModule, lower
from fxpasses.lowering.written_inputs import overlap
from fxpasses.partitioners import place_by_device
from fxpasses.passes import MeasureCosts


class Writing(nn.Module):
    """Writes to one input between reads of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: Tensor, unread: Tensor) -> Tensor:
        before = self.first(x)
        cache.add_(1)
        result: Tensor = before + self.second(x)
        return result


def placed() -> tuple[nn.Module, LoweredModule]:
    model, examples = Writing(), [torch.randn(2, 4) for _ in range(3)]
    device_map = {"": "left", "second": "right"}
    return model, lower(copy.deepcopy(model), examples, devices=cpu_pair(), device_map=device_map)


def one(base: Tensor) -> tuple[Tensor, Tensor]:
    return base[:2], base[:2]


def apart(base: Tensor) -> tuple[Tensor, Tensor]:
    return base[:2], base[2:]


def in_turns(base: Tensor) -> tuple[Tensor, Tensor]:
    return base[::2], base[1::2]


def a_row_in_both(base: Tensor) -> tuple[Tensor, Tensor]:
    return base[:2], base[1:3]


@pytest.mark.parametrize("views", [one, a_row_in_both])
def test_an_input_in_the_memory_of_a_written_one_is_refused(views: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    _model, lowered = placed()
    x, cache = views(torch.randn(4, 4))
    looked_at = copy.deepcopy(lowered)
    looked_at.register_forward_hook(lambda *_: None)

    said = (
        "The inputs 'cache' and 'x' share memory, and the model writes to 'cache': it was captured for inputs of their "
        "own. Give a clone of one of them."
    )
    for module in (lowered, looked_at):
        with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
            module(x, cache, torch.zeros(2, 4))


@pytest.mark.parametrize("views", [apart, in_turns])
def test_inputs_beside_each_other_in_one_storage_are_the_models(
    views: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> None:
    model, lowered = placed()
    base = torch.randn(4, 4)
    other = base.clone()

    assert torch.equal(model(*views(base), base[:2]), lowered(*views(other), other[:2]))
    assert torch.equal(base, other)


def test_a_model_that_writes_to_no_input_takes_one_tensor_for_all() -> None:
    model, x = nn.Bilinear(4, 4, 4), torch.randn(2, 4)
    lowered = lower(model, (x, x.clone()), devices=cpu_pair())

    assert lowered._inputs.written is None
    assert torch.equal(model(x, x), lowered(x, x))


def test_inputs_without_storages_are_told_apart() -> None:
    model, lowered = placed()
    given = [torch.randn(3, 2, 4) for _ in range(3)]
    copies = [each.clone() for each in given]

    torch.testing.assert_close(torch.vmap(lowered)(*copies), torch.vmap(model)(*given))
    torch.testing.assert_close(copies, given)


@pytest.mark.filterwarnings("ignore")  # of torch, while it compiles
def test_what_is_compiled_refuses_one_tensor_for_two() -> None:
    torch.compiler.reset()
    model, lowered = placed()
    compiled = torch.compile(lowered, backend="eager")
    x, cache = torch.randn(2, 4), torch.randn(2, 4)

    assert torch.equal(model(x, cache.clone(), x), compiled(x, cache, x))
    with pytest.raises(InputError, match="share memory"):
        compiled(x, x, cache)


def view_of(base: Tensor, draw: random.Random) -> Tensor:
    """Some view: slices, transposed, of another type, with elements over each other."""
    view = base.view(torch.int16) if draw.random() < 0.3 else base
    for _ in range(draw.randrange(4)):
        dim, other = draw.randrange(view.dim()), draw.randrange(view.dim())
        size = view.shape[dim]
        start = draw.randrange(size + 1)
        views = [view.transpose(dim, other), view.narrow(dim, start, draw.randint(0, size - start))]
        views += [view.unfold(dim, 2, 1)] if size > 2 else []
        views += [view.select(dim, start)] if start < size and view.dim() > 1 else []
        view = draw.choice(views)
    return view


def bytes_of(view: Tensor) -> set[int]:
    size = view.element_size()
    numbers = torch.arange(view.untyped_storage().nbytes() // size)
    elements = numbers.as_strided(view.size(), view.stride(), view.storage_offset()).flatten().tolist()
    return {element * size + byte for element in elements for byte in range(size)}


@pytest.mark.parametrize("seed", range(4))
def test_the_overlap_of_two_views_is_exact(seed: int) -> None:
    draw = random.Random(seed)
    found = []
    for _ in range(300):
        base = torch.zeros([draw.randint(1, 5) for _ in range(3)], dtype=torch.int32)
        pair = view_of(base, draw), view_of(base, draw)
        found.append(overlap(*pair))

        assert found[-1] == bool(bytes_of(pair[0]) & bytes_of(pair[1]))
    assert {False, True} == {*found}


class Counter(nn.Module):
    """Writes to a buffer and to an input, and gives both back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.seen.add_(1)
        cache[0] = self.first(x)[0]
        return self.second(x) + self.seen + cache, self.seen, cache


@pytest.mark.parametrize("table", [None, {}], ids=["core operators", "functions"])
def test_a_decomposed_program_may_give_back_what_it_wrote(table: dict[object, object] | None) -> None:
    """Of the copies at its end torch records no values; a graph that is placed by hand has such, too."""
    model, examples = Counter(), (torch.randn(2, 4), torch.zeros(2, 4))
    program = torch.export.export(copy.deepcopy(model), examples).run_decompositions(table)
    lowered = lower(program, devices=cpu_pair(), device_map={"": "left", "second": "right"})
    ours, theirs = examples[1].clone(), examples[1].clone()

    with torch.no_grad():
        for _ in range(2):
            assert all(map(torch.equal, lowered(examples[0], ours), model(examples[0], theirs)))

    assert torch.equal(ours, theirs)
    graph = program.module(check_guards=False)
    assert place_by_device(graph, cpu_pair()).assignment.order
    assert MeasureCosts()(program.module(check_guards=False)).modified is False
