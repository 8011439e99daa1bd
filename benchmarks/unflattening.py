"""unflatten against torch.export.unflatten: making the modules, and running them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Duel, case
from benchmarks.models import wide_llama
from fxpasses.passes import unflatten


class Tree(nn.Module):
    """A tree of modules in which each has four children."""

    def __init__(self, modules: int) -> None:
        super().__init__()
        share, rest = divmod(modules - 1, 4)
        sizes = [share + (index < rest) for index in range(4)]
        self.branches = nn.ModuleList(Tree(size) for size in sizes if size)
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        for branch in self.branches:
            x = branch(x)
        return x * self.weight


def _llama(layers: int) -> tuple[nn.Module, dict[str, Any]]:
    return wide_llama(layers), {"input_ids": torch.randint(0, 1000, (1, 64))}


def _same_names(ours: nn.Module, theirs: nn.Module | None) -> None:
    assert theirs is None or list(ours.state_dict()) == list(theirs.state_dict())


def _torch_unflatten(program: torch.export.ExportedProgram) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.unflatten(program)


@case("unflatten a tree of modules", sizes=(200, 1000, 5000), promise=5, rounds=3)
def unflatten_tree(size: int) -> Duel:
    program = torch.export.export(Tree(size), (torch.ones(2),))
    return Duel(lambda: unflatten(program), lambda: _torch_unflatten(program), _same_names)


@case("unflatten an exported Llama", sizes=(4, 16), promise=3)
def unflatten_llama(layers: int) -> Duel:
    model, kwargs = _llama(layers)
    program = torch.export.export(model, (), kwargs)
    return Duel(lambda: unflatten(program), lambda: _torch_unflatten(program), _same_names)


@case("run an unflattened Llama; the peer is the exported module itself", sizes=(16,), promise=1 / 1.1, rounds=21)
def run_unflattened(layers: int) -> Duel:
    model, kwargs = _llama(layers)
    program = torch.export.export(model, (), kwargs)
    flat, deep = program.module(), unflatten(program)

    def check(ours: Any, theirs: Any) -> None:
        assert torch.equal(ours.logits, theirs.logits)

    def run(module: nn.Module) -> Any:
        with torch.no_grad():
            return module(**kwargs)

    return Duel(lambda: run(deep), lambda: run(flat), check)
