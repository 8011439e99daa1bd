"""Levels of ``torch.vmap`` and of derivatives that a graph has left open are closed."""

from __future__ import annotations

from torch._C import _functorch

from fxpasses.values.vmap_levels import close_levels, open_levels


def test_levels_are_closed_down_to_those_that_are_kept() -> None:
    assert 0 == open_levels()
    _functorch._vmap_increment_nesting(2, "error")
    _functorch._grad_increment_nesting()
    _functorch._jvp_increment_nesting()

    close_levels(1)
    assert 1 == open_levels()

    close_levels(0)
    assert 0 == open_levels()
