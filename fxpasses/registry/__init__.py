"""Names for passes, so that a pipeline can be text: in a command line, a file, a report, a test.

.. code-block:: python

    @register_pass("use-relu")
    class UseRelu(ExportPass): ...

    manager = parse_pipeline("use-relu,repeat(fuse-conv-bn,eliminate-dead-code){max-steps=4}")
    pipeline_text(manager)

An installed package adds its passes by the entry point ``fxpasses.passes``, each line a name and a class or function:

.. code-block:: toml

    [project.entry-points."fxpasses.passes"]
    use-relu = "mybackend.passes:UseRelu"

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
