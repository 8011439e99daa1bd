"""On which device each module of a plan is, for a device map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fxpasses.partitioners.placing.names.device_maps import covering
from fxpasses.plan.keys import names_region, path_in
from fxpasses.plan.parts import PartPlan

__all__ = ["devices_by_module"]


def devices_by_module(parts: Sequence[PartPlan]) -> Iterator[tuple[str, str]]:
    """Module path and device of each entry; a module with exceptions counts once more than they are.

    A region is where the module is that fills it, and needs no entry (:mod:`~.placing.module_origins`).
    """
    whole = {path_in(op): part.device for part in parts for op in part.ops if op.endswith("/*")}
    for part in parts:
        for entry in part.ops:
            if names_region(entry):
                continue
            path = path_in(entry)
            around = covering(path, whole)
            if not entry.endswith("/*") and around is not None and whole[around] != part.device:
                yield from [(path, whole[around])] * 2
            yield path, part.device
