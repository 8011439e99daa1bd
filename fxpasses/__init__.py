"""fxpasses: graph-transformation passes over ``torch.fx``, from a model to GraphModules that run on their devices.

The names of the core are listed in ``__init__.pyi`` and imported when first used, so that ``import fxpasses`` adds
nearly nothing to ``import torch``.
"""

from importlib.metadata import version as _version

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
__version__ = _version("fxpasses")
