"""Which modules of the model lie in which stage, in as few names as can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from torch.fx import Node

from fxpasses.metadata import module_stack
from fxpasses.wording import counted

if TYPE_CHECKING:
    from fxpasses.pipelining.pipe import Pipe

__all__ = ["StageContents", "stage_contents"]


@attrs.frozen
class StageContents:
    """What lies in a stage.

    Args:
        modules: The outermost modules that lie in it alone, neighbours in a list as one (``layers.0 to 3``), and
            ``part of`` small ones that another stage has the rest of; in the order in which they run.
        operators: How many operators it runs.
        others: How many of these belong to none of the modules.
    """

    modules: tuple[str, ...]
    operators: int
    others: int

    def __str__(self) -> str:
        besides = [f"{counted(self.others, 'operator')} besides"] if self.others else []
        return ", ".join([*self.modules, *besides])


def stage_contents(pipe: Pipe) -> list[StageContents]:
    """Name what lies in each stage; what it only computes again is not counted.

    A module that a cut goes through is named as a part where it has no more operators than a stage has on average;
    larger ones are opened.
    """
    paths = [[_path(node) for node in _computing(pipe, index)] for index in range(pipe.num_stages)]
    shares: dict[str, dict[int, int]] = {}
    for stage, found in enumerate(paths):
        for path in found:
            for module in path:
                share = shares.setdefault(module, {})
                share[stage] = share.get(stage, 0) + 1
    mean = sum(map(len, paths)) / len(paths)
    return [_contents(found, shares, mean) for found in paths]


def _computing(pipe: Pipe, index: int) -> Iterator[Node]:
    recomputed = dict.fromkeys(pipe.traffic.recomputed[index])
    for node in pipe.get_stage_module(index).part.graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output") and node.name not in recomputed:
            yield node


def _path(node: Node) -> list[str]:
    """The modules around a node, from the outermost; the model itself is left out."""
    return list(dict.fromkeys(path for path, *_ in module_stack(node).values() if path))


def _contents(paths: Sequence[Sequence[str]], shares: Mapping[str, Mapping[int, int]], mean: float) -> StageContents:
    found: dict[str, None] = {}
    others = 0
    for path in paths:
        name = next((named for module in path if (named := _named(module, shares[module], mean))), None)
        if name is None:
            others += 1
        else:
            found[name] = None
    return StageContents(tuple(_joined(list(found))), len(paths), others)


def _named(module: str, share: Mapping[int, int], mean: float) -> str | None:
    """What a stage calls a module that it runs; None for one that is opened."""
    if len(share) == 1:
        return module
    return f"part of {module}" if sum(share.values()) <= mean else None


def _joined(names: Sequence[str]) -> Iterator[str]:
    """Runs of numbered neighbours as one entry."""
    run: list[str] = []
    for name in [*names, ""]:
        if run and not _follows(run[-1], name):
            yield run[0] if len(run) == 1 else f"{run[0]} to {run[-1].rpartition('.')[2]}"
            run = []
        run.append(name)


def _follows(first: str, second: str) -> bool:
    one, _, at = first.rpartition(".")
    other, _, to = second.rpartition(".")
    return one == other and at.isdigit() and to.isdigit() and int(to) == int(at) + 1
