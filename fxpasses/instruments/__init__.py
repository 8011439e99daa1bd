"""Watch a pipeline run: times, the graph after each pass, diffs, drawings, statistics, remarks, a log.

Give instruments to a manager (``PassManager([...], instruments=[Timing()])``) or open :func:`observe` around any run.
An instrument is any object with some of the methods of :class:`Instrument`; without one, nothing is computed.

>>> from torch.fx import symbolic_trace
>>> import torch
>>> from fxpasses import PassManager
>>> from fxpasses.instruments import Timing
>>> timing = Timing()
>>> def nothing(graph_module): ...
>>> result = PassManager([nothing], instruments=[timing])(symbolic_trace(torch.nn.ReLU()))
>>> [entry.name for entry in timing.entries]
['nothing']

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
