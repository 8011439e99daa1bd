"""A pass: something that takes a graph and gives it back, changed or not.

Subclass :class:`PassBase` and write ``call``; or write a plain function and put it in a list, or decorate it with
:func:`as_pass`. Whether a pass changed the graph is looked up in the graph, not believed; a pass that fails leaves the
graph as it was.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
