"""A graph as a training step sees it: what its operators keep at moments at which a device may be fullest.

Each moment is a sum over the operators of a device, so that solvers can count it, and no placement needs less.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.training.training_steps import TrainingStep

__all__ = ["sent_storages", "stepping_figures", "storages_of", "training_figures"]


def storages_of(figures: GraphFigures, state: Iterable[Node]) -> set[int]:
    """The storages of some parameters and buffers."""
    return {storage for node in state for storage in figures.effects.storages(node)}


def sent_storages(figures: GraphFigures) -> set[int]:
    """Those of what one device sends to others that use it, too: a node of its own counts what is kept for it."""
    return storages_of(figures, (state.names[0] for state in figures.shared_state))


def training_figures(figures: GraphFigures, step: TrainingStep) -> GraphFigures:
    """The same graph as a training step sees it.

    At the end of the forward a device holds its parameters, what the optimizer keeps for them, and all that its
    operators have saved: that is what each node counts for, each thing once a device. No placement needs less.
    """
    needs, training = step.needs, step.training
    parameters = (node for node in needs.differentiable if node.op == "get_attr")
    grows = storages_of(figures, parameters) - sent_storages(figures)
    constants: list[dict[int, int]] = []
    for index, (node, held) in enumerate(zip(figures.nodes, figures.constants, strict=True)):
        grown = {
            storage: int(size * (1 + training.optimizer_slots)) if storage in grows else size
            for storage, size in held.items()
        }
        for owner in needs.saved.get(node, ()):
            grown.update({key: figures.sizes[key] for key in figures.homes[owner] if key in figures.sizes})
        if extra := needs.extra.get(node):
            grown[~index] = extra  # a key of its own: storages are not negative
        constants.append(grown)
    nothing = [()] * len(figures.nodes)
    return attrs.evolve(
        figures,
        constants=constants,
        living=nothing,
        inputs=frozenset(),
        trained=dict.fromkeys(needs.differentiable),
        beside_state=training.optimizer_slots,
    )


def stepping_figures(figures: GraphFigures, step: TrainingStep) -> GraphFigures:
    """What :func:`training_figures` says of a graph, but while the optimizer steps.

    What was saved is gone then; all gradients are there, and what the optimizer makes. Where parameters are large that
    is more than at the end of the forward, and no placement needs less. What is sent counts with a node of its own, and
    nothing here, but is named: what is written stays together with all that uses it.
    """
    training, trained, sent = step.training, storages_of(figures, step.needs.trained), sent_storages(figures)
    grown = training.times_in_step / (1 + training.optimizer_slots)
    constants = [
        {
            storage: 0 if storage in sent else int(size * grown) if storage in trained else size
            for storage, size in held.items()
            if storage >= 0 and storage not in figures.sizes
        }
        for held in figures.constants
    ]
    return attrs.evolve(figures, constants=constants, beside_state=training.times_in_step)
