"""From a flat exported program back to modules with the original hierarchy and names.

The nodes of the flat graph stay in their order. Each says in ``nn_module_stack`` in which call of which module it was
made; runs of nodes of one call become the graph of that module, whose inputs and outputs are the values that cross.
Linear in nodes plus crossings, without recursion.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.utils import _pytree as pytree

from fxpasses.collecting import collection_paused
from fxpasses.errors import InputError, SplitError, also_as
from fxpasses.passes.hierarchies import Unflattener
from fxpasses.passes.interpreter_modules import (
    FlatArgsAdapter,
    InterpreterModule,
    explain_error,
)
from fxpasses.programs.input_contract import InputContract

__all__ = ["UnflattenedModule", "swap_modules", "unflatten"]


class UnflattenedModule(InterpreterModule):
    """An exported program with the original hierarchy; call it like the model it came from.

    Attributes:
        graph_signature: The program's: which inputs are state, and what is written.
        range_constraints: The program's: what sizes may be.
        module_call_graph: The program's: the modules, and the signatures of preserved calls.
        flat_args_adapter: Takes calls of another structure; it may be replaced.
        check_input_constraints: Whether shapes, types and constants among the inputs are checked before each call.

    Args:
        export_module: The program.
        flat_args_adapter: Takes calls whose structure is not the captured one.
        clone: Copy parameters and buffers; by default they are the program's own.
        keep_partitions: Keep submodules that the flat graph calls; else inline them.

    Raises:
        SplitError: As :func:`unflatten` does.
        InputError: As :func:`unflatten` does.
    """

    graph_signature: ExportGraphSignature
    range_constraints: Any
    module_call_graph: list[Any]
    flat_args_adapter: FlatArgsAdapter | None
    check_input_constraints: bool

    def __init__(
        self,
        export_module: ExportedProgram,
        flat_args_adapter: FlatArgsAdapter | None = None,
        *,
        clone: bool = False,
        keep_partitions: bool = True,
    ) -> None:
        _check_program(export_module)
        _check_adapter(flat_args_adapter)
        program = export_module if keep_partitions else _without_partitions(export_module)
        with collection_paused():
            Unflattener(program, clone).build(self)
        self.graph_signature = program.graph_signature
        self.range_constraints = program.range_constraints
        self.module_call_graph = list(program.module_call_graph)
        self.flat_args_adapter = flat_args_adapter
        self.check_input_constraints = True
        inputs = _Inputs(InputContract.of(program), program.call_spec.in_spec, program.graph_module.meta)
        self._checks_inputs = self.register_forward_pre_hook(inputs, with_kwargs=True).id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; an error names the line of the model that it comes from."""
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            if line := explain_error(error):
                error.add_note(f"raised by {line}")
            raise

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> UnflattenedModule:
        """Convert all tensors; torch asks for this in ``to`` and ``half``. Inputs then come in the new types."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        inputs: Any = self._forward_pre_hooks[self._checks_inputs]
        types = {dtype for dtype in inputs.contract.types if dtype is not None}
        contract = inputs.contract.in_types({dtype: fn(torch.empty(0, dtype=dtype)).dtype for dtype in types})
        self._forward_pre_hooks[self._checks_inputs] = attrs.evolve(inputs, contract=contract)
        return self


@attrs.frozen(eq=False)
class _Inputs:
    """Before each call: put the arguments in order, let the adapter take another structure, check shapes."""

    contract: InputContract
    target: pytree.TreeSpec
    metadata: dict[str, Any]

    def __call__(self, called: UnflattenedModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        adapter = called.flat_args_adapter
        if adapter is not None:
            args, kwargs = self._adapted(called, adapter, args, kwargs)
        try:
            if called.check_input_constraints:
                return self.contract.bind(args, kwargs)
            return self.contract.arranged(args, kwargs), {}
        except InputError as error:
            if adapter is None:
                error.add_note("A FlatArgsAdapter given to unflatten can take calls of another structure.")
            raise

    def _adapted(
        self, called: UnflattenedModule, adapter: FlatArgsAdapter, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The arguments in the captured structure; the order of keywords is not part of it."""
        names = self.target.child(1).context
        if kwargs.keys() == set(names):
            kwargs = {name: kwargs[name] for name in names}
        flat, given = pytree.tree_flatten((args, kwargs))
        if given == self.target:
            return args, kwargs
        metadata = {**self.metadata, "unflattened_module": called}
        adapted = adapter.adapt(target_spec=self.target, input_spec=given, input_args=flat, metadata=metadata, obj=args)
        if len(adapted) != self.target.num_leaves:
            raise also_as(InputError, TypeError())(
                f"{type(adapter).__name__}.adapt gave {len(adapted)} leaves, but the program takes "
                f"{self.target.num_leaves}: it has to give the leaves for target_spec, in order."
            )
        return pytree.tree_unflatten(adapted, self.target)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Inputs:
        return self


