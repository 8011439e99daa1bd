"""Small models for the tests of the main job: one for each thing that a real model may have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fxpasses import Device


def cpu_pair(first: int | None = None, second: int | None = None) -> list[Device]:
    """Two devices that are both the CPU, with budgets in bytes."""
    return [Device("left", first), Device("right", second)]


class Mlp(nn.Module):
    """A stack of linear layers, 16 KiB each at the default width."""

    def __init__(self, layers: int = 4, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Rows(nn.Module):
    """Layers on each row by itself, with ``torch.vmap``: what is captured of a row has no batch."""

    def __init__(self, layers: int = 2, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.vmap(lambda row, weight=layer.weight: (row.sin().outer(row) @ weight).sum(0))(layer(x))
        return x


class KeywordsAndDicts(nn.Module):
    """Keyword inputs in a dict, results in a nested dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.second = nn.Linear(64, 8)

    def forward(self, batch: dict[str, Tensor], *, scale: Tensor) -> dict[str, Any]:
        hidden = self.first(batch["x"] + batch["y"])
        return {"out": self.second(hidden) * scale, "extra": (hidden, [hidden.sum()]), "nothing": None}


@dataclass
class Answer:
    """A result as a dataclass."""

    logits: Tensor
    hidden: Tensor


torch.export.register_dataclass(Answer, serialized_type_name="tests.Answer")


class Dataclasses(nn.Module):
    """Gives a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.second = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Answer:
        hidden = self.first(x)
        return Answer(self.second(hidden), hidden)


class Tied(nn.Module):
    """An embedding and an output layer with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.middle = nn.Linear(32, 32)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.middle(self.embed(ids))))


class KeyValueCache(nn.Module):
    """One step of a decoder: writes its key and value into a cache at a position, attends over all of it."""

    def __init__(self, width: int = 16, length: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, length, width))
        self.register_buffer("values", torch.zeros(1, length, width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long), persistent=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        self.keys.index_copy_(1, position, key)
        self.values.index_copy_(1, position, value)
        self.calls.add_(1)
        scores = torch.softmax(query @ self.keys.transpose(1, 2), dim=-1)
        return self.out(scores @ self.values) + self.calls


class InPlace(nn.Module):
    """``y = x + 1; x.sin_(); z = x + 2`` with layers around it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        y = x + 1
        x.sin_()
        z = x + 2
        return self.second(y), self.second(z)


class Conditional(nn.Module):
    """A branch in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
        return self.second(x)


class Windows(nn.Module):
    """What is small in memory that is large: windows that are added up again, and losses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        functions = nn.functional
        windows = functions.unfold(self.linear(x), 3, padding=1)
        added = functions.fold(windows.sigmoid(), 16, 3, padding=1)
        few = functions.unfold(added, 1, stride=4)
        smooth = functions.smooth_l1_loss(added, x)
        return few, added.relu(), smooth, functions.mse_loss(row, added), functions.soft_margin_loss(added, x.sign())


class Crossing(nn.Module):
    """Branches, views, a mask without a gradient, and a value that all use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.other = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        mask = x > 0
        wide = self.one(x).view(-1, 4, 8).transpose(1, 2).reshape(-1, 32) * mask
        return (wide.relu() + self.other(x).sigmoid() * mask + x).softmax(-1)


class Called(nn.Module):
    """A function on what a layer makes."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(64, 64), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


def calling(function: Callable[[Tensor], Tensor]) -> Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]:
    """Makes a model that calls it, and inputs."""
    return lambda: (Called(function), (torch.randn(4, 64, 64),))
