"""Seconds that a caller tells: what all questions about a model in tight memory are told together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxpasses import Training, fake_devices
from fxpasses.partitioners.by_device import place_by_device
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Contiguity
from fxpasses.partitioners.placing.searches import asked_again, device_search, one_search
from fxpasses.partitioners.placing.searches.checked_answers import Solver
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution

SPEEDS = (1.0, 1.5, 2.0, 3.0)
SECONDS = 0.5


class Tied(nn.Module):
    """Two branches that share a table, which is the head of both, too."""

    def __init__(self, width: int = 32, words: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(4)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        one, other = self.embed(one), self.embed(other)
        for layer in self.layers:
            one = layer(one)
            other = torch.relu(other) + one
        result: Tensor = self.head(one) + self.head(other)
        return result


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PlacementProblem]:
    """The problems that are put to solvers, as they are."""
    problems = list[PlacementProblem]()
    for module in (device_search, one_search, asked_again):
        for name in {"answer_to", "answer_if_any"} & set(vars(module)):
            answer = getattr(module, name)

            def noted(problem: PlacementProblem, solve: Solver, answer: Any = answer) -> PlacementSolution | None:
                problems.append(problem)
                found: PlacementSolution | None = answer(problem, solve)
                return found

            monkeypatch.setattr(module, name, noted)
    return problems


def tight(asked: list[PlacementProblem]) -> tuple[GraphModule, dict[str, Any]]:
    """A model and devices whose memory is tight."""
    words = torch.zeros(4, 8, dtype=torch.long)
    graph = torch.export.export(Tied(), (words, words)).module(check_guards=False)
    training = Training(optimizer_slots=2)
    least = place_by_device(graph, fake_devices(4), objective="memory", training=training, time_budget=0.3)
    memory = [int(least.objective_value * 4 * 1.2 * speed / sum(SPEEDS)) + 1 for speed in SPEEDS]
    asked.clear()
    devices = fake_devices(4, memory=memory, flops=[1e11 * speed for speed in SPEEDS])
    return graph, {"devices": devices, "training": training}


@pytest.mark.parametrize(
    ("objective", "contiguity", "most"),
    [("latency", "free", 4.0), ("latency", "convex", 7.0), ("throughput", "free", 4.0)],
)
def test_questions_in_tight_memory_are_told_a_few_times_the_seconds_at_most(
    asked: list[PlacementProblem], objective: Objective, contiguity: Contiguity, most: float
) -> None:
    """Answers that pass budgets are followed by others, and a table that both ends use asks for more."""
    graph, options = tight(asked)

    place_by_device(graph, **options, objective=objective, contiguity=contiguity, time_budget=SECONDS)

    told = [problem.time_budget for problem in asked]
    assert len(told) > 4, "the memory is not tight"
    assert max(told) <= SECONDS
    assert sum(told) <= most * SECONDS


def test_much_time_is_shared_with_all_questions_about_a_free_placement(asked: list[PlacementProblem]) -> None:
    """And a short search follows, as what is found hangs on where a search begins: more time was worse."""
    graph, options = tight(asked)

    place_by_device(graph, **options, objective="throughput", contiguity="free", time_budget=4.0)

    told = [problem.time_budget for problem in asked]
    assert [0.0, pytest.approx(4.0 / 3.4)] == told[:2]  # whether there is room, and the first question
    assert SECONDS in told
    assert sum(told) <= 2 * 4.0
