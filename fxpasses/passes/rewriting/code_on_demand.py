"""Compile a rewritten module when somebody looks at its code, not when it is rewritten."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from fxpasses.pass_base.recompiling import RecompileQueue

__all__ = ["recompile_on_demand"]


class _OneTime(RecompileQueue):
    """A queue that gives the module its own ``recompile`` back as soon as it has compiled it."""

    def compile(self, module: GraphModule) -> Any:
        made = super().compile(module)
        self.release()
        return made


def recompile_on_demand(module: GraphModule) -> None:
    """Note that the code of a module is out of date; it is generated when it is first run or read, so never stale.

    Inside a pipeline, the pipeline decides when.
    """
    _OneTime().mark(module)
