"""Fake values of nodes: which FakeTensorMode a graph lives in, and what a node computes in it.

``node.meta["val"]`` says what a node would give: a :class:`FakeTensor`, a ``SymInt``, a number, or a list of them. All
fakes of one program belong to one :class:`FakeTensorMode`; its ``ShapeEnv`` owns the symbols. New values are computed
in that mode, only where something changed: :func:`refresh_values` walks forward from the nodes that it is given, in
graph order, and stops where the new value equals the recorded one by shape, stride, dtype, device and symbols.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
