"""Run passes one after the other, with checks, records, and the way back when one fails.

>>> from torch.fx import symbolic_trace
>>> import torch
>>> from fxpasses import PassManager
>>> def use_mul(graph_module):
...     for node in graph_module.graph.find_nodes(op="call_function", target=torch.add):
...         node.target = torch.mul
>>> class Add(torch.nn.Module):
...     def forward(self, x, y):
...         return torch.add(x, y)
>>> result = PassManager([use_mul])(symbolic_trace(Add()))
>>> result.modified, [record.name for record in result.records]
(True, ['use_mul'])

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
