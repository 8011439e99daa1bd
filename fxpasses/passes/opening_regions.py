"""Take regions of autocast and grad modes apart, so that they can be cut, and put together what is left of them."""

from __future__ import annotations

import attrs
from torch.fx import GraphModule

from fxpasses.outlining.closing import close_regions
from fxpasses.outlining.opening import open_regions
from fxpasses.outlining.regions import is_region
from fxpasses.partitioners.placing.worthwhile_cuts import is_worth_cutting
from fxpasses.pass_base import PassBase, PassResult

__all__ = ["CloseRegions", "OpenRegions"]


@attrs.frozen
class OpenRegions(PassBase):
    """Put the operators of autocast and grad-mode regions into the graph around them, between markers.

    ``torch.export`` makes one operator of all that runs inside of ``with torch.autocast(...)`` or ``torch.no_grad()``,
    which may be the whole model. Opened, its operators are placed, split and computed again like others: each part
    that gets some of them enters the region by itself. ``lower`` and ``place`` do so by themselves.

    Args:
        every: Open small regions, too; by default those stay that have no two operators which multiply or read a
            parameter.
    """

    visit_nested = False
    every: bool = attrs.field(default=False, kw_only=True)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Open them in place, nested ones too."""
        opened = open_regions(graph_module, is_region if self.every else is_worth_cutting)
        if opened:
            graph_module.recompile()
        return PassResult(graph_module, bool(opened))


@attrs.frozen
class CloseRegions(PassBase):
    """Make one operator with a body of each autocast and grad-mode region that stands between markers.

    The opposite of :class:`OpenRegions`, to be run after a split: adjacent operators of a region are in one body again,
    whose end puts the state back also where an operator fails. Parameters and buffers stay where they are.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        """Close them in place, nested ones too."""
        closed = close_regions(graph_module)
        if closed:
            graph_module.recompile()
        return PassResult(graph_module, bool(closed))