def unflatten(
    module: ExportedProgram,
    flat_args_adapter: FlatArgsAdapter | None = None,
    *,
    clone: bool = False,
    keep_partitions: bool = True,
) -> UnflattenedModule:
    """Give an exported program its module hierarchy back.

    Args:
        module: The program.
        flat_args_adapter: Takes calls whose structure is not the captured one.
        clone: Copy parameters and buffers; by default they are the program's own.
        keep_partitions: Keep submodules that the flat graph calls, such as fused partitions; else inline them.

    Returns:
        A module with the names, the state and the ``forward`` signature of the original. It can be exported again.

    Raises:
        SplitError: A node does not say which module it comes from, the program has no such tensor, or the program is
            a joint forward and backward graph.
        InputError: The adapter has no method ``adapt``.
    """
    return UnflattenedModule(module, flat_args_adapter, clone=clone, keep_partitions=keep_partitions)


def _check_program(module: Any) -> None:
    if not isinstance(module, ExportedProgram):
        raise SplitError(f"unflatten takes a torch.export.ExportedProgram, not {type(module).__name__}.")
    if module.graph_signature.backward_signature is not None:
        raise SplitError(
            "This program holds a backward pass as well; a backward pass has no module hierarchy to go back to. "
            "Unflatten the program before the joint graph is made."
        )


def _check_adapter(adapter: Any) -> None:
    if adapter is not None and not callable(getattr(adapter, "adapt", None)):
        raise also_as(InputError, TypeError())(
            f"flat_args_adapter is an object with a method adapt, such as a FlatArgsAdapter, not {adapter!r}"
        )


def _without_partitions(program: ExportedProgram) -> ExportedProgram:
    from fxpasses.editing.submodules import inline_submodule

    program = copy.copy(program)
    program._graph_module = copy.deepcopy(program.graph_module)
    for call in program.graph.find_nodes(op="call_module"):
        inline_submodule(call)
    return program


def swap_modules(program: ExportedProgram, modules: Mapping[str, torch.nn.Module]) -> UnflattenedModule:
    """Unflatten a program with some of its modules replaced.

    An output that is an input of the call, or that is returned twice, is one value to the program: a new module that
    returns something else there is refused when it runs, if the program uses that value. So are constants. A tensor
    that the original wrote in place and returned is what the new module returns, wherever the program uses it later.

    Args:
        program: Exported with ``preserve_module_call_signature`` naming the modules to replace.
        modules: The new module for each path; it is called as the original was.

    Returns:
        The unflattened module, which calls the new ones.

    Raises:
        SplitError: The program has no module at a path, did not preserve its call signature, or does not say enough to
            call another module there.
    """
    _check_swap(program, modules)
    unflattened = unflatten(program)
    for path, new in modules.items():
        unflattened.set_submodule(path, new)
    return unflattened


def _check_swap(program: Any, modules: Any) -> None:
    if not isinstance(program, ExportedProgram):
        raise SplitError(
            f"swap_modules takes a torch.export.ExportedProgram, not {_kind(program)}; in a module that is unflattened "
            "already, set_submodule replaces a module whose call was preserved."
        )
    if not isinstance(modules, Mapping):
        raise SplitError(f"swap_modules takes a mapping from paths to new modules, not {_kind(modules)}.")
    signatures = {entry.fqn: entry.signature for entry in program.module_call_graph}
    for path, new in modules.items():
        if path not in signatures:
            names = ", ".join(name for name in signatures if name and "@" not in name)
            raise SplitError(f"The program has no module {path!r}; it has {names or 'none'}.")
        if signatures[path] is None:
            raise SplitError(
                f"The call of {path!r} was not preserved; export with preserve_module_call_signature=({path!r},) so "
                "that a new module can be called as the old one was."
            )
        if not path:
            raise SplitError("swap_modules replaces modules inside the program, not the whole of it ('').")
        if not isinstance(new, torch.nn.Module):
            raise SplitError(f"The new module for {path!r} is {_kind(new)}; give a torch.nn.Module.")


def _kind(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__}"
