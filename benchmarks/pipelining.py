"""Pipeline stages: building them against torch's ``pipeline()``, what a stage costs when it runs, and previews."""

from __future__ import annotations

import functools
from typing import Any

import torch

from benchmarks.harness import Duel, case
from benchmarks.models import narrow_llama
from fxpasses.pipelining import Pipe, SplitPoint, StageCost, pipeline, preview

STAGES = 4
IDS = torch.arange(32).reshape(2, 16)


def _cuts(layers: int) -> list[str]:
    return [f"model.layers.{layers * stage // STAGES}" for stage in range(1, STAGES)]


def _runs_as_the_model(model: torch.nn.Module, pipe: Pipe) -> None:
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, pipe(input_ids=IDS).logits)


@case("pipeline() into 4 stages, Llama of N layers, beside torch's", sizes=(4, 16), promise=1, rounds=3)
def build_stages(layers: int) -> Duel:
    from torch.distributed.pipelining import SplitPoint as TorchSplitPoint
    from torch.distributed.pipelining import pipeline as torchs

    models: list[torch.nn.Module] = []

    def fresh() -> torch.nn.Module:
        models.append(narrow_llama(layers))  # torch's pipeline() wraps modules of the model that it is given
        return models[-1]

    def check(ours: Pipe, theirs: Any) -> None:
        assert theirs is None or theirs.num_stages == ours.num_stages == STAGES
        _runs_as_the_model(models[0], ours)  # torch's pipe of this model does not run

    return Duel(
        ours=lambda model: pipeline(model, (), {"input_ids": IDS}, dict.fromkeys(_cuts(layers), SplitPoint.BEGINNING)),
        peer=lambda model: torchs(
            model, (), {"input_ids": IDS}, dict.fromkeys(_cuts(layers), TorchSplitPoint.BEGINNING)
        ),
        check=check,
        prepare=fresh,
    )


@case("pipeline('auto') into 4 stages, Llama of N layers", sizes=(4, 16), rounds=2)
def balance_stages(layers: int) -> Duel:
    model = narrow_llama(layers)

    def check(ours: Pipe, _theirs: Any) -> None:
        assert ours.balance is not None
        assert ours.balance.gap <= 0.1
        _runs_as_the_model(model, ours)

    return Duel(ours=lambda: pipeline(model, (), {"input_ids": IDS}, "auto", num_stages=STAGES), peer=None, check=check)


@functools.cache
def _pipe(layers: int) -> tuple[torch.nn.Module, Pipe]:
    model = narrow_llama(layers)
    return model, pipeline(model, (), {"input_ids": IDS}, dict.fromkeys(_cuts(layers), SplitPoint.BEGINNING))


@case("a micro-batch through 4 stages, forward, beside the model itself", sizes=(4, 16), rounds=20)
def run_stages(layers: int) -> Duel:
    model, pipe = _pipe(layers)

    def check(ours: Any, theirs: Any) -> None:
        assert torch.equal(theirs.logits, ours.logits)

    return Duel(
        ours=torch.no_grad()(lambda: pipe(input_ids=IDS)),
        peer=torch.no_grad()(lambda: model(input_ids=IDS)),
        check=check,
    )


@case("preview of interleaved 1F1B, 8 ranks, 16 stages, N micro-batches", sizes=(64, 512))
def simulate_schedule(microbatches: int) -> Duel:
    costs = [StageCost(1e-3, 1e-3, 1e-3, parameters=1, gradients=1, kept=1, received=1, sent=1)] * 16

    def check(ours: Any, _theirs: Any) -> None:
        assert abs(ours.overhead - 7 / (2 * microbatches)) < 2e-2

    return Duel(
        ours=lambda: preview(costs, "interleaved", num_microbatches=microbatches, ranks=8), peer=None, check=check
    )
