"""Edits of an ExportedProgram that keep graph, signature, state, constants and calling convention in step.

A program says the same thing in many places: placeholders and ``input_specs``, the output node and ``output_specs``,
``state_dict`` and ``constants``, the pytrees of its inputs and outputs, example inputs, range constraints, the module
call graph. Each function here changes all of them, so that ``program.validate()`` passes after every edit and
``program.module()`` still runs.

The edits are made **in place**: that is how passes over programs are written (a pass gets the program and adds a
constant to it), tensors stay the same objects, and a failed pass is undone by :class:`fxpasses.journal.Snapshot`.
:func:`with_graph_module` is for the other style: a pass that edited only the graph module, after which the program is
brought back in step.

The names are listed in ``__init__.pyi`` and imported when first used.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
