"""A dense view of a graph: which node waits for which, numbered 0 to n - 1 in graph order.

Edges are the data edges of the graph and the order edges of :mod:`fxpasses.effects`. All partitioners, the splitter and
the rewriter ask this one structure. A node's number is its place in :attr:`Dependencies.nodes`; numbers go in, numbers
come out.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
