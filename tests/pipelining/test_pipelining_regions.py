"""Cuts through autocast and no_grad, state that a stage writes, random numbers, and structured inputs and outputs."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fxpasses.pipelining import SplitPoint, pipeline

BEGINNING = SplitPoint.BEGINNING
X = torch.arange(8.0).reshape(2, 4) / 8


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.a(x)
            z = self.b(y)
            with torch.autocast("cpu", enabled=False):
                w = self.c(z.float())
            v = self.d(w)
        return y, z, w, v, self.a(x)


class NoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        with torch.no_grad():
            y = self.a(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = self.b(y)
            w = self.c(z.float())
        return y, z, w, self.d(w) + x


@pytest.mark.parametrize("kind", [Autocast, NoGrad])
@pytest.mark.parametrize("inside", ["b", "c", "d", "bcd"])
def test_complaint_21_a_cut_inside_a_region(kind, inside):
    """Complaint 21: every stage enters the region again: dtypes, gradients and values are the model's."""
    torch.manual_seed(0)
    model, x = kind(), X.clone().requires_grad_()
    pipe = pipeline(model, (x,), None, dict.fromkeys(inside, BEGINNING))
    expected, found = model(x), pipe(x)

    assert len(inside) + 1 == pipe.num_stages
    for want, have in zip(expected, found, strict=True):
        assert torch.equal(want, have)
        assert (want.dtype, want.requires_grad) == (have.dtype, have.requires_grad)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("kind", [Autocast, NoGrad])
def test_gradients_of_a_cut_region_are_the_model_s(kind):
    """What no_grad stops stays stopped; what autocast casts is cast back."""
    torch.manual_seed(0)
    model = kind()
    other = copy.deepcopy(model)
    pipe = pipeline(other, (X,), None, {"b": BEGINNING, "d": BEGINNING})
    for module in (model, pipe):
        sum(value.float().square().sum() for value in module(X) if value.requires_grad).backward()

    for (name, want), have in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (want.grad is None) == (have.grad is None), name
        assert want.grad is None or torch.allclose(want.grad, have.grad, rtol=1e-2)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers:
                x = torch.relu(layer(x))
        return x


def test_an_automatic_cut_goes_through_a_region_with_parameters():
    """A whole model under autocast is no single node: its layers are shared out equally."""
    model, x = Deep(), torch.randn(4, 64)
    pipe = pipeline(model, (x,), None, "auto", num_stages=4)
    sizes = [sum(p.numel() for p in pipe.get_stage_module(index).parameters()) for index in range(4)]

    assert [2 * (64 * 64 + 64)] * 4 == sizes
    assert torch.equal(model(x), pipe(x))


class Cached(nn.Module):
    """Two layers with a cache each, one that a checkpoint has and one that none has; and batch statistics."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("keys", torch.zeros(6, 4))
        self.register_buffer("values", torch.zeros(6, 4), persistent=False)

    def forward(self, x, at):
        keys = self.first(x)
        self.keys.index_copy_(0, at, keys)
        y = keys + self.keys.sum(0)
        z = self.second(y)
        self.values[at] = z
        return self.norm(z + self.values.mean(0))


def test_complaint_18_caches_are_written_where_they_are():
    """Complaint 18: three steps write the same caches and statistics as the model, persistent or not."""
    torch.manual_seed(0)
    model = Cached().train()
    other = copy.deepcopy(model)
    pipe = pipeline(other, (X, torch.tensor([0, 1])), None, {"second": BEGINNING, "norm": BEGINNING})
    for step in range(3):
        at = torch.tensor([2 * step, 2 * step + 1])

        assert torch.equal(model(X + step, at), pipe(X + step, at))
    for (name, want), have in zip(model.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(want, have), name
    holders = {name: index for index in range(3) for name, _ in pipe.get_stage_module(index).named_buffers()}
    saved = {name for index in range(3) for name in pipe.get_stage_module(index).state_dict()}

    assert {"keys": 0, "values": 1} == {name: holders[name] for name in ("keys", "values")}
    assert set(model.state_dict()) == saved


class Prepared(nn.Module):
    """The state of both layers is set before the first one runs, as static caches are."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("begin", torch.zeros((), dtype=torch.int64))
        self.register_buffer("end", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(8, 4), persistent=False)

    def forward(self, x, at):
        self.begin.copy_(at)
        self.end.copy_(at)
        y = self.first(x) + self.begin
        self.begin.add_(2)
        z = self.second(y)
        self.cache.index_copy_(0, torch.arange(2) + self.end, z)
        self.end.add_(2)
        return self.cache.sum(0) + self.end


