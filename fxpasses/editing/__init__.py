"""Edits of a graph that keep its metadata true: create, replace, erase, insert, inline, extract.

Every new node gets its fake value (``val``), the origin of the nodes it stands for (``stack_trace``,
``nn_module_stack``, ``source_fn_stack``, ``torch_fn``, ``from_node`` with the pass's name), and whoever uses a changed
value has its own value computed again. Nothing here recompiles: whoever finishes the edits does that once.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
