"""A batch of any size through stages that were captured with one."""

import re

import pytest
import torch
from pipeline_models import MODELS
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim
from torch.utils import _pytree as pytree

from fxpasses import InputError, StageError
from fxpasses.pipelining import SplitPoint, pipeline
from fxpasses.programs import capture

BEGINNING = SplitPoint.BEGINNING


class Sizes(nn.Module):
    """Sizes that later stages need: of a view, of a repetition, as a number, and of two inputs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, other):
        rows, width = x.shape[0], other.shape[1]
        mask = torch.ones(1, 4).expand(rows, 4)
        y = self.layers[0](x).reshape(-1)
        z = self.layers[1](y.reshape(rows, 4)) * mask
        w = self.layers[2](z) + torch.arange(rows).unsqueeze(1)
        return w, w.sum() * (rows * width), other.sum(1)


def grown(value, rows):
    return pytree.tree_map(
        lambda leaf: leaf[torch.arange(rows) % 2] if leaf.dim() and leaf.shape[0] == 2 else leaf, value
    )


@pytest.mark.parametrize("recompute", ["cheaper", "never"])
def test_any_batch_through_three_stages(recompute):
    """Sizes are read off what comes, or are sent as numbers; outside of a runtime nothing else is needed."""
    model, args = Sizes(), (torch.randn(2, 4), torch.randn(3, 5))
    shapes = {"x": {0: Dim("rows")}, "other": {1: Dim("width")}}
    cuts = {"layers.1": BEGINNING, "layers.2": BEGINNING}
    pipe = pipeline(model, args, None, cuts, dynamic_shapes=shapes, recompute=recompute)
    for rows, width in ((2, 5), (7, 5), (3, 9), (2, 2)):
        given = torch.randn(rows, 4), torch.randn(3, width)

        assert all(map(torch.equal, model(*given), pipe(*given)))


def test_sizes_travel_by_the_shapes_of_what_travels_anyway():
    """Nothing is sent for a size that a tensor of the same hop shows; a number travels where none does."""

    class Lonely(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(self.first(x).sum(0)) * x.shape[0]

    model, x = Lonely(), torch.randn(3, 4)
    shapes = {"x": {0: Dim("rows")}}
    pipe = pipeline(model, (x,), None, {"second": BEGINNING}, dynamic_shapes=shapes)
    (hop,) = pipe.traffic.hops

    assert ["sum_1", 8] == [hop.values[-1][0], hop.values[0][1]]
    assert () == hop.worked_out
    assert torch.equal(model(x[:2]), pipe(x[:2]))

    pipe = pipeline(
        Sizes(), (x, x), None, {"layers.1": BEGINNING}, dynamic_shapes={"x": {0: Dim("rows")}, "other": None}
    )
    assert any("sym_size" in name for name in pipe.traffic.hops[0].worked_out)


@pytest.mark.parametrize("name", ["tied_llama", "t5", "residual_net"])
def test_real_models_take_any_batch(name):
    """``dynamic_shapes="batch"`` finds the batch dimension of all inputs."""
    make, points = MODELS[name]
    model, args, kwargs = make()
    pipe = pipeline(model, args, kwargs, {points[1]: BEGINNING}, dynamic_shapes="batch")
    for rows in (2, 3, 5):
        given, named = grown(args, rows), grown(kwargs, rows)
        expected, found = model(*given, **named), pipe(*given, **named)

        assert all(map(torch.equal, pytree.tree_leaves(expected), pytree.tree_leaves(found)))


class Fixed(nn.Module):
    def forward(self, x):
        return x + 1 if x.shape[0] == 2 else x


BAD = {
    "word": (
        lambda: pipeline(Sizes(), (torch.ones(2, 4), torch.ones(2, 5)), dynamic_shapes="rows"),
        "dynamic_shapes is what torch.export takes, or \"batch\", not 'rows'",
    ),
    "one row": (
        lambda: pipeline(Sizes(), (torch.ones(1, 4), torch.ones(2, 5)), dynamic_shapes="batch"),
        'dynamic_shapes="batch" needs an example of at least 2 rows, not 1: torch.export takes 1 for a size that never '
        "changes",
    ),
    "no tensor": (
        lambda: pipeline(Sizes(), (), dynamic_shapes="batch"),
        'dynamic_shapes="batch" needs an example input with a batch dimension',
    ),
    "fixed": (
        lambda: pipeline(Fixed(), (torch.ones(2, 4),), dynamic_shapes="batch"),
        "the model fixes its batch size at 2; look for a reshape or a constant of that size in it, or leave "
        "dynamic_shapes out",
    ),
    "program": (
        lambda: pipeline(capture(Fixed(), (torch.ones(2, 4),)), dynamic_shapes="batch"),
        "a program is captured already; give dynamic_shapes to torch.export.export()",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_batch_that_cannot_change_gets_one_sentence(name):
    """What is in the way, and what to do."""
    call, message = BAD[name]
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        call()


def test_a_value_of_another_shape_is_refused_where_it_arrives():
    """The value, both shapes, and what to do."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(2, 4)
    pipe = pipeline(model, (x,), None, {"1": BEGINNING})
    message = (
        "linear came with the shape (3, 4) from the stage before, but the model was captured for (2, 4); give "
        "micro-batches of the captured size, or call pipeline() with dynamic_shapes"
    )
    with pytest.raises(StageError, match=f"^{re.escape(message)}$"):
        pipe.get_stage_module(1)(torch.ones(3, 4))
    with pytest.raises(InputError, match=r"^The input 'input' has shape \(3, 4\), but the model was captured for"):
        pipe(torch.ones(3, 4))


def test_a_size_that_only_the_data_tell_cannot_travel():
    """Stages have to know sizes ahead; the line is the user's."""

    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.second(self.first(x)[x[:, 0] > 0])

    with pytest.raises(
        StageError, match=r"test_pipelining_sizes.py.* has the size \(u0, 4\), which depends on the data"
    ):
        pipeline(Choosing(), (torch.ones(3, 4),), None, {"second": BEGINNING})


def test_what_a_loop_gives_travels():
    """Its sizes are known; only where it lies in its storage depends on the data."""

    class Looping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            def again(count, x):
                return count + 1, self.first(x).relu()

            _, x = while_loop(lambda count, x: count < 3, again, (torch.tensor(0), x))
            return self.second(x)

    model, x = Looping().eval(), torch.randn(2, 4)
    pipe = pipeline(model, (x,), None, {"second": BEGINNING})

    assert torch.equal(model(x), pipe(x))
