"""A pass that is asked about a graph op by op: subclass, override a hook, return what should stand in its place.

.. code-block:: python

    class UseRelu(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            if op == torch.ops.aten.relu_.default:
                op = torch.ops.aten.relu.default
            return super().call_operator(op, args, kwargs, meta)

Calling ``super()`` with what the hook was given keeps the node; with anything else it makes a node, and may be called
several times. Returning a value (an argument, say) without calling ``super()`` drops the op. The graph is edited in
place: what no hook changes keeps its identity and its recorded value, and only values downstream of a change are
computed again (:mod:`fxpasses.export_pass.replay`).

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
