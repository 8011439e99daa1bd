"""What every node of a graph reads, writes, aliases, or does to the world, and the order that follows from it.

Data edges say that a node needs the result of another. They do not say that ``y = x + 1`` must run before
``x.sin_()``. Those orders are found here: each value lives in one or more storages (views live in their base's), and
for each storage the last writer and the readers since are kept while the graph is walked once. An edge goes from every
reader to the next writer and from every writer to the next reader or writer; all longer orders follow from these, so
there are at most as many edges as operands. The random number generator and the world are storages that every random
operator and every side effect writes. Markers of regions (autocast, grad mode) are barriers.

The idea is memory-dependence analysis as compilers do it (def-use chains of MemorySSA, D. Novillo, "Memory SSA", 2007)
on a straight line of code. Time and memory are linear in nodes and operands, times the inverse Ackermann function.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
