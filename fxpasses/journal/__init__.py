"""What a program was before a pass: did it change, how, and back to exactly that.

A :class:`Snapshot` keeps references and shallow copies, never a tensor. Asking whether something changed compares
columns of references at C speed (about 0.15 us a node); what changed is worked out only when somebody asks; going back
puts the same node objects, metadata, attributes, names and order in place again.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
