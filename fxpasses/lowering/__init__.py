"""The main job: lower a model onto devices and get one callable ``GraphModule`` that runs there.

Capture with ``torch.export``, clean up with passes, decide which device runs what, split, move, copy, report.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
