"""What happens when on which device: spans of work and curves of memory, as a trace, a picture or a table.

A simulated run of a plan and a preview of a pipeline schedule are both a :class:`Timeline`.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