def test_state_that_is_prepared_early_is_written_where_it_is_used():
    """Complaint 18: a write that only a later stage looks at is done there; three steps equal the model's."""
    model = Prepared()
    twin = copy.deepcopy(model)
    pipe = pipeline(model, (X, torch.tensor(0)), None, {"second": BEGINNING})
    with torch.no_grad():
        for step in range(3):
            assert torch.equal(twin(X + step, torch.tensor(2 * step)), pipe(X + step, torch.tensor(2 * step)))
    held = [{name for name, _ in pipe.get_stage_module(index).named_buffers()} for index in range(2)]

    assert [{"begin"}, {"end", "cache"}] == held
    assert all(map(torch.equal, twin.buffers(), model.buffers()))


def test_a_deep_module_keeps_the_persistence_of_its_buffers():
    """A stage's ``state_dict`` lists what the model's does, at any depth."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    model[1].register_buffer("seen", torch.ones(4), persistent=False)
    model[1].forward = lambda x: model[1][0](x) * model[1].seen
    pipe = pipeline(model, (X,), None, {"1": BEGINNING})
    stage = pipe.get_stage_module(1)

    assert "1.seen" in dict(stage.named_buffers())
    assert "1.seen" not in stage.state_dict()


def test_a_seed_gives_the_model_s_numbers():
    """In one process random operators keep their order, and are never computed again."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)).train()
    pipe = pipeline(model, (X,), None, {"1": BEGINNING, "3": BEGINNING})
    for seed in range(3):
        torch.manual_seed(seed)
        expected = model(X)
        torch.manual_seed(seed)

        assert torch.equal(expected, pipe(X))


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor | None = None


@dataclasses.dataclass
class Answer:
    y: torch.Tensor
    parts: dict[str, torch.Tensor]


pytree.register_dataclass(Batch)
pytree.register_dataclass(Answer)


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, batch, *, scale=1.0, extra):
        y = self.first(batch.x) * batch.mask
        return Answer(self.second(y) * scale, {"hidden": y, "extra": extra["more"][0] + 1})


def test_dataclasses_and_keywords_go_in_and_come_out():
    """The first stage takes the model's inputs in any order of keywords, the last gives its output."""
    model = Structured()
    batch, extra = Batch(X, torch.tensor([True, False, True, True])), {"more": [torch.ones(3)]}
    pipe = pipeline(model, (batch,), {"scale": 2.0, "extra": extra}, {"second": BEGINNING})
    expected, found = model(batch, extra=extra, scale=2.0), pipe(batch, extra=extra, scale=2.0)

    assert isinstance(found, Answer)
    assert list(expected.parts) == list(found.parts)
    assert all(map(torch.equal, pytree.tree_leaves(expected), pytree.tree_leaves(found)))


def traces(module):
    """Everything of a module that somebody could change, tensors by identity."""

    def seen(value):
        return (id(value), value._version, id(value.grad)) if isinstance(value, torch.Tensor) else value

    return [
        (name, type(part), {key: _copied(value, seen) for key, value in vars(part).items()})
        for name, part in module.named_modules(remove_duplicate=False)
    ]


def _copied(value, seen):
    if isinstance(value, dict):
        return {key: _copied(inner, seen) for key, inner in value.items()}
    return set(value) if isinstance(value, set) else seen(value)


def test_the_caller_s_module_is_left_exactly_as_it_was():
    """Attributes, hooks, training flags, gradients and the identity of all tensors; also after the stages ran."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(), nn.Linear(4, 4)), nn.Linear(4, 4)).train()
    model[1].eval()
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    model[0].weight.grad = torch.ones(4, 4)
    model.note = {"mine": [1, 2]}
    before = traces(model)
    pipe = pipeline(model, (X,), None, {"1": BEGINNING, "2": BEGINNING})
    with torch.no_grad():
        pipe(X)

    assert before == traces(model)
