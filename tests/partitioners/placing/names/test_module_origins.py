"""What a module path means for operators that run a body: regions of autocast and grad modes, branches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxpasses import Device, PlacementError, lower, place
from fxpasses.plan import stable_keys
from fxpasses.programs import capture

TWO = [Device("left"), Device("right")]
X = torch.randn(4, 8)


class Regions(nn.Module):
    """``a`` is in a region with something of the model itself, ``b`` fills one, ``c`` is in none, ``d`` in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.a(x) * 2
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.b(hidden)
        hidden = self.c(hidden.float())
        chosen: Tensor = torch.cond(hidden.sum() > 0, lambda y: self.d(y), lambda y: y + 1, (hidden,))
        return chosen


def homes(**options: Any) -> dict[str, str]:
    """The device of each operator that computes with a weight."""
    planned = place(Regions().eval(), (X,), devices=TWO, **options)
    keys = stable_keys(planned.graph_module.graph)
    names = {"/wrap_with_set_grad_enabled#0": "a", "/wrap_with_autocast#0": "b", "c/linear#0": "c", "/cond#0": "d"}
    partition_of = planned.assignment.partition_of
    found = {names[key]: str(partition_of[node]) for node, key in keys.items() if key in names}
    return {name: planned.plan.device_of[part].name for name, part in found.items()}


def test_a_map_puts_a_region_where_it_puts_the_module_that_fills_it() -> None:
    """``torch.export`` says that the region is of the model itself: the map was silently not followed."""
    wanted = {"a": "left", "b": "right", "c": "left", "": "left"}

    assert {"a": "left", "b": "right", "c": "left"}.items() <= homes(device_map=wanted).items()


def test_the_map_of_such_a_plan_makes_the_plan_again() -> None:
    model = Regions().eval()
    program = capture(model, (X,))
    planned = place(program, devices=TWO, device_map={"b": "right", "": "left"})

    again = place(program, devices=TWO, device_map=planned.plan.device_map())

    assert planned.plan.parts == again.plan.parts
    with torch.no_grad():
        assert torch.equal(model(X), lower(program, plan=again.plan)(X))


@pytest.mark.parametrize("module", ["a", "b", "c", "d"])
def test_a_module_is_pinned_with_the_region_or_the_branch_that_it_is_in(module: str) -> None:
    others = {"c": "left"} if module != "c" else {"b": "left"}

    assert "right" == homes(pinned={**others, module: "right"}, objective="throughput")[module]


def test_a_module_that_is_nowhere_is_still_refused() -> None:
    with pytest.raises(PlacementError, match=r"^`pinned` names 'e', from which no operator of this graph comes"):
        place(Regions(), (X,), devices=TWO, pinned={"e": "left"})
