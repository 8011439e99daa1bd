"""Runs that compare or measure draw the same random numbers, and nobody notices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxpasses.checks.evaluation import evaluate
from fxpasses.seeding import seeded


def test_random_numbers_are_the_same_inside_and_go_on_outside() -> None:
    torch.manual_seed(7)
    expected = torch.rand(4)
    torch.manual_seed(7)
    first = torch.rand(2)

    with seeded():
        inside = torch.rand(2)
    with seeded():
        again = torch.rand(2)

    assert torch.equal(expected, torch.cat([first, torch.rand(2)]))
    assert torch.equal(inside, again)
    with seeded(3):
        assert not torch.equal(inside, torch.rand(2))


def test_gpus_in_use_are_seeded_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the hardware: generators of the CPU stand for those of two GPUs."""
    generators = [torch.Generator().manual_seed(index) for index in (5, 6)]
    before = [generator.get_state() for generator in generators]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: generators[device].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: generators[device].set_state(state))

    with seeded():
        seeds = [generator.initial_seed() for generator in generators]
        torch.rand(2, generator=generators[1])

    assert [0, 0] == seeds
    assert [True, True] == [
        torch.equal(one, generator.get_state()) for one, generator in zip(before, generators, strict=True)
    ]


def test_a_gpu_that_nobody_uses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on the CPU is compared on a machine with GPUs: what the user seeded for these stays so."""
    asked: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", asked.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    program = torch.export.export(nn.Dropout(0.5), (torch.ones(8),))

    evaluate(program, (torch.ones(8),))

    assert [] == asked
