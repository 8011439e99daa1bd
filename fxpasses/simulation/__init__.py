"""Run a placement on paper: which part computes when, which value crosses when, what each device holds meanwhile.

The numbers are those that placing works with (:mod:`fxpasses.partitioners.costs.node_costs`,
:mod:`fxpasses.partitioners.costs.memory`); what is added is time: a device does one thing at a time, and nothing starts
before its inputs are there.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
