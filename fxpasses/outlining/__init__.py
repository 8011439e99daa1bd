"""Turn groups of nodes into submodules: the one builder under splitting, fusing, placement and pipeline stages.

A :class:`~fxpasses.outlining.outline_plan.Plan` says what goes where; :func:`build_parts` then writes the graph of each
part. Two finishers use the result: :func:`outline` changes a module in place, and
:func:`fxpasses.passes.splitting.split` writes a new top-level graph beside the old one.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
