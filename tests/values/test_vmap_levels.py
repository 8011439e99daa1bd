"""Levels of ``torch.vmap`` that a graph has left open are closed."""

from __future__ import annotations

from torch._functorch.predispatch import _vmap_increment_nesting

from fxpasses.values.vmap_levels import close_levels, open_levels


def test_levels_are_closed_down_to_those_that_are_kept() -> None:
    assert 0 == open_levels()
    for _ in range(3):
        _vmap_increment_nesting(2, "error")

    close_levels(1)
    assert 1 == open_levels()

    close_levels(0)
    assert 0 == open_levels()
